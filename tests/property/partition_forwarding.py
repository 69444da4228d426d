"""Rules for forwarding, as a partition sees it: messages that another entity hands over, messages that are
taken out to be passed on, and those that no entity takes."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER, TRANSFER_DEAD_LETTER
from broker.operations.general import Failed
from broker.operations.receiving import Locked
from broker.operations.settling import Complete, Release, Settled
from broker.operations.transfers import FailTransfer, HandedOver, HandOver, LockNext
from tests.property.partition_driver import FORWARDER, PLANS, PartitionDriver, Plan, identity_of
from tests.property.partition_model import CHANGES, SESSIONS, Message, properties
from tests.property.partition_outcomes import ran

SOURCES = (b"there/0/0", b"there/1/0")
NUMBERS = st.lists(st.integers(1, 12), min_size=5, max_size=5)
FORWARDED = (MAIN, DEAD_LETTER, TRANSFER)
LOCK_MS = st.sampled_from([1_000, 60_000])


class PartitionForwarding(PartitionDriver):
    """A partition that messages come to, and go from, without a client."""

    # --- messages that come ---------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        source=st.sampled_from(SOURCES),
        plan=PLANS,
        count=st.integers(0, 5),
        numbers=NUMBERS,
        is_full=st.integers(0, 4),
    )
    def hand_over(
        self,
        data: st.DataObject,
        source: bytes,
        plan: Plan,
        count: int,
        numbers: list[int],
        is_full: int,
    ) -> None:
        """Each number is stored once, as long as it is kept."""
        self.catch_up()
        before, numbers = self.model.origins.get(source, []), numbers[:count]
        keeps = data.draw(st.none() | st.lists(st.sampled_from(before), unique=True)) if before else None
        if not is_full:
            keeps = None  # what is forgotten then would come back with a restart
        new = [
            place
            for place, number in enumerate(numbers)
            if number not in before and number not in numbers[:place]
        ]
        ran["handed over again"] += count - len(new)
        operation, made = self.handing_over(source, numbers, new, plan)
        operation.keeps = keeps
        known = [place for place in range(count) if place not in new]
        kept = [each for each in before if keeps is None or each in keeps]
        others = [each for each in kept if each not in numbers]
        fresh = [numbers[place] for place in new]
        again = list(dict.fromkeys(numbers[place] for place in known if numbers[place] not in fresh))
        if not is_full and made:
            ran["HandOver on a full disk"] += 1
            self.model.origins[source] = [*others, *again]
        else:
            self.model.origins[source] = [*others, *again, *fresh]
            self.stored(made)
        dropped = [new[place] for place in self.dropped]
        if not is_full:
            self.harness.log.fill_disk()
        answer = self.one(FORWARDER, operation)
        self.harness.log.empty_disk()
        if not is_full and made:
            assert isinstance(answer, Failed) and answer.reason is Reason.DISK_FULL
        else:
            assert isinstance(answer, HandedOver) and answer.cookie == "hand over"
            assert (answer.known, answer.duplicates, sorted(answer.kept)) == (known, dropped, sorted(others))

    def handing_over(
        self, source: bytes, numbers: list[int], new: list[int], plan: Plan
    ) -> tuple[HandOver, list[Message]]:
        """The operation, and what it stores. The messages that are known already look different now."""
        send, made = self.new_messages(replace(plan, count=len(new)))
        operation = HandOver(source, numbers, [b"again"] * len(numbers), cookie="hand over")
        lives: list[int | None] = [None] * len(numbers)
        times: list[int | None] = [None] * len(numbers)
        sessions: list[int | bytes | None] = [SESSIONS[0]] * len(numbers)
        identities = [identity_of("again")] * len(numbers)
        messages = list(operation.messages)
        for index, place in enumerate(new):
            messages[place] = send.messages[index]
            lives[place] = send.time_to_live_ms[index] if send.time_to_live_ms else None
            times[place] = send.scheduled_ms[index] if send.scheduled_ms else None
            sessions[place] = plan.sessions[index]
            identities[place] = send.identities[index] if send.identities else b""
        operation.messages, operation.time_to_live_ms, operation.scheduled_ms = messages, lives, times
        if self.model.requires_session:
            operation.columns = {"session_id": sessions}
        if self.detects_duplicates:
            operation.identities = identities
        return operation, made

    # --- messages that go -----------------------------------------------------------------------------------

    def forwarded(self) -> list[str]:
        """The subqueues from which messages are passed on now."""
        if not hasattr(self, "model"):
            return []
        return [
            each
            for each in FORWARDED
            if self.model.available(each) and not (each == MAIN and self.model.requires_session)
        ]

    @precondition(lambda self: self.forwarded())
    @rule(data=st.data(), count=st.integers(1, 5), duration_ms=LOCK_MS, changed=st.sampled_from(CHANGES))
    def pass_on(self, data: st.DataObject, count: int, duration_ms: int, changed: bytes | None) -> None:
        """Take messages out as a lane does, and say what has become of them: another entity has them, none
        takes them, or nobody knows yet."""
        self.catch_up()
        if not (places := self.forwarded()):
            return
        subqueue = data.draw(st.sampled_from(places))
        locked = self.lock_next(subqueue, count, duration_ms)
        outcome = data.draw(st.sampled_from([Complete, Complete, FailTransfer, Release, None]))
        if outcome is None or not locked.tokens:
            return
        for token in locked.tokens:
            message = self.model.find(token)
            assert message is not None
            self.lost_tokens.append(token)
            message.lock = None
            if outcome is Complete:
                self.model.messages.remove(message)
            elif outcome is FailTransfer:
                self.model.to_transfer_dead_letter(message, changed)
        if outcome is Release:
            self.run_cycle([(FORWARDER, Release(locked.tokens))])
        elif outcome is Complete:
            assert self.one(FORWARDER, Complete(locked.tokens, "passed on")) == Settled("passed on")
        else:
            operation = FailTransfer(locked.tokens, changed, "not taken")
            assert self.one(FORWARDER, operation) == Settled("not taken")
            self.check_reasons()

    def lock_next(self, subqueue: str, count: int, duration_ms: int) -> Locked:
        """Lock the oldest messages."""
        available = self.model.available(subqueue)
        answer = self.one(FORWARDER, LockNext(subqueue, count, 1 << 20, duration_ms, "next"))
        assert isinstance(answer, Locked) and answer.deferred and answer.cookie == "next"
        expected = [each.number for each in available[:count]]
        if self.harness.limits.bounds.granted_bytes_max > 100_000:
            assert answer.sequence_numbers == expected
        assert answer.tokens and answer.sequence_numbers == expected[: len(answer.tokens)]
        self.check_columns(answer)
        for index, message in enumerate(available[: len(answer.tokens)]):
            self.lock(FORWARDER, message, answer, index, duration_ms=duration_ms)
        return answer

    @precondition(
        lambda self: hasattr(self, "model") and any(each.lock is not None for each in self.model.messages)
    )
    @rule(data=st.data(), changed=st.sampled_from(CHANGES))
    def fail_transfer(self, data: st.DataObject, changed: bytes | None) -> None:
        """Nobody takes some of the messages that are locked."""
        tokens = self.pick(data, FORWARDER)
        failures = self.expected_failures(tokens)
        for token in tokens:
            message = self.model.find(token)
            if message is not None:
                self.lost_tokens.append(token)
                self.model.to_transfer_dead_letter(message, changed)
        answer = self.one(FORWARDER, FailTransfer(tokens, changed, "not taken"))
        assert answer == Settled("not taken", failures)
        self.check_reasons()

    def check_reasons(self) -> None:
        """What nobody takes carries the properties that say why."""
        found = self.partition.messages.find(TRANSFER_DEAD_LETTER).references
        for message in self.model.in_order(TRANSFER_DEAD_LETTER):
            assert properties(found[message.number].changed) == properties(message.changed)
