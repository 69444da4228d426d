"""Rules for operations that clients ask for by sequence number: deferred and scheduled messages, deleting,
purging, and sending dead letters again."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN
from broker.identifiers import ClientId
from broker.operations.deleting import Delete, Deleted, DeletedExactly, DeleteExactly
from broker.operations.general import Failed
from broker.operations.message_states import MessageState
from broker.operations.receiving import Locked, LockExactly, ReceiveDeferred
from broker.operations.redriving import FindDeadLetters, Found, Redrive, Redriven
from broker.operations.scheduling import CancelScheduled, Reschedule
from broker.operations.settling import Settled
from tests.property.partition_driver import LOOKER, PartitionDriver
from tests.property.partition_model import (
    CLIENTS,
    SESSIONS,
    SUBQUEUES,
    TTL_DEFAULT_MS,
    Message,
    properties,
)
from tests.property.partition_outcomes import ran
from tests.support.partition_harness import NUMBER

REASON = "MaxDeliveryCountExceeded"


class PartitionOwnOperations(PartitionDriver):
    """A partition whose clients name messages by their numbers."""

    def some_numbers(self, data: st.DataObject, candidates: list[int]) -> list[int]:
        candidates = [*candidates, self.model.next_number + 7]
        return data.draw(st.lists(st.sampled_from(candidates), unique=True, min_size=1, max_size=3))

    def lock_named(self, client: int, answer: Locked, named: list[Message], session: bytes | None) -> None:
        """Check the first of some messages that a client has named, as many as one answer may hold."""
        if self.harness.limits.bounds.granted_bytes_max > 100_000:
            assert len(answer.tokens) == len(named)
        assert len(answer.tokens) >= min(len(named), 1)
        self.check_columns(answer)
        for index, message in enumerate(named[: len(answer.tokens)]):
            assert answer.sequence_numbers[index] == message.number
            until_ms = self.model.holds[session].until_ms if session is not None else None
            self.lock(client, message, answer, index, until_ms)

    @precondition(lambda self: self.has_messages() and any(each.deferred for each in self.model.messages))
    @rule(
        data=st.data(),
        client=st.sampled_from(CLIENTS),
        subqueue=st.sampled_from(SUBQUEUES),
        session=st.sampled_from([None, None, None, *SESSIONS]),
    )
    def receive_deferred(
        self, data: st.DataObject, client: int, subqueue: str, session: bytes | None
    ) -> None:
        """Some messages, of which some may not be deferred."""
        self.catch_up()
        deferred = [each.number for each in self.model.in_order(subqueue) if each.deferred]
        self.fetch(client, subqueue, self.some_numbers(data, deferred), session)

    def fetch(self, client: int, subqueue: str, numbers: list[int], session: bytes | None) -> None:
        """In a queue with sessions, only the holder of their session receives deferred messages: its own
        session, or one that it names falsely."""
        of_session = self.model.requires_session and subqueue == MAIN
        held = self.model.held_by(client)
        session = held[0] if held is not None and session is None else session or SESSIONS[0]
        found = {
            each.number: each
            for each in self.model.in_order(subqueue)
            if each.deferred and not each.is_locked and (not of_session or each.session == session)
        }
        receive = ReceiveDeferred(subqueue, numbers, "fetch")
        if of_session:
            receive.session_id, receive.holder = session, ClientId(client)
        answer = self.one(LOOKER, receive)
        reason = None
        if of_session and (held is None or held[0] != session):
            reason = Reason.SESSION_LOCK_LOST
        elif any(number not in found for number in numbers):
            reason = Reason.MESSAGE_NOT_FOUND
        if reason is not None:
            assert isinstance(answer, Failed) and (answer.reason, answer.cookie) == (reason, "fetch")
            return
        assert isinstance(answer, Locked) and answer.deferred and answer.cookie == "fetch" and answer.tokens
        self.lock_named(client, answer, [found[each] for each in numbers], session if of_session else None)

    @precondition(lambda self: self.has_messages() and any(each.scheduled_ms for each in self.model.messages))
    @rule(data=st.data(), client=st.sampled_from(CLIENTS))
    def cancel_scheduled(self, data: st.DataObject, client: int) -> None:
        self.catch_up()
        scheduled = [each for each in self.model.messages if each.scheduled_ms is not None]
        others = [each.number for each in self.model.in_order(MAIN) if each.scheduled_ms is None][:2]
        numbers = self.some_numbers(data, [*(each.number for each in scheduled), *others])
        found = {each.number: each for each in scheduled}
        missing = {place for place, number in enumerate(numbers) if number not in found}
        for number in numbers:
            if number in found:
                self.model.messages.remove(found[number])
        answer = self.one(client, CancelScheduled(numbers, "cancel"))
        assert answer == Settled("cancel", dict.fromkeys(missing, Reason.MESSAGE_NOT_FOUND))

    @precondition(lambda self: self.has_messages() and any(each.scheduled_ms for each in self.model.messages))
    @rule(data=st.data(), later_ms=st.sampled_from([-1_000, 500, 30_000, 3_600_000]))
    def reschedule(self, data: st.DataObject, later_ms: int) -> None:
        self.catch_up()
        scheduled = {each.number: each for each in self.model.messages if each.scheduled_ms is not None}
        others = [each.number for each in self.model.in_order(MAIN) if each.scheduled_ms is None][:2]
        numbers = sorted(self.some_numbers(data, [*scheduled, *others]))
        missing = {place for place, number in enumerate(numbers) if number not in scheduled}
        at_ms = self.time_of_its_own(later_ms)
        for number in numbers:
            if number in scheduled:
                scheduled[number].scheduled_ms = at_ms
        answer = self.one(LOOKER, Reschedule(numbers, self.asked_time(at_ms), "time"))
        assert answer == Settled("time", dict.fromkeys(missing, Reason.MESSAGE_NOT_FOUND))

    @precondition(lambda self: self.has_messages())
    @rule(
        client=st.sampled_from(CLIENTS),
        subqueue=st.sampled_from(SUBQUEUES),
        count=st.integers(1, 6),
        start=st.integers(0, 20),
        age_ms=st.sampled_from([-3_600_001, -1, 0, 500, 30_000]),
        states=st.lists(st.sampled_from(MessageState), unique=True, min_size=1),
    )
    def purge(
        self, client: int, subqueue: str, count: int, start: int, age_ms: int, states: list[MessageState]
    ) -> None:
        self.catch_up(client)
        first, before_ms = (NUMBER << 48) + start, self.harness.clock.now_ms() - age_ms
        chosen: list[Message] = []
        next_number = None
        for each in self.model.in_order(subqueue):
            enqueued_ms = each.scheduled_ms or each.enqueued_ms
            assert enqueued_ms is not None
            if each.number < first:
                continue
            if each.scheduled_ms is None and enqueued_ms >= before_ms:
                break
            if len(chosen) == count:
                next_number = each.number
                break
            if each.state in states and enqueued_ms < before_ms and not each.is_locked:
                chosen.append(each)
        for message in chosen:
            self.model.messages.remove(message)
        answer = self.one(client, Delete(subqueue, count, before_ms, first, "purge", states))
        assert isinstance(answer, Deleted) and answer.cookie == "purge"
        assert (answer.count, answer.next_sequence_number) == (len(chosen), next_number)

    @precondition(lambda self: self.has_messages())
    @rule(data=st.data(), client=st.sampled_from(CLIENTS), subqueue=st.sampled_from(SUBQUEUES))
    def delete_exactly(self, data: st.DataObject, client: int, subqueue: str) -> None:
        self.catch_up()
        here = {each.number: each for each in self.model.in_order(subqueue)}
        numbers = self.some_numbers(data, list(here)[-8:])
        missing = [each for each in numbers if each not in here]
        locked = [each for each in numbers if each in here and here[each].is_locked]
        for number in numbers:
            if number in here and number not in locked:
                self.model.messages.remove(here[number])
        answer = self.one(client, DeleteExactly(subqueue, numbers, "delete"))
        assert isinstance(answer, DeletedExactly) and answer.cookie == "delete"
        assert (answer.locked, answer.missing) == (locked, missing)

    # --- dead letters ---------------------------------------------------------------------------------------

    def has_dead_letters(self) -> bool:
        return hasattr(self, "model") and bool(self.model.in_order(DEAD_LETTER))

    @precondition(lambda self: self.has_dead_letters())
    @rule(
        client=st.sampled_from(CLIENTS),
        count=st.integers(1, 5),
        reason=st.sampled_from([None, None, REASON]),
        is_full=st.booleans(),
        time_to_live_ms=st.sampled_from([None, 3_000]),
        late_ms=st.sampled_from([0, 0, 0, 6_000]),
    )
    def redrive(
        self,
        client: int,
        count: int,
        reason: str | None,
        is_full: bool,
        time_to_live_ms: int | None,
        late_ms: int,
    ) -> None:
        """Send dead letters again as the front end does: find them, lock them, enqueue them anew."""
        self.catch_up()
        found = [
            each
            for each in self.model.in_order(DEAD_LETTER)
            if not each.is_locked
            and each.state is MessageState.ACTIVE
            and reason in (None, properties(each.changed).get("DeadLetterReason"))
        ]
        answer = self.one(client, FindDeadLetters(DEAD_LETTER, count, 1 << 60, reason))
        assert isinstance(answer, Found)
        assert answer.sequence_numbers == [each.number for each in found[:count]]
        locked = self.one(client, LockExactly(DEAD_LETTER, answer.sequence_numbers, "again"))
        assert isinstance(locked, Locked) and locked.deferred and locked.cookie == "again"
        self.lock_named(client, locked, found[:count], None)
        if late_ms:
            self.harness.clock.advance(late_ms)
            self.note_lost_tokens()
            self.run_cycle([])
        lives = None if time_to_live_ms is None else [time_to_live_ms] * len(locked.tokens)
        operation = Redrive(locked.tokens, locked.messages, lives, "again")
        if is_full:
            self.redrive_in_vain(client, operation)
            return
        numbers = []
        for token in locked.tokens:
            message = self.model.find(token)
            numbers.append(0 if message is None else self.model.next_number)
            if message is not None:
                self.lost_tokens.append(token)
                self.model.messages.remove(message)
                self.model.add(self.sent_again(message, time_to_live_ms))
        assert self.one(client, operation) == Redriven(numbers, "again")

    def redrive_in_vain(self, client: int, operation: Redrive) -> None:
        """On a full disk, the dead letters stay where they are and are available again."""
        held = [each for each in map(self.model.find, operation.tokens) if each is not None]
        ran["Redrive on a full disk"] += bool(held)
        self.give_back(operation.tokens)
        self.harness.log.fill_disk()
        answer = self.one(client, operation)
        self.harness.log.empty_disk()
        if held:
            assert isinstance(answer, Failed) and answer.reason is Reason.DISK_FULL
        else:
            assert answer == Redriven([0] * len(operation.tokens), "again")

    def sent_again(self, message: Message, time_to_live_ms: int | None) -> Message:
        clock = self.harness.clock
        lives_ms = min(time_to_live_ms or TTL_DEFAULT_MS, TTL_DEFAULT_MS)
        until_ms = clock.monotonic_ms() + lives_ms
        return Message(
            message.body, self.model.next_number, None, clock.now_ms(), lives_ms, until_ms, message.session
        )
