"""Enforces the time to live: expired messages are removed, or dead-lettered if the queue says so (AMQP
contract 10.4). Pure.

An expired message is never delivered. A locked message expires when its lock ends, a deferred one never.
Dead-letter subqueues ignore the time to live (AMQP contract 5.6). If the disk is full and has no room for the
reason, messages are dead-lettered without it: they can neither be delivered nor lost.
"""

from __future__ import annotations

from broker.partition import records
from broker.partition.dead_lettering import EXPIRED, dead_letter
from broker.partition.records import Mark
from broker.partition.references import DEFERRED, Reference
from broker.partition.subqueue import Subqueue
from broker.partition.timers import DueKeys
from broker.partition.workspace import Workspace


class TimeToLive:
    """Enforces the time to live in one partition."""

    __slots__ = ("_has_passed_over", "_overdue", "_space")

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self._overdue: dict[int, DueKeys] = {}
        """By subqueue: sequence numbers that have come due but have not been dealt with."""
        self._has_passed_over = False
        """A message was locked when it came due. False again once nothing is locked."""

    @property
    def has_more(self) -> bool:
        """Whether the next cycle has expired messages left to deal with."""
        return bool(self._overdue)

    def next_due_ms(self) -> int | None:
        """When the next message expires; None if none does."""
        due_ms: int | None = None
        for subqueue in self._space.messages.work.timed.values():
            next_ms = subqueue.expiry.next_due_ms() if subqueue.expiry is not None else None
            if next_ms is not None and (due_ms is None or next_ms < due_ms):
                due_ms = next_ms
        return due_ms

    def next_at_rest_ms(self) -> int | None:
        """When the next message expires if nothing else happens to the partition; None if none does.

        A message that was locked when it came due expires with its lock.
        """
        due_ms, lock_ends_ms = self.next_due_ms(), self._space.locks.next_due_ms()
        if not self._has_passed_over or lock_ends_ms is None:
            return due_ms
        return lock_ends_ms if due_ms is None else min(due_ms, lock_ends_ms)

    def expire_overdue(self) -> None:
        """Remove or dead-letter messages that have come due, a bounded number per cycle."""
        space = self._space
        if self._has_passed_over and space.locks.next_due_ms() is None:
            self._has_passed_over = False
        timed, now_ms = space.messages.work.timed, space.cycle.now_ms
        for number in [*timed]:
            expiry = timed[number].expiry
            assert expiry is not None, "the messages were replayed"
            due_ms = expiry.next_due_ms()
            if due_ms is not None and due_ms <= now_ms and number not in self._overdue:
                self._overdue[number] = DueKeys()
                self._overdue[number].add(expiry.expire(now_ms, self._at_once))
                due_ms = expiry.next_due_ms()
            if due_ms is None:
                del timed[number]
        for number in [*self._overdue]:
            self._expire_some(space.subqueues[number], self._overdue[number])
            if not self._overdue[number]:
                del self._overdue[number]

    def _expire_some(self, subqueue: Subqueue, overdue: DueKeys) -> None:
        found = [
            reference
            for number in overdue.take(self._at_once)
            if (reference := subqueue.references.get(number)) is not None
        ]
        # A locked message expires when its lock ends, a deferred one never.
        locked = [reference for reference in found if reference.lease is not None]
        self._has_passed_over = self._has_passed_over or bool(locked)
        self.expire(
            subqueue,
            [each for each in found if each.lease is None and each.state is not DEFERRED],
        )

    @property
    def _at_once(self) -> int:
        return self._space.bounds.expired_max

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
