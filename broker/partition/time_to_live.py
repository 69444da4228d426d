"""Enforces the time to live: expired messages are removed, or dead-lettered if the queue says so (AMQP
contract 10.4). Pure.

An expired message is never delivered. A locked message expires when its lock ends, a deferred one never.
Dead-letter subqueues ignore the time to live (AMQP contract 5.6). If the disk is full and has no room for the
reason, messages are dead-lettered without it: they can neither be delivered nor lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.partition import records
from broker.partition.changed_properties import WORK_COST, Merging
from broker.partition.dead_lettering import EXPIRED, dead_letter
from broker.partition.records import Mark
from broker.partition.references import DEFERRED, Reference
from broker.partition.subqueue import Subqueue
from broker.partition.timers import DueKeys, TimerWheel
from broker.partition.workspace import Workspace

LOOKED_AT_TOGETHER = 256
"""How many expired messages are looked at together where reasons may have to be merged. More would be for
nothing, for few may fit (`MergingRoom`)."""


class TimeToLive:
    """Enforces the time to live in one partition."""

    __slots__ = ("_has_passed_over", "_left_over", "_overdue", "_overdue_in", "_space", "has_more")

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self._overdue = DueKeys()
        """Sequence numbers in one subqueue that have come due but have not been dealt with."""
        self._overdue_in = 0
        """The number of that subqueue. The wheels of the others have theirs."""
        self._has_passed_over = False
        """A message was locked when it came due. False again once nothing is locked."""
        self._left_over: list[tuple[int, Sequence[int]]] = []
        """Messages that have come due and did not fit into a cycle: a subqueue's number, and sequence
        numbers."""
        self.has_more = False
        """Whether the next cycle has expired messages left to deal with."""

    def next_due_ms(self) -> int | None:
        """When the next message expires; None if none does."""
        due = self._space.messages.work.timed.next_due()
        return None if due is None else due[0]

    def next_at_rest_ms(self) -> int | None:
        """When the next message expires if nothing else happens to the partition; None if none does.

        A message that was locked when it came due expires with its lock.
        """
        due_ms, lock_ends_ms = self.next_due_ms(), self._space.locks.next_due_ms()
        if not self._has_passed_over or lock_ends_ms is None:
            return due_ms
        return lock_ends_ms if due_ms is None else min(due_ms, lock_ends_ms)

    def expire_overdue(self) -> None:
        """Remove or dead-letter messages that have come due, a bounded number per cycle: thousands of
        subscriptions may have messages that expire together."""
        space = self._space
        if self._has_passed_over and space.locks.next_due_ms() is None:
            self._has_passed_over = False
        left = space.bounds.expired_max
        while left > 0 and (some := self._next_some(left)) is not None:
            subqueue, numbers = some
            left -= len(numbers)
            if later := self._expire_some(subqueue, numbers):
                self._left_over.insert(0, (subqueue.number, later))
                break
        self.has_more = bool(self._overdue or self._left_over) or (
            left <= 0 and self._next_overdue() is not None
        )

    def _next_some(self, count: int) -> tuple[Subqueue, Sequence[int]] | None:
        """Take the next messages that have come due, about `count` at most: their subqueue and sequence
        numbers. None if there are none."""
        if self._left_over:
            number, numbers = self._left_over.pop(0)
            return self._space.subqueues[number], numbers
        if not self._find_overdue():
            return None
        subqueue = self._space.subqueues[self._overdue_in]
        return subqueue, self._overdue.take(
            min(count, LOOKED_AT_TOGETHER) if subqueue.changed_bytes else count
        )

    def _find_overdue(self) -> bool:
        """Whether messages have come due. Takes those of another subqueue if none are left."""
        space = self._space
        while not self._overdue and (found := self._next_overdue()) is not None:
            self._overdue_in, wheel = found
            self._overdue.add(wheel.expire(space.cycle.now_ms, space.bounds.expired_max))
        return bool(self._overdue)

    def _next_overdue(self) -> tuple[int, TimerWheel] | None:
        """The number of a subqueue whose wheel has keys that have come due, and that wheel."""
        due = self._space.messages.work.timed.next_due()
        return due[1:] if due is not None and due[0] <= self._space.cycle.now_ms else None

    def _expire_some(self, subqueue: Subqueue, numbers: Sequence[int]) -> list[int]:
        """Expire those that are neither locked nor deferred. Returns the sequence numbers of those that do
        not fit into the cycle."""
        found = [
            reference for number in numbers if (reference := subqueue.references.get(number)) is not None
        ]
        # A locked message expires when its lock ends, a deferred one never.
        locked = [reference for reference in found if reference.lease is not None]
        self._has_passed_over = self._has_passed_over or bool(locked)
        expired = [each for each in found if each.lease is None and each.state is not DEFERRED]
        fitting = self._merging(subqueue, expired).fitting
        self._expire(subqueue, expired[:fitting])
        return [each.sequence_number for each in expired[fitting:]]

    def expire_met(self, subqueue: Subqueue, expired: list[Reference]) -> None:
        """Remove or dead-letter messages found expired while others were locked for a client. Those that do
        not fit into the cycle go back to their places; a hand-out of this subqueue ends with that."""
        space = self._space
        fitting = self._merging(subqueue, expired).fitting
        self._expire(subqueue, expired[:fitting])
        if fitting < len(expired):
            subqueue.give_back(expired[fitting:])
            space.cycle.has_handed_out = True

    def _expire(self, subqueue: Subqueue, references: list[Reference]) -> None:
        """Remove or dead-letter available messages whose time to live is over."""
        space = self._space
        if not references:
            return
        space.cycle.expired_messages += len(references)
        if self._gives_reasons(subqueue):
            fitting = space.take_growth(len(EXPIRED), len(references))
            for some, changed in ((references[:fitting], EXPIRED), (references[fitting:], None)):
                if some:
                    dead_letter(space, subqueue, some, changed)
        else:
            space.mark(Mark(records.REMOVED, subqueue.number, [each.sequence_number for each in references]))

    def give_back(self, subqueue: Subqueue, references: list[Reference]) -> None:
        """Make unlocked messages available again, except those that expired while they were locked."""
        self._space.give_back(subqueue, references)
        if subqueue.expiry is not None:
            expired = [
                each
                for each in references
                if each.lives_until_ms is not None and each.lives_until_ms <= self._space.cycle.now_ms
            ]
            expired = [each for each in expired if each.state is not DEFERRED]
            merging = self._merging(subqueue, expired)
            self._space.cycle.work += merging.cost // WORK_COST
            self._expire(subqueue, expired[: merging.fitting])
            left = [each.sequence_number for each in expired[merging.fitting :]]
            for start in range(0, len(left), LOOKED_AT_TOGETHER):
                self._left_over.append((subqueue.number, left[start : start + LOOKED_AT_TOGETHER]))
                self.has_more = True

    def _merging(self, subqueue: Subqueue, expired: list[Reference]) -> Merging:
        """What expiring these messages merges, and how many of them may expire in this cycle: all of them, or
        the first ones if a reason must be merged with much."""
        space = self._space
        if not (subqueue.changed_bytes and expired and self._gives_reasons(subqueue)):
            return Merging(len(expired))
        return space.cycle.merging_room.take(space.messages.work.properties, expired, EXPIRED)

    def _gives_reasons(self, subqueue: Subqueue) -> bool:
        """Whether expired messages are dead-lettered."""
        return self._space.description.delivery(subqueue.name).dead_lettering_on_expiration

    def is_overdue(self, subqueue: Subqueue, reference: Reference) -> bool:
        """Whether a message has expired, even if it is still in the subqueue."""
        if (
            subqueue.expiry is None
            or reference.lives_until_ms is None
            or reference.lives_until_ms > self._space.cycle.now_ms
        ):
            return False
        return reference.lease is None and reference.state is not DEFERRED
