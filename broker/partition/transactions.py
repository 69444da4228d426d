"""Transactions: a send and settlements that one commit carries out together, or not at all (AMQP contract
8.2). Pure.

Everything that could refuse a part of a transaction is checked before anything changes. The records are those
of ordinary sends and settlements. They are in one frame of the log, so a crash leaves all of them or none.

*A full disk* undoes the sends of a cycle and commits the rest (durability rule 6). So the settlements of a
transaction that also sends are written at once but applied only when the commit is durable. Until then, the
messages stay locked, by a lease whose tokens nobody has. If the sends are undone, the settlements' records
are left out, and the clients' own locks come back. Settlements without a send need none of this. Scheduled
messages that the transaction cancels, and those that it schedules with promised numbers, wait in the same
way.

*Messages for other entities* are written as sends (ENQUEUED) and moved to the transfer subqueue (MOVED) in
the same commit. The move waits as settlements do, so undoing the sends undoes them too; until then, nothing
of the cycle is handed out, and only operations that look at no messages may follow in it (`UNSEEING`). So
many such transactions share a commit.

*A full entity* can be drained by transactions: what one of them completes or cancels makes room for what it
sends, although it is removed after that.

*Changes of rules* are noted with the other records (`rule_changes.py`).

*Receivers wait for one cycle at most.* A transaction with something that waits for the commit has nothing
handed out in its cycle. If clients then wait for messages, the next cycle takes no such transaction, and
serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES
from broker.entities.roles import PASSES_ON
from broker.identifiers import ClientId, LockToken, sequence_of_token
from broker.operations.receiving import Demand
from broker.operations.rule_changes import FindRuleChanges, ForgetRuleChanges, RuleChangesFound
from broker.operations.sending import Send
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Settled
from broker.operations.transactions import Transact, Transacted
from broker.partition import records
from broker.partition.changed_properties import MERGED_AT_ONCE
from broker.partition.locks import Held
from broker.partition.promises import Promises
from broker.partition.quotas import freed_by
from broker.partition.records import Mark
from broker.partition.references import Reference
from broker.partition.rule_changes import RuleChanges
from broker.partition.schedule import Schedule
from broker.partition.sending import Sending
from broker.partition.settling import Settling
from broker.partition.subqueue import Subqueue
from broker.partition.workspace import Workspace

MERGED_MAX = 8 * MERGED_AT_ONCE
"""What one transaction may merge, because it is carried out in one step: 100 messages with 60 properties of 1
KiB each take half of that."""
Settlement = Complete | Abandon | Defer | DeadLetter

UNSEEING = Send | Transact | Demand | Complete
"""Operations that may follow in a cycle whose messages for other entities are not moved yet. They look at no
available message."""


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

    __slots__ = (
        "_pending",
        "_promises",
        "_schedule",
        "_sending",
        "_settling",
        "_space",
        "has_more",
        "is_passing_on",
    )

    def __init__(
        self,
        space: Workspace,
        sending: Sending,
        settling: Settling,
        schedule: Schedule,
        promises: Promises,
    ) -> None:
        self._space, self._sending, self._settling = space, sending, settling
        self._schedule, self._promises = schedule, promises
        self._pending: list[_Pending] = []
        """Of the current cycle, until its commit is durable."""
        self.has_more = False
        """The next cycle must follow at once, because the last one handed nothing out. `state.py` resets
        it."""
        self.is_passing_on = False
        """Messages for other entities are still in the main subqueue until the commit is durable."""

    def has_handed_out_nothing(self, operation: Transact) -> bool:
        """Whether the last cycle handed nothing out, and this transaction would have the same again."""
        sends = operation.send.messages or operation.promised or operation.transfers is not None
        waits = operation.settlements or operation.cancelled or operation.scheduled is not None
        return self.has_more and bool(sends and (waits or operation.transfers is not None))

    def carry_out(self, client: ClientId, operation: Transact) -> None:
        """Carry out a transaction. Raises Refused if any part of it cannot be carried out."""
        space = self._space
        for settlement in operation.settlements:
            space.cycle.work += len(settlement.tokens)
        removed = self._check(operation.settlements)
        cancelled = self._schedule.find_all(operation.cancelled)
        removed += map(space.messages.main.references.__getitem__, cancelled)
        freed = freed_by(removed, space.messages.bodies)
        self._promises.check(operation.promised)
        scheduled, transfers = operation.scheduled, operation.transfers
        sent = len(operation.send.messages) + len(operation.promised)
        self._check_entity_room(operation, freed)
        if scheduled is not None or transfers is not None:
            self._sending.check(
                space.cycle, space.description, operation.send, scheduled, transfers, freed=freed
            )
        self._sending.send_new(space.cycle, space.description, operation.send, freed)
        passed_on = range(0)
        if transfers is not None:
            self._sending.finish()  # the others come after these
            sent += len(transfers.messages)
            first = self._sending.send(
                space.cycle, space.description, transfers, freed, only=space.messages.main.number
            )
            self._sending.finish()  # they are moved by records that follow
            passed_on = range(first, first + len(transfers.messages))
        if operation.rule_changes:
            noted = space.messages.states.of(RuleChanges).noted(operation.change_id, operation.rule_changes)
            space.record(noted, with_send=bool(sent))
        if sent and (operation.settlements or cancelled or scheduled is not None or passed_on):
            self._write(operation.settlements, cancelled, scheduled, operation.promised, passed_on)
            self._sending.freed_later += freed
        else:
            self._settle(operation.settlements)
            self._cancel(cancelled)
        space.answer(client, Transacted(sent, operation.cookie))

    def _check_entity_room(self, operation: Transact, freed: int) -> None:
        """Raise Refused if the transaction needs more room than it makes, and the entity as a whole has not
        that much left."""
        if operation.full is None:
            return
        sends = (operation.send, operation.scheduled, operation.transfers)
        sizes = [len(message) for send in sends if send is not None for message in send.messages]
        if sum(sizes) + MESSAGE_OVERHEAD_BYTES * len(sizes) > operation.room + freed:
            raise Refused(Reason.QUOTA_EXCEEDED, operation.full)

    def find_rule_changes(self, client: ClientId, find: FindRuleChanges) -> None:
        """Say which changes of rules are noted."""
        found = self._space.messages.states.of(RuleChanges).in_order()
        ids, changes = [each for each, _ in found], [each for _, each in found]
        self._space.answer(client, RuleChangesFound(ids, changes, find.cookie))

    def forget_rule_changes(self, client: ClientId, forget: ForgetRuleChanges) -> None:
        """Forget changes of rules that the topic has now."""
        noted = self._space.messages.states.of(RuleChanges)
        for key in [(0, each) for each in forget.ids]:
            if key in noted.entries:
                self._space.record(noted.record_of(key, None))
        self._space.answer(client, Settled(forget.cookie))

    def _cancel(self, numbers: list[int]) -> None:
        """Remove scheduled messages."""
        if numbers:
            space = self._space
            space.mark(Mark(records.REMOVED, space.messages.main.number, numbers))

    def _pass_on(self, numbers: Sequence[int]) -> None:
        """Move messages that were just sent to the transfer subqueue."""
        if numbers:
            space = self._space
            target = space.description.subqueues.first_with(PASSES_ON)
            assert target is not None, "an entity that passes messages on has a subqueue for them"
            space.cycle.arrived_in.add(target)
            space.mark(Mark(records.MOVED, space.messages.main.number, list(numbers), target=target))

    def committed(self) -> None:
        """Apply the settlements that have waited for the commit. The next cycle hands out messages again."""
        if not self._pending:
            return
        self._space.hands_out_later = self.is_passing_on = False
        self._sending.freed_later = 0
        self.has_more = True
        for pending in self._pending:
            for held in pending.locks:
                self._space.locks.take_back(held.lease, held.lease.references)
            for change in pending.changes:
                change()
        self._pending.clear()

    def give_up(self) -> None:
        """The sends of this cycle were undone: forget the settlements that belong to them, and restore the
        locks."""
        cycle = self._space.cycle
        self._space.hands_out_later = self.is_passing_on = False
        self._sending.freed_later = 0
        self.has_more = bool(self._pending)
        for pending in self._pending:
            cycle.dead_lettered -= pending.dead_lettered
            cycle.expired_messages -= pending.expired
            for held in pending.locks:
                self._space.locks.restore(held)
        self._pending.clear()

    def _check(self, settlements: Sequence[Settlement]) -> list[Reference]:
        """Raise Refused if any of the settlements cannot be carried out. Returns the messages that they
        remove."""
        space = self._space
        removed: list[Reference] = []
        seen: set[LockToken] = set()
        added = taken = cost = 0
        for settlement in settlements:
            within = self._settling.within(settlement)
            for token in settlement.tokens:
                subqueue = space.locks.subqueue_of(token, space.arrived_ms, within)
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
                if isinstance(settlement, Complete):
                    removed.append(subqueue.references[sequence_of_token(token)])
            if not isinstance(settlement, Complete):
                merging = self._settling.check_changes(settlement, added, taken)
                cost, taken = cost + merging.cost, taken + merging.memory
                added += len(settlement.changed or b"") * len(settlement.tokens)
        if cost > MERGED_MAX:
            raise Refused(
                Reason.QUOTA_EXCEEDED,
                "The transaction changes properties of messages that have too many changed properties, all "
                "at once. Settle fewer of these messages in each transaction.",
            )
        return removed

    def _settle(self, settlements: Sequence[Settlement]) -> None:
        """Carry out settlements at once."""
        locks = self._space.locks
        for settlement in settlements:
            effect = self._settling.effect_of(settlement)
            for subqueue, references in locks.unlock(settlement.tokens, self._space.arrived_ms):
                effect(subqueue, references)

    def _write(
        self,
        settlements: Sequence[Settlement],
        cancelled: list[int],
        scheduled: Send | None,
        promised: Sequence[int],
        passed_on: Sequence[int],
    ) -> None:
        """Write everything but the messages that were sent into the commit, to be applied once it is
        durable."""
        space, cycle = self._space, self._space.cycle
        kept: dict[int, Held] = {}
        changes: list[Callable[[], None]] = []
        dead_lettered, expired = cycle.dead_lettered, cycle.expired_messages
        if scheduled is not None:
            self._promises.keep(scheduled, promised, changes)
        self.is_passing_on = self.is_passing_on or bool(passed_on)
        if cancelled or scheduled is not None:
            # Nothing locks these messages, so the cycle ends before another operation can look at them.
            cycle.work = max(cycle.work, space.bounds.work_max)
        space.held = changes
        try:
            self._cancel(cancelled)
            self._pass_on(passed_on)
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
                cycle.dead_lettered - dead_lettered,
                cycle.expired_messages - expired,
            )
        )
