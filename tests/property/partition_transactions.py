"""Rules for transactions: sends, settlements, schedules, cancellations and sends to other entities take
effect together, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, TRANSFER
from broker.identifiers import LockToken
from broker.operations.browsing import Peek
from broker.operations.columns import DESTINATION
from broker.operations.general import Failed
from broker.operations.interface import Operation
from broker.operations.scheduling import BreakPromise, Promised, PromiseNumbers
from broker.operations.sending import Send
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Settled
from broker.operations.transactions import Transact, Transacted
from tests.property.partition_driver import LOOKER, PLANS, PartitionDriver, Plan, identity_of
from tests.property.partition_model import CHANGES, CLIENTS, SESSIONS, Message
from tests.property.partition_outcomes import ran

KINDS = (Complete, Abandon, Defer, DeadLetter)
Settlement = Complete | Abandon | Defer | DeadLetter
DELAYS_MS = (0, 500, 5_000, 60_000)
LATER_MS = (-1_000, 500, 5_000, 30_000, 3_600_000)


@dataclass
class Parts:
    """A transaction, and what it stores."""

    operation: Transact
    ids_before: dict[str, int | None]
    """The message-ids that were known before it."""
    made: list[Message] = field(default_factory=list)
    """Those that get the next numbers …"""
    scheduled: list[Message] = field(default_factory=list)
    """… and those that have promised ones."""

    @property
    def count(self) -> int:
        """How many messages it sends, duplicates or not."""
        transfers = self.operation.transfers
        count = len(self.operation.send.messages) + len(self.operation.promised)
        return count + (len(transfers.messages) if transfers is not None else 0)

    @property
    def stores(self) -> bool:
        return bool(self.made or self.scheduled)


class PartitionTransactions(PartitionDriver):
    """A partition to which transactions are posted."""

    @rule(count=st.integers(1, 3))
    def promise_numbers(self, count: int) -> None:
        """A client is about to schedule messages in a transaction."""
        self.catch_up()
        first = self.model.next_number
        self.model.next_number += count
        self.model.promises[first] = count
        assert self.one(LOOKER, PromiseNumbers(count, "promise")) == Promised(first, "promise")

    @precondition(lambda self: hasattr(self, "model") and self.model.promises)
    @rule(data=st.data())
    def break_promise(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from(list(self.model.promises)))
        del self.model.promises[first]
        assert self.one(LOOKER, BreakPromise(first, "break")) == Settled("break")

    @rule(data=st.data(), client=st.sampled_from(CLIENTS), plan=PLANS, sends=st.booleans())
    def transact(self, data: st.DataObject, client: int, plan: Plan, sends: bool) -> None:
        self.catch_up(client)
        self.carry_out(client, self.parts(data, client, plan, sends))

    def carry_out(self, client: int, parts: Parts) -> None:
        """Commit a transaction."""
        if (reason := self.expected_refusal(parts.operation)) is not None:
            ran["Transact refused"] += 1
            self.forget(parts)
            answer = self.one(client, parts.operation)
            assert isinstance(answer, Failed) and (answer.reason, answer.cookie) == (reason, "txn")
            return
        self.count_parts(parts)
        self.apply(parts)
        assert self.one(client, parts.operation) == Transacted(parts.count, "txn")

    @rule(data=st.data(), client=st.sampled_from(CLIENTS), plan=PLANS)
    def transact_schedules(self, data: st.DataObject, client: int, plan: Plan) -> None:
        """What a client does that schedules messages: the promise, something else, the transaction."""
        self.promise_numbers(data.draw(st.integers(1, 3)))
        if data.draw(st.booleans()):
            self.promise_numbers(1)
        self.transact(data, client, plan, data.draw(st.booleans()))

    @rule(data=st.data(), client=st.sampled_from(CLIENTS), plan=PLANS, sends=st.booleans())
    def transact_on_a_full_disk(self, data: st.DataObject, client: int, plan: Plan, sends: bool) -> None:
        """A transaction that sends is refused and keeps its locks; one that only settles goes through."""
        ran["Transact on a full disk"] += 1
        self.catch_up(client)
        parts = self.parts(data, client, plan, sends)
        reason = self.expected_refusal(parts.operation)
        # Behind a transaction that cancels, other operations wait for the next cycle.
        has_other = not parts.operation.cancelled and data.draw(st.booleans())
        if reason is None and parts.count and (parts.stores or has_other):
            reason = Reason.DISK_FULL
            self.use_promises(parts)
        if reason is None:
            self.apply(parts)
        else:
            self.forget(parts)
        self.harness.log.fill_disk()
        operations: list[Operation] = [parts.operation, Peek(MAIN, 0, 10)]
        if has_other:
            operations.insert(data.draw(st.integers(0, 2)), self.other_send())
        answers = self.run_cycle([(client, each) for each in operations])[client]
        self.harness.log.empty_disk()
        found = next(
            each for each in answers if isinstance(each, Transacted | Failed) and each.cookie == "txn"
        )
        assert (found.reason if isinstance(found, Failed) else None) == reason

    # --- the parts of a transaction -------------------------------------------------------------------------

    def parts(self, data: st.DataObject, client: int, plan: Plan, sends: bool) -> Parts:
        """A transaction that does some of what it can do."""
        operation = Transact(Send([], None), [], "txn")
        parts = Parts(operation, dict(self.sent_ids))
        if sends:
            operation.send, parts.made = self.new_messages(plan)
            self.note_ids()
        if data.draw(st.integers(0, 5)):
            operation.settlements = self.settlements(data, self.pick(data, client))
        if data.draw(st.integers(0, 2)) == 0:
            operation.cancelled = self.some_scheduled(data)
        if data.draw(st.integers(0, 2)) == 0:
            count: int = data.draw(st.integers(1, 3))
            self.add_transfers(parts, replace(plan, count=count))
        if bool(self.model.promises) and data.draw(st.integers(0, 3)):
            self.add_scheduled(data, parts, plan)
        return parts

    def everything(self, data: st.DataObject, client: int, plan: Plan) -> Parts:
        """A transaction that does all that it can do, for a client that holds messages, when a message is
        scheduled and numbers are promised."""
        operation = Transact(Send([], None), [], "txn")
        parts = Parts(operation, dict(self.sent_ids))
        operation.send, parts.made = self.new_messages(plan)
        self.note_ids()
        operation.settlements = self.settlements(
            data, [each.lock.token for each in self.held(client) if each.lock is not None]
        )
        operation.cancelled = [each.number for each in self.model.messages if each.scheduled_ms is not None]
        self.add_transfers(parts, plan)
        self.add_scheduled(data, parts, plan)
        return parts

    def note_ids(self) -> None:
        """Know the ids of the messages made last, of which the same transaction may make duplicates."""
        if self.detects_duplicates:
            self.sent_ids.update(dict.fromkeys(self.ids_made, self.harness.clock.monotonic_ms()))

    def some_scheduled(self, data: st.DataObject) -> list[int]:
        """Numbers to cancel, now and then one that is not scheduled."""
        scheduled = [each.number for each in self.model.messages if each.scheduled_ms is not None]
        if not scheduled or data.draw(st.integers(0, 7)) == 0:
            others = [each.number for each in self.model.in_order(MAIN)][:2]
            scheduled += [*others, self.model.next_number + 7]
        return data.draw(st.lists(st.sampled_from(scheduled), min_size=1, max_size=3))

    def add_transfers(self, parts: Parts, plan: Plan) -> None:
        """Messages for another entity, which drops duplicates itself."""
        ids, self.detects_duplicates = self.detects_duplicates, False
        send, made = self.new_messages(replace(plan, later_ms=None))
        self.detects_duplicates = ids
        send.columns = {**send.columns, DESTINATION: [b"there"] * plan.count}
        for message in made:
            message.number += len(parts.made)
            message.subqueue = TRANSFER
        parts.operation.transfers = send
        parts.made = [*parts.made, *made]

    def add_scheduled(self, data: st.DataObject, parts: Parts, plan: Plan) -> None:
        """Messages with promised numbers: one or two whole promises, now and then only a part."""
        known = list(self.model.promises)
        firsts = sorted(data.draw(st.lists(st.sampled_from(known), unique=True, min_size=1, max_size=2)))
        numbers = [first + place for first in firsts for place in range(self.model.promises[first])][:5]
        if data.draw(st.integers(0, 9)) == 0:
            numbers = numbers[1:] or [self.model.next_number + 7]
        elif self.model.used_promises and data.draw(st.integers(0, 9)) == 0:
            numbers = self.model.used_promises[-1]
        times = sorted(
            self.time_of_its_own(data.draw(st.sampled_from(LATER_MS)), parts.made) for _ in numbers
        )
        send, made = self.new_messages(replace(plan, count=len(numbers), later_ms=None), surely_stores=True)
        self.note_ids()
        send.scheduled_ms = [self.asked_time(each) for each in times]
        stored = [place for place in range(len(numbers)) if place not in self.dropped]
        for message, place in zip(made, stored, strict=True):
            message.number = numbers[place]
            message.scheduled_ms = times[place]
        parts.operation.scheduled, parts.operation.promised = send, numbers
        parts.scheduled = made

    def use_promises(self, parts: Parts) -> None:
        """The promises hold for one attempt."""
        promised = list(parts.operation.promised)
        for first in set(self.model.promises) & set(promised):
            del self.model.promises[first]
        if promised:
            self.model.used_promises.append(promised)

    def forget(self, parts: Parts) -> None:
        """The transaction is going to be refused."""
        self.sent_ids = parts.ids_before

    def count_parts(self, parts: Parts) -> None:
        operation = parts.operation
        ran["Transact sends"] += bool(operation.send.messages)
        ran["Transact settles"] += bool(operation.settlements)
        ran["Transact schedules"] += bool(operation.promised)
        ran["Transact cancels"] += bool(operation.cancelled)
        ran["Transact transfers"] += operation.transfers is not None
        ran["Transact everything"] += bool(
            operation.settlements and operation.promised and operation.cancelled and operation.transfers
        )

    def other_send(self) -> Send:
        """A message that is not in the model."""
        send = Send([b"refused"], None, "send")
        if self.model.requires_session:
            send.columns = {"session_id": [SESSIONS[0]]}
        if self.detects_duplicates:
            send.identities = [identity_of("refused")]
        return send

    def settlements(self, data: st.DataObject, tokens: Sequence[LockToken]) -> list[Settlement]:
        """A settlement for each token."""
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

    def expected_refusal(self, operation: Transact) -> Reason | None:
        self.pass_time()
        if (reason := self.settlements_refused(operation.settlements)) is not None:
            return reason
        scheduled = {each.number for each in self.model.messages if each.scheduled_ms is not None}
        if any(number not in scheduled for number in operation.cancelled):
            return Reason.MESSAGE_NOT_FOUND
        left = list(operation.promised)
        while left:
            count = self.model.promises.get(left[0], 0)
            if not count or left[:count] != list(range(left[0], left[0] + count)):
                return Reason.PARTITION_UNAVAILABLE
            del left[:count]
        return None

    def settlements_refused(self, settlements: Sequence[Settlement]) -> Reason | None:
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

    def apply(self, parts: Parts) -> None:
        """Apply a transaction that is possible to the model."""
        for settlement in parts.operation.settlements:
            for token in settlement.tokens:
                message = self.model.find(token)
                assert message is not None
                self.lost_tokens.append(token)
                self.apply_one(settlement, message)
        cancelled = set(parts.operation.cancelled)
        self.model.messages = [each for each in self.model.messages if each.number not in cancelled]
        for message in parts.made:
            self.model.add(message)
        if parts.scheduled:
            self.use_promises(parts)
            self.model.messages += parts.scheduled

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
