"""Transactions: a send and settlements that one commit carries out together, or not at all (AMQP contract
8.2). Pure.

Everything that could refuse a part of a transaction is checked before anything changes. The records are those
of ordinary sends and settlements. They are in one frame of the log, so a crash leaves all of them or none.

*A full disk* undoes the sends of a batch and commits the rest (durability rule 6). So the settlements of a
transaction that also sends are written at once but applied only when the commit is durable. Until then, the
messages stay locked, by a lease whose tokens nobody has. If the sends are undone, the settlements' records
are left out, and the clients' own locks come back. Settlements without a send need none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.base.errors import Reason, Refused
from broker.operations import (
    Abandon,
    ClientId,
    Complete,
    DeadLetter,
    Defer,
    LockToken,
    Transact,
    Transacted,
    sequence_of_token,
)
from broker.partition.locks import Held
from broker.partition.references import Reference
from broker.partition.sending import Sending
from broker.partition.settling import Settling
from broker.partition.subqueue import Subqueue
from broker.partition.workspace import Workspace

Settlement = Complete | Abandon | Defer | DeadLetter


@dataclass(slots=True)
class _Pending:
    """The settlements of one transaction, written but not applied."""

    locks: list[Held]
    changes: list[Callable[[], None]]
    dead_lettered: int
    """How many messages they dead-letter."""
    expired: int
    """How many messages they give back that have expired meanwhile."""


class Transactions:
    """Carries out the transactions of one partition."""

    __slots__ = ("_pending", "_sending", "_settling", "_space", "has_more")

    def __init__(self, space: Workspace, sending: Sending, settling: Settling) -> None:
        self._space, self._sending, self._settling = space, sending, settling
        self._pending: list[_Pending] = []
        """Of the current batch, until its commit is durable."""
        self.has_more = False
        """The next batch must follow at once, because the last one handed nothing out. `state.py` resets
        it."""

    def carry_out(self, client: ClientId, operation: Transact) -> None:
        """Carry out a transaction. Raises Refused if any part of it cannot be carried out."""
        space = self._space
        for settlement in operation.settlements:
            space.batch.work += len(settlement.tokens)
        self._check(operation.settlements)
        sent = len(operation.send.messages)
        self._sending.send_new(space.batch, space.description, operation.send)
        for _ in self._sending.go_on():
            pass
        if sent and operation.settlements:
            self._write(operation.settlements)
        else:
            self._settle(operation.settlements)
        space.answer(client, Transacted(sent, operation.cookie))

    def committed(self) -> None:
        """Apply the settlements that have waited for the commit. The next batch hands out messages again."""
        if not self._pending:
            return
        self._space.hands_out_later = False
        self.has_more = True
        for pending in self._pending:
            for held in pending.locks:
                self._space.locks.take_back(held.lease, held.lease.references)
            for change in pending.changes:
                change()
        self._pending.clear()

    def give_up(self) -> None:
        """The sends of this batch were undone: forget the settlements that belong to them, and restore the
        locks."""
        batch = self._space.batch
        self._space.hands_out_later = False
        self.has_more = bool(self._pending)
        for pending in self._pending:
            batch.dead_lettered -= pending.dead_lettered
            batch.expired_messages -= pending.expired
            for held in pending.locks:
                self._space.locks.restore(held)
        self._pending.clear()

    def _check(self, settlements: Sequence[Settlement]) -> None:
        """Raise Refused if any of the settlements cannot be carried out."""
        space = self._space
        seen: set[LockToken] = set()
        added = 0
        for settlement in settlements:
            for token in settlement.tokens:
                subqueue = space.locks.subqueue_of(token, space.arrived_ms)
                if subqueue is None or token in seen:
                    raise Refused(
                        Reason.LOCK_LOST,
                        f"The lock of the message with sequence number {sequence_of_token(token)} has "
                        "expired, or the message has already been settled.",
                    )
                if isinstance(settlement, DeadLetter) and subqueue.dead_letters_to is None:
                    raise Refused(
                        Reason.NOT_ALLOWED,
                        f"The message with sequence number {sequence_of_token(token)} is in a dead-letter "
                        "queue and cannot be dead-lettered again.",
                    )
                seen.add(token)
            if not isinstance(settlement, Complete):
                self._settling.check_changes(settlement, added)
                added += len(settlement.changed or b"") * len(settlement.tokens)

    def _settle(self, settlements: Sequence[Settlement]) -> None:
        """Carry out settlements at once."""
        locks = self._space.locks
        for settlement in settlements:
            effect = self._settling.effect_of(settlement)
            for subqueue, references in locks.unlock(settlement.tokens, self._space.arrived_ms):
                effect(subqueue, references)

    def _write(self, settlements: Sequence[Settlement]) -> None:
        """Write settlements into the commit, to be applied once it is durable."""
        space, batch = self._space, self._space.batch
        kept: dict[int, Held] = {}
        changes: list[Callable[[], None]] = []
        dead_lettered, expired = batch.dead_lettered, batch.expired_messages
        space.held = changes
        try:
            for settlement in settlements:
                groups: dict[int, tuple[Subqueue, list[Reference]]] = {}
                for token in settlement.tokens:
                    subqueue, reference = space.locks.hold(token, kept)
                    groups.setdefault(subqueue.number, (subqueue, []))[1].append(reference)
                effect = self._settling.effect_of(settlement)
                for subqueue, references in groups.values():
                    effect(subqueue, references)
        finally:
            space.held = None
        space.hands_out_later = True
        self._pending.append(
            _Pending(
                list(kept.values()),
                changes,
                batch.dead_lettered - dead_lettered,
                batch.expired_messages - expired,
            )
        )
