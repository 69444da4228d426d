"""Rules for transactions: a send and settlements take effect together, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis.stateful import rule

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN
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
from tests.property.partition_driver import PLANS, PartitionDriver, Plan, identity_of, ran
from tests.property.partition_model import CHANGES, CLIENTS, SESSIONS, Message

KINDS = (Complete, Abandon, Defer, DeadLetter)
Settlement = Complete | Abandon | Defer | DeadLetter
DELAYS_MS = (0, 500, 5_000, 60_000)


class PartitionTransactions(PartitionDriver):
    """A partition to which transactions are posted."""

    @rule(data=st.data(), client=st.sampled_from(CLIENTS), plan=PLANS, sends=st.booleans())
    def transact(self, data: st.DataObject, client: int, plan: Plan, sends: bool) -> None:
        self.catch_up(client)
        send, made = self.new_messages(plan) if sends else (Send([], None), [])
        settlements = self.settlements(data, client)
        if (reason := self.expected_refusal(settlements)) is not None:
            ran["Transact refused"] += 1
            answer = self.one(client, Transact(send, settlements, "txn"))
            assert isinstance(answer, Failed) and (answer.reason, answer.cookie) == (reason, "txn")
            return
        self.apply(settlements)
        if sends:
            self.stored(made)
        assert self.one(client, Transact(send, settlements, "txn")) == Transacted(len(send.messages), "txn")

    @rule(data=st.data(), client=st.sampled_from(CLIENTS), plan=PLANS, sends=st.booleans())
    def transact_on_a_full_disk(self, data: st.DataObject, client: int, plan: Plan, sends: bool) -> None:
        """A transaction that sends is refused and keeps its locks; one that only settles goes through."""
        ran["Transact on a full disk"] += 1
        self.catch_up(client)
        send, made = self.new_messages(plan) if sends else (Send([], None), [])
        settlements = self.settlements(data, client)
        reason = self.expected_refusal(settlements)
        has_other = data.draw(st.booleans())
        if reason is None and sends and (made or has_other):
            reason = Reason.DISK_FULL
        if reason is None:
            self.apply(settlements)
        self.harness.log.fill_disk()
        operations: list[Operation] = [Transact(send, settlements, "txn"), Peek(MAIN, 0, 10)]
        if has_other:
            operations.insert(data.draw(st.integers(0, 2)), self.other_send())
        answers = self.run_cycle([(client, each) for each in operations])[client]
        self.harness.log.empty_disk()
        found = next(
            each for each in answers if isinstance(each, Transacted | Failed) and each.cookie == "txn"
        )
        assert (found.reason if isinstance(found, Failed) else None) == reason

    def other_send(self) -> Send:
        """A message that is not in the model."""
        send = Send([b"refused"], None, "send")
        if self.model.requires_session:
            send.columns = {"session_id": [SESSIONS[0]]}
        if self.detects_duplicates:
            send.identities = [identity_of("refused")]
        return send

    def settlements(self, data: st.DataObject, client: int) -> list[Settlement]:
        """Some settlements of different messages, now and then of the same one or with an invalid token."""
        tokens = self.pick(data, client) if data.draw(st.integers(0, 5)) else []
        made: list[Settlement] = []
        for token in tokens:
            kind = data.draw(st.sampled_from(KINDS))
            changed = data.draw(st.sampled_from(CHANGES))
            if kind is Complete:
                made.append(Complete([token]))
            elif kind is Abandon:
                made.append(Abandon([token], changed, delay_ms=data.draw(st.sampled_from(DELAYS_MS))))
            else:
                made.append(kind([token], changed))
        return made

    def expected_refusal(self, settlements: Sequence[Settlement]) -> Reason | None:
        self.pass_time()
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
                self.model.failed_delivery(message, settlement.changed, self.delay(settlement.delay_ms))
            case Defer():
                self.model.defer(message, settlement.changed)
            case DeadLetter():
                self.model.to_dead_letter(message, None, settlement.changed)

    def delay(self, delay_ms: int) -> tuple[int, int] | None:
        """When a delay that begins now ends, in monotonic and in wall time."""
        clock = self.harness.clock
        return (clock.monotonic_ms() + delay_ms, clock.now_ms() + delay_ms) if delay_ms else None
