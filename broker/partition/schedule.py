"""Scheduled messages: they wait in the main subqueue until their time, and then become active. Pure.

AMQP contract 4.4, 10.2, 10.6. A scheduled message has a sequence number of its own. It can be seen and
cancelled by it, or given another time (RESCHEDULED in `records.py`), but not received. At its time it becomes
active at the end of the queue, with the next sequence number and a new enqueued time, from which its time to
live counts (ACTIVATED). Only its reference changes; its bytes stay where they are in the log.

Schedules are in wall time, because the client gave a date. The wheel is `Subqueue.schedule`; messages that
have come due become active in the order of their times, a bounded number per cycle. If the clock is set back
meanwhile, the others wait for their times again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from operator import attrgetter

from broker.base.errors import Reason, Refused
from broker.identifiers import ClientId
from broker.operations.scheduling import CancelScheduled, Reschedule
from broker.operations.settling import Settled
from broker.partition import records
from broker.partition.publishing_later import PublishingLater
from broker.partition.records import Activated, Mark, Rescheduled
from broker.partition.references import SCHEDULED, Reference
from broker.partition.scheduled_times import LATEST_MS
from broker.partition.timers import DueKeys
from broker.partition.workspace import Workspace

_IN_ORDER = attrgetter("enqueued_at_ms", "sequence_number")


class Schedule:
    """Enqueues the scheduled messages of one partition at their time. Owned by the state machine."""

    __slots__ = ("_due", "_publishing", "_space", "_wall_ms")

    def __init__(self, space: Workspace, publishing: PublishingLater | None) -> None:
        self._space, self._publishing = space, publishing
        self._due = DueKeys()
        """Sequence numbers that have come due but have not been dealt with."""
        self._wall_ms = 0
        """The wall time of the latest cycle."""

    @property
    def has_more(self) -> bool:
        """Whether the next cycle has messages to enqueue."""
        if self._publishing is None:
            return bool(self._due)
        return not self._publishing.is_paused and (bool(self._due) or self._publishing.has_more)

    def next_due_ms(self) -> int | None:
        """When the next message is enqueued, in wall time; None if none is scheduled."""
        wheel = self._space.messages.main.schedule
        due_ms = None if wheel is None else wheel.next_due_ms()
        if self._publishing is None:
            return due_ms
        if self._due and self._publishing.is_paused:
            due_ms = 0  # they wait for the end of the pause alone
        return None if due_ms is None else self._publishing.next_due_ms(due_ms)

    def pause(self) -> None:
        """The disk is full, and what was sent in this cycle is being undone."""
        if self._publishing is not None:
            self._due.put_back(self._publishing.pause())

    def enqueue_due(self) -> Iterator[None] | None:
        """Make messages active whose time has come, as many as one cycle may. Call this before the cycle's
        operations: those sent in the cycle get higher numbers.

        In a topic, this gives the steps in which they are published, all of them before the operations; None
        if there is nothing to publish."""
        space = self._space
        main = space.messages.main
        wall_ms = space.cycle.wall_ms
        if wall_ms < self._wall_ms:
            self._start_again()
        self._wall_ms = wall_ms
        if self._publishing is not None:
            self._publishing.end_pause()
            if self._publishing.is_paused:
                return None
        if main.schedule is None:
            return None
        at_once = space.bounds.activated_max
        if not self._due:
            self._due.add(main.schedule.expire(wall_ms, at_once))
        if not self.has_more:
            return None
        if self._publishing is not None and self._publishing.is_behind:
            at_once = 0
        due: list[Reference] = []
        for number in dict.fromkeys(self._due.take(at_once)):
            reference = main.references.get(number)
            # Otherwise it was cancelled, or has another time now.
            if reference is not None and reference.state is SCHEDULED and reference.enqueued_at_ms <= wall_ms:
                due.append(reference)
        due.sort(key=_IN_ORDER)
        if self._publishing is not None:
            return self._publish(self._publishing, due)
        if due:
            self.enqueue(due)
        return None

    def _publish(self, publishing: PublishingLater, due: Sequence[Reference]) -> Iterator[None]:
        yield from publishing.publish(due)
        if publishing.is_paused:  # for lack of memory
            self._due.put_back(publishing.give_up())

    def _start_again(self) -> None:
        """The clock was set back, so messages that have come due may have to wait again."""
        due = self._due.take_all()
        if self._publishing is not None:
            due.append((None, array("Q", self._publishing.start_again())))
        schedule = self._space.messages.main.schedule
        if schedule is not None:
            schedule.put_back(due)

    def enqueue(self, references: Sequence[Reference]) -> None:
        """Make scheduled messages active, in this order, before any message is sent in this cycle."""
        space, cycle = self._space, self._space.cycle
        assert not cycle.has_sent, "undoing the cycle's sends would undo this too"
        messages = space.messages
        enqueued_ms = space.times.stamp(messages.latest_enqueued_ms, cycle.now_ms, cycle.wall_ms)
        numbers = [reference.sequence_number for reference in references]
        activated = Activated(messages.next_number, enqueued_ms, numbers)
        body = records.encode_activated(activated)
        cycle.commit.add(records.ACTIVATED, [body], records.VERSION)
        cycle.marks.append((records.ACTIVATED, body, records.VERSION))
        cycle.work += len(numbers)
        cycle.arrived_in.add(messages.main.number)
        messages.apply_activated(activated, cycle.now_ms)
        cycle.first_sent = messages.next_number

    def cancel(self, client: ClientId, cancel: CancelScheduled) -> None:
        """Remove scheduled messages. Those sent in this cycle stay, because they may still be refused
        (durability rule 3)."""
        space = self._space
        found, failures = self._find(cancel.sequence_numbers)
        if found:
            space.mark(Mark(records.REMOVED, space.messages.main.number, found))
        space.answer(client, Settled(cancel.cookie, failures))

    def reschedule(self, client: ClientId, reschedule: Reschedule) -> None:
        """Give scheduled messages another time. Those sent in this cycle keep theirs, as `cancel` says.

        A message that is to be enqueued now becomes active in the next cycle, which follows at once.
        """
        space, cycle = self._space, self._space.cycle
        found, failures = self._find(reschedule.sequence_numbers)
        if found:
            # Later than now, because the wheel has already been asked for what is due now.
            at_ms = min(max(reschedule.at_ms, cycle.wall_ms + 1), LATEST_MS)
            rescheduled = Rescheduled(at_ms, found)
            body = records.encode_rescheduled(rescheduled)
            cycle.commit.add(records.RESCHEDULED, [body], records.VERSION)
            cycle.marks.append((records.RESCHEDULED, body, records.VERSION))
            space.messages.apply_rescheduled(rescheduled)
        space.answer(client, Settled(reschedule.cookie, failures))

    def find_all(self, numbers: Sequence[int]) -> list[int]:
        """The numbers without repetitions, if scheduled messages have all of them. Raises Refused."""
        found, failures = self._find(numbers)
        for place, reason in failures.items():
            text = f"No scheduled message has the sequence number {numbers[place]}; it may be active."
            raise Refused(reason, text)
        return found

    def _find(self, numbers: Sequence[int]) -> tuple[list[int], dict[int, Reason]]:
        """The numbers that belong to scheduled messages, and why the others are refused, by their places."""
        space, cycle = self._space, self._space.cycle
        references = space.messages.main.references
        failures: dict[int, Reason] = {}
        found: dict[int, None] = {}
        for place, number in enumerate(numbers):
            reference = references.get(number)
            if (
                reference is None
                or reference.state is not SCHEDULED
                or (cycle.has_sent and number >= cycle.first_sent)
            ):
                failures[place] = Reason.MESSAGE_NOT_FOUND
            else:
                found[number] = None
        cycle.work += len(numbers)
        return list(found), failures
