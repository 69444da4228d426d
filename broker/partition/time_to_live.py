"""Messages whose time to live is over: they are removed, or dead-lettered if the queue says so (AMQP contract
10.4). Pure.

An expired message is never handed out. A locked one expires when its lock ends, a deferred one never.
Dead-letter subqueues know no time to live (AMQP contract 5.6).
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
        self._overdue = DueKeys()
        """Sequence numbers whose time came, and which were not looked at yet."""
        self._has_passed_over = False
        """A message was locked when its time came. False again once nothing is locked."""

    @property
    def has_more(self) -> bool:
        """Something was left for the next batch."""
        return bool(self._overdue)

    def next_due_ms(self) -> int | None:
        """When the next message expires; None if none does."""
        expiry = self._space.main.expiry
        return expiry.next_due_ms() if expiry is not None else None

    def next_at_rest_ms(self) -> int | None:
        """The same if the partition is left alone from now on. A message that was locked when its time came
        expires with its lock."""
        due_ms, lock_ends_ms = self.next_due_ms(), self._space.locks.next_due_ms()
        if not self._has_passed_over or lock_ends_ms is None:
            return due_ms
        return lock_ends_ms if due_ms is None else min(due_ms, lock_ends_ms)

    def expire_overdue(self) -> None:
        """Deal with messages whose time has come, so many in a batch."""
        space = self._space
        assert space.main.expiry is not None, "the messages were replayed"
        if self._has_passed_over and space.locks.next_due_ms() is None:
            self._has_passed_over = False
        if not self._overdue:
            self._overdue.add(space.main.expiry.expire(space.batch.now_ms, space.bounds.expired_max))
        if self._overdue:
            overdue = self._overdue.take(space.bounds.expired_max)
            found = [
                reference
                for number in overdue
                if (reference := space.main.references.get(number)) is not None
            ]
            # A locked message expires when its lock ends, a deferred one never.
            locked = [reference for reference in found if reference.lease is not None]
            self._has_passed_over = self._has_passed_over or bool(locked)
            self.expire(
                [reference for reference in found if reference.lease is None and reference.state != DEFERRED]
            )

    def expire(self, references: list[Reference]) -> None:
        """Remove or dead-letter available messages of the main subqueue."""
        space = self._space
        if not references:
            return
        space.batch.expired_messages += len(references)
        if space.description.settings.dead_lettering_on_expiration:
            dead_letter(space, space.main, references, EXPIRED)
        else:
            space.mark(
                Mark(records.REMOVED, space.main.number, [each.sequence_number for each in references])
            )

    def give_back(self, subqueue: Subqueue, references: list[Reference]) -> None:
        """Unlocked messages are available again, but for those that expired while they were locked."""
        subqueue.give_back(references)
        if subqueue.expiry is not None:
            expired = [
                each
                for each in references
                if each.lives_until_ms is not None and each.lives_until_ms <= self._space.batch.now_ms
            ]
            self.expire([each for each in expired if each.state != DEFERRED])

    def is_overdue(self, subqueue: Subqueue, reference: Reference) -> bool:
        """Whether a message counts as gone, although it was not dealt with yet."""
        if (
            subqueue.expiry is None
            or reference.lives_until_ms is None
            or reference.lives_until_ms > self._space.batch.now_ms
        ):
            return False
        return reference.lease is None and reference.state != DEFERRED
