"""Scheduled messages: they wait in the main subqueue until their time, and then become active. Pure.

AMQP contract 4.4, 10.2, 10.6. A scheduled message has a sequence number of its own. It can be seen and
cancelled by it, but not received. At its time it becomes active at the end of the queue, with the next
sequence number and a new enqueued time, from which its time to live counts (ACTIVATED in `records.py`). Only
its reference changes; its bytes stay where they are in the log.

Schedules are in wall time, because the client gave a date. The wheel is `Subqueue.schedule`; messages that
have come due become active in the order of their times, a bounded number per batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from broker.base.errors import Reason
from broker.operations import CancelScheduled, ClientId, Settled
from broker.partition import records
from broker.partition.records import Activated, Mark
from broker.partition.references import SCHEDULED, Reference
from broker.partition.timers import DueKeys
from broker.partition.workspace import Workspace

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, which is as far as clients can show a time. Later schedules count as this."""

_IN_ORDER = attrgetter("enqueued_at_ms", "sequence_number")


def times_of(times_ms: Sequence[int | None] | None, wall_ms: int) -> list[int] | None:
    """When each message of a send is to be enqueued, 0 for now; None if all are enqueued now. A time that has
    passed means now."""
    if times_ms is None:
        return None
    times = [min(each, LATEST_MS) if each is not None and each > wall_ms else 0 for each in times_ms]
    return times if any(times) else None


def later_expiries(
    expiries: Sequence[int] | None, times_ms: Sequence[int], enqueued_ms: int
) -> list[int] | None:
    """The expiries of messages that were computed from `enqueued_ms`, for scheduled ones counted from their
    times."""
    if expiries is None:
        return None
    return [
        expires_ms + at_ms - enqueued_ms if at_ms and expires_ms else expires_ms
        for expires_ms, at_ms in zip(expiries, times_ms, strict=True)
    ]


class Schedule:
    """Enqueues the scheduled messages of one partition at their time. Owned by the state machine."""

    __slots__ = ("_due", "_space")

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self._due = DueKeys()
        """Sequence numbers that have come due but have not been dealt with."""

    @property
    def has_more(self) -> bool:
        """Whether the next batch has messages to enqueue."""
        return bool(self._due)

    def next_due_ms(self) -> int | None:
        """When the next message is enqueued, in wall time; None if none is scheduled."""
        wheel = self._space.messages.main.schedule
        return None if wheel is None else wheel.next_due_ms()

    def enqueue_due(self) -> None:
        """Make messages active whose time has come, as many as one batch may. Call this before the batch's
        operations: those sent in the batch get higher numbers."""
        space = self._space
        main = space.messages.main
        if main.schedule is None:
            return
        at_once = space.bounds.activated_max
        if not self._due:
            self._due.add(main.schedule.expire(space.batch.wall_ms, at_once))
        if not self._due:
            return
        due: list[Reference] = []
        for number in self._due.take(at_once):
            reference = main.references.get(number)
            if reference is not None and reference.state is SCHEDULED:  # else it was cancelled
                due.append(reference)
        if due:
            self.enqueue(sorted(due, key=_IN_ORDER))

    def enqueue(self, references: Sequence[Reference]) -> None:
        """Make scheduled messages active, in this order, before any message is sent in this batch."""
        space, batch = self._space, self._space.batch
        assert not batch.has_sent, "undoing the batch's sends would undo this too"
        messages = space.messages
        enqueued_ms = space.times.stamp(messages.latest_enqueued_ms, batch.now_ms, batch.wall_ms)
        numbers = [reference.sequence_number for reference in references]
        activated = Activated(messages.next_number, enqueued_ms, numbers)
        body = records.encode_activated(activated)
        batch.commit.add(records.ACTIVATED, [body], records.VERSION)
        batch.marks.append((records.ACTIVATED, body, records.VERSION))
        batch.work += len(numbers)
        batch.arrived_in.add(messages.main.number)
        messages.apply_activated(activated, batch.now_ms)
        batch.first_sent = messages.next_number

    def cancel(self, client: ClientId, cancel: CancelScheduled) -> None:
        """Remove scheduled messages. Those sent in this batch stay, because they may still be refused
        (durability rule 3)."""
        space, batch = self._space, self._space.batch
        main = space.messages.main
        failures: dict[int, Reason] = {}
        found: dict[int, None] = {}
        for place, number in enumerate(cancel.sequence_numbers):
            reference = main.references.get(number)
            if (
                reference is None
                or reference.state is not SCHEDULED
                or (batch.has_sent and number >= batch.first_sent)
            ):
                failures[place] = Reason.MESSAGE_NOT_FOUND
            else:
                found[number] = None
        if found:
            space.mark(Mark(records.REMOVED, main.number, list(found)))
        batch.work += len(cancel.sequence_numbers)
        space.answer(client, Settled(cancel.cookie, failures))
