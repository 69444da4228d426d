"""Rules for transactions: a send and settlements take effect together, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis.stateful import rule

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN
from broker.message.changes import merge_changes
from broker.operations import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Failed,
    LockToken,
    Operation,
    Peek,
    Send,
    Transact,
    Transacted,
)
from tests.property.partition_faults import PartitionFaults
from tests.property.partition_model import CHANGES, CLIENTS, Message

KINDS = (Complete, Abandon, Defer, DeadLetter)
Settlement = Complete | Abandon | Defer | DeadLetter


class PartitionTransactions(PartitionFaults):
    """A partition to which transactions are posted."""

    @rule(data=st.data(), client=st.sampled_from(CLIENTS), count=st.integers(0, 3))
    def transact(self, data: st.DataObject, client: int, count: int) -> None:
        self.catch_up(client)
        send, made = self.new_messages(count, 10, None)
        settlements = self.settlements(data, client)
        if (reason := self.expected_refusal(settlements)) is not None:
            answer = self.one(client, Transact(send, settlements, "txn"))
            assert isinstance(answer, Failed) and (answer.reason, answer.cookie) == (reason, "txn")
            return
        self.apply(settlements)
        self.model.messages += made
        self.model.next_number += count
        assert self.one(client, Transact(send, settlements, "txn")) == Transacted(count, "txn")

    @rule(data=st.data(), client=st.sampled_from(CLIENTS), count=st.integers(0, 2))
    def transact_on_a_full_disk(self, data: st.DataObject, client: int, count: int) -> None:
        """A transaction that sends is refused and keeps its locks; one that only settles goes through."""
        self.catch_up(client)
        send, _ = self.new_messages(count, 10, None)
        settlements = self.settlements(data, client)
        reason = self.expected_refusal(settlements)
        if reason is None and count:
            reason = Reason.DISK_FULL
        if reason is None:
            self.apply(settlements)
        self.harness.log.fill_disk()
        operations: list[Operation] = [Transact(send, settlements, "txn"), Peek(MAIN, 0, 10)]
        if data.draw(st.booleans()):
            operations.insert(data.draw(st.integers(0, 2)), Send([b"refused"], None, "send"))
        answers = self.run_batch([(client, each) for each in operations])[client]
        self.harness.log.empty_disk()
        found = next(
            each for each in answers if isinstance(each, Transacted | Failed) and each.cookie == "txn"
        )
        assert (found.reason if isinstance(found, Failed) else None) == reason

    def settlements(self, data: st.DataObject, client: int) -> list[Settlement]:
        """Some settlements of different messages, now and then of the same one or with an invalid token."""
        tokens = self.pick(data, client) if data.draw(st.integers(0, 5)) else []
        made: list[Settlement] = []
        for token in tokens:
            kind = data.draw(st.sampled_from(KINDS))
            changed = data.draw(st.sampled_from(CHANGES))
            made.append(Complete([token]) if kind is Complete else kind([token], changed))
        return made

    def expected_refusal(self, settlements: Sequence[Settlement]) -> Reason | None:
        self.model.pass_time(self.harness.clock.monotonic_ms())
        seen: set[LockToken] = set()
        for settlement in settlements:
            for token in settlement.tokens:
                message = self.model.find(token)
                if message is None or token in seen:
                    return Reason.LOCK_LOST
                if isinstance(settlement, DeadLetter) and message.subqueue != MAIN:
                    return Reason.NOT_ALLOWED
                seen.add(token)
        return None

    def apply(self, settlements: Sequence[Settlement]) -> None:
        """Apply settlements that are all possible to the model."""
        for settlement in settlements:
            for token in settlement.tokens:
                message = self.model.find(token)
                assert message is not None
                self.lost_tokens.append(token)
                self.apply_one(settlement, message)

    def apply_one(self, settlement: Settlement, message: Message) -> None:
        match settlement:
            case Complete():
                self.model.messages.remove(message)
            case Abandon():
                self.model.failed_delivery(message, settlement.changed)
            case Defer():
                message.lock = None
                message.deliveries += message.subqueue == MAIN
                message.deferred = True
                message.changed = merge_changes(message.changed, settlement.changed)
            case DeadLetter():
                self.model.to_dead_letter(message, None, settlement.changed)
