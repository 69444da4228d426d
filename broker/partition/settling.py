"""Settles locked messages (complete, abandon, defer, dead-letter, release) and renews their locks. Pure.

A settlement counts if it arrived before the lock ended (`Workspace.arrived_ms`). The answer names the
settlements that came too late by their index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.base.errors import Reason
from broker.identifiers import ClientId, LockToken
from broker.operations.settling import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    GiveBack,
    Release,
    Renewed,
    RenewLocks,
    Settled,
)
from broker.operations.transfers import FailTransfer
from broker.partition import _references, records
from broker.partition.changed_properties import ANY_ROOM, VALUE_BYTES, WORK_COST, Merging
from broker.partition.dead_lettering import dead_letter, fail_transfer
from broker.partition.delivery_count import failed_delivery, spent_from_of
from broker.partition.long_operations import Divisible
from broker.partition.quotas import check_changes
from broker.partition.records import Mark
from broker.partition.references import Reference
from broker.partition.subqueue import Subqueue
from broker.partition.time_to_live import TimeToLive
from broker.partition.workspace import Workspace

CHANGE_WORK = 16
"""What a settlement that changes properties counts in a cycle's work, besides its messages and the bytes of
the change. It takes 50 to 100 us, and each message a few."""
_UNCHANGING = (Complete, RenewLocks)
Effect = Callable[[Subqueue, list[Reference]], None]
"""Carries out a settlement for messages of one subqueue."""


class Settling:
    """Settles the messages of one partition."""

    __slots__ = ("_space", "_time_to_live")

    def __init__(self, space: Workspace, time_to_live: TimeToLive) -> None:
        self._space, self._time_to_live = space, time_to_live

    def merging(self, operation: Divisible, begin: int = 0) -> Merging:
        """What the rest of an operation takes, from the token at `begin` on: how many messages one cycle may
        settle, and what it takes to change their properties. Raises Refused.

        One cycle settles fewer if a change has to be merged with many different ones, or with large ones.
        """
        space = self._space
        count = min(len(operation.tokens) - begin, space.bounds.settled_max)
        if isinstance(operation, _UNCHANGING):
            return Merging(count)
        within = self.within(operation)
        messages, changed = space.messages, operation.changed
        if not (messages.work if within is None else space.subqueues[within]).changed_bytes:
            return Merging(count) if changed is None else Merging(count, VALUE_BYTES + len(changed))
        tokens = operation.tokens[begin : begin + count]
        spent_from = self._spent_from(operation, tokens, within)
        if changed is None and spent_from is None:
            return Merging(count)
        references = space.locks.references_of(tokens, space.arrived_ms, within)
        merging = messages.work.properties.merging(references, changed, spent_from)
        return merging._replace(fitting=count) if merging.is_all else merging

    def _spent_from(
        self, operation: Divisible | FailTransfer, tokens: Sequence[LockToken], within: int | None
    ) -> int | None:
        """From how many failed deliveries on the messages with these locks are given a reason of the broker;
        None if they never are."""
        space = self._space
        if not (isinstance(operation, Abandon) and tokens):
            return None
        subqueue = space.locks.subqueue_of(tokens[0], space.arrived_ms, within)
        return 0 if subqueue is None else spent_from_of(space, subqueue)

    def carry_out(self, client: ClientId, operation: Divisible, merging: Merging) -> None:
        """Settle messages, or renew their locks. `merging` is what that takes. Raises Refused."""
        match operation:
            case Complete():
                self._settle(client, operation, self._remove)
            case RenewLocks():
                self._renew(client, operation)
            case Abandon() | Defer() | DeadLetter():
                self._space.cycle.work += merging.cost // WORK_COST
                if operation.changed is not None:
                    self._space.cycle.work += CHANGE_WORK + len(operation.changed) // WORK_COST
                    self._check_changes(operation, operation.changed, merging.memory)
                if isinstance(operation, DeadLetter):
                    self._dead_letter(client, operation)
                else:
                    self._settle(client, operation, self.effect_of(operation))

    def _dead_letter(self, client: ClientId, operation: DeadLetter) -> None:
        """Move messages to the dead-letter subqueue. Raises Refused.

        Messages in a dead-letter subqueue cannot be dead-lettered again; their locks are left alone (AMQP
        contract 10.4).
        """
        space = self._space
        within = self.within(operation)
        failures: dict[int, Reason] = {}
        space.cycle.work += 2 * len(operation.tokens)
        places: list[int] = []
        for place, token in enumerate(operation.tokens):
            subqueue = space.locks.subqueue_of(token, space.arrived_ms, within)
            if subqueue is None or subqueue.dead_letters_to is not None:
                places.append(place)
            else:
                failures[place] = Reason.NOT_ALLOWED
        lost: dict[int, Reason] = {}
        for subqueue, references in space.locks.unlock(
            [operation.tokens[place] for place in places], space.arrived_ms, lost, within
        ):
            dead_letter(space, subqueue, references, operation.changed)
        failures |= {places[index]: reason for index, reason in lost.items()}
        space.answer(client, Settled(operation.cookie, failures))

    def fail_transfer(self, client: ClientId, operation: FailTransfer) -> None:
        """Move messages to the transfer dead-letter subqueue. Raises Refused."""
        space = self._space
        self.check_changes(operation)
        space.cycle.work += len(operation.tokens)
        failures: dict[int, Reason] = {}
        for subqueue, references in space.locks.unlock(operation.tokens, space.arrived_ms, failures):
            fail_transfer(space, subqueue, references, operation.changed)
        space.answer(client, Settled(operation.cookie, failures))

    def release(self, client: ClientId, operation: Release | GiveBack) -> None:
        """Give back messages that no client has seen, without counting a delivery."""
        space = self._space
        space.cycle.work += len(operation.tokens)
        for subqueue, references in space.locks.unlock(operation.tokens, space.arrived_ms):
            self._time_to_live.give_back(subqueue, references)
        if isinstance(operation, GiveBack):
            space.answer(client, Settled(operation.cookie))

    def _renew(self, client: ClientId, operation: RenewLocks) -> None:
        space = self._space
        within = self.within(operation)
        space.cycle.work += len(operation.tokens)
        if operation.duration_ms is None:  # the messages of one renewal are in one subqueue
            known = (space.locks.subqueue_of(token, space.arrived_ms, within) for token in operation.tokens)
            until_ms = space.locked_until_ms(next(filter(None, known), space.messages.main))
        else:
            until_ms = space.cycle.now_ms + operation.duration_ms
        failures = space.locks.renew(operation.tokens, space.arrived_ms, until_ms, within)
        space.answer(client, Renewed(until_ms, operation.cookie, failures))

    def _settle(
        self,
        client: ClientId,
        operation: Complete | Abandon | Defer | DeadLetter,
        settle: Effect,
    ) -> None:
        space = self._space
        within = self.within(operation)
        failures: dict[int, Reason] = {}
        space.cycle.work += len(operation.tokens)
        for subqueue, references in space.locks.unlock(operation.tokens, space.arrived_ms, failures, within):
            settle(subqueue, references)
        space.answer(client, Settled(operation.cookie, failures))

    def within(self, operation: Complete | Abandon | Defer | DeadLetter | RenewLocks) -> int | None:
        """The number of the only subqueue whose locks an operation may name; None for all. Raises Refused."""
        if operation.subqueue is None:
            return None
        return self._space.messages.subqueues.number_of(operation.subqueue)

    def effect_of(self, operation: Complete | Abandon | Defer | DeadLetter) -> Effect:
        """What a settlement does to messages of one subqueue whose locks have ended."""
        space = self._space
        match operation:
            case Complete():
                return self._remove
            case Abandon():
                return lambda subqueue, each: failed_delivery(
                    space, self._time_to_live, subqueue, each, operation.changed, operation.delay_ms
                )
            case Defer():
                return lambda subqueue, each: self._defer(subqueue, each, operation.changed)
            case DeadLetter():
                return lambda subqueue, each: dead_letter(space, subqueue, each, operation.changed)

    def check_changes(
        self, operation: Abandon | Defer | DeadLetter | FailTransfer, added: int = 0, taken: int = 0
    ) -> Merging:
        """Raise Refused if memory, the quota or a full disk has no room for the changed properties. The
        locks stay. Returns what it takes to merge them, or the broker's reason, with others.

        `added` and `taken`: see `quotas.check_changes`.
        """
        changed, space = operation.changed, self._space
        memory, cost, tokens = 0 if changed is None else VALUE_BYTES + len(changed), 0, operation.tokens
        if space.messages.work.changed_bytes:
            within = None if isinstance(operation, FailTransfer) else self.within(operation)
            spent_from = self._spent_from(operation, tokens, within)
            if changed is not None or spent_from is not None:
                references = space.locks.references_of(tokens, space.arrived_ms, within)
                merging = space.messages.work.properties.merging(references, changed, spent_from, ANY_ROOM)
                memory, cost = merging.memory, merging.cost
                space.cycle.work += cost // WORK_COST
        if changed is not None:
            self._check_changes(operation, changed, memory, added, taken)
        return Merging(len(tokens), memory, cost)

    def _check_changes(
        self,
        operation: Abandon | Defer | DeadLetter | FailTransfer,
        changed: bytes,
        memory: int,
        added: int = 0,
        taken: int = 0,
    ) -> None:
        """As `check_changes`. `memory`: what the changed properties may take at most."""
        space = self._space
        check_changes(
            space.description,
            space.number,
            space.messages.work.changed_bytes,
            space.messages.payloads,
            changed,
            len(operation.tokens),
            memory,
            added,
            taken,
        )
        space.check_growth(len(changed), len(operation.tokens))

    def _remove(self, subqueue: Subqueue, references: list[Reference]) -> None:
        self._space.mark(Mark(records.REMOVED, subqueue.number, _references.numbers(references)))

    def _defer(self, subqueue: Subqueue, references: list[Reference], changed: bytes | None) -> None:
        numbers = [reference.sequence_number for reference in references]
        self._space.mark(
            Mark(
                records.DEFERRED,
                subqueue.number,
                numbers,
                changed,
                counts_delivery=subqueue.role.counts_deliveries,
            )
        )
