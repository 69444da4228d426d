"""Sequence numbers that are promised for the messages that transactions schedule, and these messages. Pure.

A client that schedules messages in a transaction is told their sequence numbers before the commit (AMQP
contract 8.2). A COUNTERS record makes sure that no later process gives them again: the head of the partition
passes them at once, and a reader that has gone past them never looks there again.

Meanwhile other messages may get higher numbers, so the commit cannot enqueue the messages at the end. It
writes them as RELOCATED messages in the state SCHEDULED, again with a COUNTERS record. They are added to the
queue only when the commit is durable, as the settlements of a transaction are applied (`transactions.py`), so
a full disk has nothing to undo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.base.errors import Reason, Refused
from broker.identifiers import ClientId
from broker.operations.scheduling import BreakPromise, Promised, PromiseNumbers
from broker.operations.sending import Send
from broker.operations.settling import Settled
from broker.partition import records
from broker.partition.expiries import expiries
from broker.partition.records import Counters, Relocated
from broker.partition.references import SCHEDULED
from broker.partition.scheduled_times import LATEST_MS
from broker.partition.sending import Sending
from broker.partition.workspace import Workspace


class Promises:
    """The promised numbers of one partition. Owned by the state machine."""

    __slots__ = ("_counts", "_sending", "_space")

    def __init__(self, space: Workspace, sending: Sending) -> None:
        self._space, self._sending = space, sending
        self._counts: dict[int, int] = {}
        """How many numbers each promise has, by its first one."""

    def make(self, client: ClientId, promise: PromiseNumbers) -> bool:
        """Promise numbers. Returns False if that must wait for the next cycle, because undoing the sends of
        this one would give the numbers again."""
        space, cycle = self._space, self._space.cycle
        if cycle.has_sent:
            return False
        messages = space.messages
        first = messages.next_number
        counters = Counters(first + promise.count, messages.latest_enqueued_ms)
        space.mark_applied(records.COUNTERS, records.encode_counters(counters))
        messages.apply_counters(counters)
        cycle.first_sent = messages.next_number
        self._counts[first] = promise.count
        space.answer(client, Promised(first, promise.cookie))
        return True

    def break_one(self, client: ClientId, broken: BreakPromise) -> None:
        """Forget a promise, if it is known."""
        self._counts.pop(broken.first, None)
        self._space.answer(client, Settled(broken.cookie))

    def check(self, numbers: Sequence[int]) -> None:
        """Raise Refused unless all these numbers are promised: whole promises, one after the other."""
        place = 0
        while place < len(numbers):
            count = self._counts.get(numbers[place], 0)
            if not count or numbers[place + count - 1 :][:1] != [numbers[place] + count - 1]:
                raise Refused(
                    Reason.PARTITION_UNAVAILABLE,
                    f"Partition {self._space.number} was not available in between, and the sequence number "
                    f"{numbers[place]} is not promised any more.",
                )
            place += count

    def keep(self, send: Send, numbers: Sequence[int], changes: list[Callable[[], None]]) -> None:
        """Write the messages with the numbers that were promised, which have been checked. Adds to `changes`
        what makes them part of the queue once the commit is durable."""
        space, cycle, messages = self._space, self._space.cycle, self._space.messages
        send, dropped = self._sending.without_duplicates(cycle, space.description, send)
        kept = [number for place, number in enumerate(numbers) if place not in frozenset(dropped)]
        sizes = list(map(len, send.messages))
        if send.identities is not None:
            self._sending.remember(cycle, space.description, send.identities)
        for number in numbers:
            self._counts.pop(number, None)
        cycle.has_sent = True
        if not kept:
            return
        cycle.arrived_in.add(messages.main.number)
        wall_ms = cycle.wall_ms
        times = send.scheduled_ms or [None] * len(sizes)
        # Later than now, because the wheel has already been asked for what is due now.
        at_ms = [min(max(each or 0, wall_ms + 1), LATEST_MS) for each in times]
        default_ms = space.description.settings.default_time_to_live_ms
        lives = expiries(send.time_to_live_ms, default_ms, len(sizes), 0) or [0] * len(sizes)
        relocated = Relocated(
            kept,
            at_ms,
            [life + due_ms if life else 0 for life, due_ms in zip(lives, at_ms, strict=True)],
            sizes,
            [0] * len(sizes),
            [messages.main.number] * len(sizes),
            [SCHEDULED] * len(sizes),
            [None] * len(sizes),
            0,
            send.columns,
        )
        counters = Counters(messages.next_number, messages.latest_enqueued_ms)
        cycle.commit.add(records.COUNTERS, [records.encode_counters(counters)], records.VERSION)
        offset = records.add_relocated(cycle.commit, relocated, list(send.messages))
        relocated = relocated._replace(messages_offset=offset)
        position = cycle.commit.start
        changes.append(lambda: messages.apply_relocated(position, relocated, are_new=True))
