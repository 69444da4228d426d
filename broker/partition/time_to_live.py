"""Enforces the time to live: expired messages are removed, or dead-lettered if the queue says so (AMQP
contract 10.4). Pure.

An expired message is never delivered. A locked message expires when its lock ends, a deferred one never.
Dead-letter subqueues ignore the time to live (AMQP contract 5.6). If the disk is full and has no room for the
reason, messages are dead-lettered without it: they can neither be delivered nor lost.
"""

from __future__ import annotations

from broker.partition import records
from broker.partition.changed_properties import MERGED_AT_ONCE
from broker.partition.dead_lettering import EXPIRED, dead_letter
from broker.partition.records import Mark
from broker.partition.references import DEFERRED, Reference
from broker.partition.subqueue import Subqueue
from broker.partition.timers import DueKeys, TimerWheel
from broker.partition.workspace import Workspace

MERGED_TOGETHER = 16
"""Messages that expire together if a reason may have to be merged with changed properties of each."""


class TimeToLive:
    """Enforces the time to live in one partition."""

    __slots__ = ("_has_passed_over", "_overdue", "_overdue_in", "_space", "has_more")

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self._overdue = DueKeys()
        """Sequence numbers in one subqueue that have come due but have not been dealt with."""
        self._overdue_in = 0
        """The number of that subqueue. The wheels of the others have theirs."""
        self._has_passed_over = False
        """A message was locked when it came due. False again once nothing is locked."""
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
        left, merging = space.bounds.expired_max, MERGED_AT_ONCE
        while left > 0 and merging > 0 and self._find_overdue():
            subqueue = space.subqueues[self._overdue_in]
            numbers = self._overdue.take(min(left, MERGED_TOGETHER) if subqueue.changed_bytes else left)
            left -= len(numbers)
            merging -= self._expire_some(subqueue, numbers)
        self.has_more = bool(self._overdue) or (min(left, merging) <= 0 and self._next_overdue() is not None)

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

    def _expire_some(self, subqueue: Subqueue, numbers: list[int]) -> int:
        """Returns what it costs to merge the reason with changed properties."""
        found = [
            reference for number in numbers if (reference := subqueue.references.get(number)) is not None
        ]
        # A locked message expires when its lock ends, a deferred one never.
        locked = [reference for reference in found if reference.lease is not None]
        self._has_passed_over = self._has_passed_over or bool(locked)
        expired = [each for each in found if each.lease is None and each.state is not DEFERRED]
        cost = 0
        if subqueue.changed_bytes:
            _, cost = self._space.messages.work.properties.growth(expired, EXPIRED)
        self.expire(subqueue, expired)
        return cost

    def expire(self, subqueue: Subqueue, references: list[Reference]) -> None:
        """Remove or dead-letter available messages whose time to live is over."""
        space = self._space
        if not references:
            return
        space.cycle.expired_messages += len(references)
        if space.description.delivery(subqueue.name).dead_lettering_on_expiration:
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
            self.expire(subqueue, [each for each in expired if each.state is not DEFERRED])

    def is_overdue(self, subqueue: Subqueue, reference: Reference) -> bool:
        """Whether a message has expired, even if it is still in the subqueue."""
        if (
            subqueue.expiry is None
            or reference.lives_until_ms is None
            or reference.lives_until_ms > self._space.cycle.now_ms
        ):
            return False
        return reference.lease is None and reference.state is not DEFERRED
