"""Rules for clients that send, receive, settle and look at messages."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN
from broker.operations.browsing import Peek, Peeked, Watch
from broker.operations.general import Detach
from broker.operations.receiving import Demand, Recalled, Unmet, Withdraw
from broker.operations.sending import Sent
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
from tests.property.partition_driver import LOOKER, PLANS, TICK_MS, Plan
from tests.property.partition_model import ALL_SUBQUEUES, CHANGES, CLIENTS, SESSIONS, SUBQUEUES, properties
from tests.property.partition_outcomes import ran
from tests.property.partition_sessions import PartitionSessions
from tests.property.partition_transactions import DELAYS_MS, PartitionTransactions
from tests.support.partition_harness import NUMBER


class PartitionReceiving(PartitionTransactions, PartitionSessions):
    """A partition with links that send and receive."""

    @rule(client=st.sampled_from(CLIENTS), plan=PLANS)
    def send(self, client: int, plan: Plan) -> None:
        self.pass_time()
        send, made = self.new_messages(plan)
        first = self.model.next_number
        self.stored(made)  # so that the model knows what the same cycle grants
        answer = self.one(client, send)
        assert isinstance(answer, Sent) and (answer.cookie, answer.duplicates) == ("send", self.dropped)
        assert answer.first == first or not made

    def serves_sessions(self, subqueue: str) -> bool:
        return self.model.requires_session and subqueue == MAIN

    @rule(
        client=st.sampled_from(CLIENTS),
        subqueue=st.sampled_from(SUBQUEUES),
        count=st.integers(1, 6),
        tell_unmet=st.booleans(),
    )
    def demand(self, client: int, subqueue: str, count: int, tell_unmet: bool) -> None:
        self.catch_up(client)
        key = (client, subqueue)
        if self.serves_sessions(subqueue):
            held = self.model.held_by(client)
            if held is not None:
                held[1].clients[client] += count
            else:
                self.model.losers.append(client)
            assert not self.run_cycle([(client, Demand(subqueue, count, tell_unmet))])
            return
        if key in self.leaving:
            self.leaving.discard(key)
            self.model.demand[key] = 0
        self.model.demand[key] = self.model.demand.get(key, 0) + count
        answers = self.run_cycle([(client, Demand(subqueue, count, tell_unmet))]).get(client, [])
        assert (Unmet(NUMBER, subqueue) in answers) == (tell_unmet and self.model.demand[key] > 0)

    def all_ask(self, subqueue: str, count: int) -> None:
        """All clients ask in one cycle, which may be unable to serve them all."""
        self.catch_up()
        for each in CLIENTS:
            key = (each, subqueue)
            waited = 0 if key in self.leaving else self.model.demand.get(key, 0)
            self.leaving.discard(key)
            self.model.demand[key] = waited + count
        answers = self.run_cycle([(each, Demand(subqueue, count, tell_unmet=True)) for each in CLIENTS])
        for each in CLIENTS:
            is_told = Unmet(NUMBER, subqueue) in answers.get(each, [])
            assert is_told == (self.model.demand[each, subqueue] > 0), "it asks nobody else meanwhile"

    @precondition(
        lambda self: hasattr(self, "model") and any(self.model.available(each) for each in SUBQUEUES)
    )
    @rule(client=st.sampled_from(CLIENTS), count=st.integers(1, 6))
    def receive(self, client: int, count: int) -> None:
        """Ask where messages are available."""
        self.pass_time()
        if self.model.requires_session and self.model.held_by(client) is None and self.model.free_sessions:
            self.accept_session(client, None, False, False)
        for subqueue in SUBQUEUES:
            if self.model.available(subqueue):
                self.demand(client, subqueue, count, False)

    @rule(client=st.sampled_from(CLIENTS), plan=PLANS, count=st.integers(1, 6), with_others=st.booleans())
    def send_and_receive(self, client: int, plan: Plan, count: int, with_others: bool = False) -> None:
        """What clients do most of the time, so that there is something to settle."""
        self.send(client, plan)
        if with_others and not self.serves_sessions(MAIN):
            self.all_ask(MAIN, count)
        else:
            self.receive(client, count)

    @precondition(lambda self: self.has_messages())
    @rule(client=st.sampled_from(CLIENTS), subqueue=st.sampled_from(SUBQUEUES))
    def withdraw(self, client: int, subqueue: str) -> None:
        key = (client, subqueue)
        self.leaving.add(key)
        self.run_cycle([(client, Withdraw(subqueue))])
        if self.serves_sessions(subqueue):
            assert key not in self.leaving
            if (held := self.model.held_by(client)) is not None:
                held[1].clients[client] = 0
        elif key in self.leaving:
            assert any(each[1] == subqueue and each[0] != client for each in self.recalls), (
                "it waits for nothing"
            )
        else:
            self.model.demand[key] = 0

    @precondition(lambda self: self.someone_holds())
    @rule(data=st.data(), client=st.sampled_from(CLIENTS))
    def complete(self, data: st.DataObject, client: int) -> None:
        tokens = self.pick(data, client)
        failures = self.expected_failures(tokens)
        for token in tokens:
            message = self.model.find(token)
            if message is not None:
                self.lost_tokens.append(token)
                self.model.messages.remove(message)
        assert self.one(client, Complete(tokens, "done")) == Settled("done", failures)

    @precondition(lambda self: self.someone_holds())
    @rule(
        data=st.data(),
        client=st.sampled_from(CLIENTS),
        kept_ms=st.sampled_from([1, 500, 4_999, 5_000, 30_000]),
        renews=st.booleans(),
    )
    def settle_while_the_disk_is_slow(
        self, data: st.DataObject, client: int, kept_ms: int, renews: bool
    ) -> None:
        """A settlement that arrives in time counts, however long it is kept waiting; other due work happens
        after it."""
        self.catch_up(client)
        clock = self.harness.clock
        tokens = self.pick(data, client)
        failures = self.expected_failures(tokens)
        operation = RenewLocks(tokens, "late") if renews else Complete(tokens, "late")
        self.post(client, operation)
        clock.advance(kept_ms)
        clock.advance(-clock.monotonic_ms() % TICK_MS)
        for place, token in enumerate(tokens):
            message = self.model.find(token)
            if message is not None and message.lock is not None:
                if not renews:
                    self.lost_tokens.append(token)
                    self.model.messages.remove(message)
                elif message.lock.is_of_session:
                    failures[place] = Reason.NOT_ALLOWED
                else:
                    message.lock.until_ms = clock.monotonic_ms() + self.model.lock_ms
        self.note_lost_tokens()
        answers = self.run_cycle([]).get(client, [])
        until_ms = clock.monotonic_ms() + self.model.lock_ms
        assert (Renewed(until_ms, "late", failures) if renews else Settled("late", failures)) in answers

    @precondition(lambda self: self.someone_holds())
    @rule(
        data=st.data(),
        client=st.sampled_from(CLIENTS),
        changed=st.sampled_from(CHANGES),
        delay_ms=st.sampled_from(DELAYS_MS),
    )
    def abandon(self, data: st.DataObject, client: int, changed: bytes | None, delay_ms: int) -> None:
        tokens = self.pick(data, client)
        failures = self.expected_failures(tokens)
        ran["Abandon with a delay"] += delay_ms > 0
        for token in tokens:
            message = self.model.find(token)
            if message is not None:
                self.lost_tokens.append(token)
                self.model.failed_delivery(message, changed, self.delay(delay_ms))
        assert self.one(client, Abandon(tokens, changed, 7, delay_ms)) == Settled(7, failures)

    @precondition(lambda self: self.someone_holds())
    @rule(data=st.data(), client=st.sampled_from(CLIENTS), changed=st.sampled_from(CHANGES))
    def defer(self, data: st.DataObject, client: int, changed: bytes | None) -> None:
        tokens = self.pick(data, client)
        failures = self.expected_failures(tokens)
        for token in tokens:
            message = self.model.find(token)
            if message is not None:
                self.lost_tokens.append(token)
                self.model.defer(message, changed)
        assert self.one(client, Defer(tokens, changed)) == Settled(None, failures)

    @precondition(lambda self: self.someone_holds())
    @rule(data=st.data(), client=st.sampled_from(CLIENTS), changed=st.sampled_from(CHANGES))
    def dead_letter(self, data: st.DataObject, client: int, changed: bytes | None) -> None:
        tokens = self.pick(data, client)
        failures = self.expected_failures(tokens)
        for place, token in enumerate(tokens):
            message = self.model.find(token)
            if message is not None and message.subqueue == MAIN:
                self.lost_tokens.append(token)
                self.model.to_dead_letter(message, None, changed)
            elif message is not None:
                failures[place] = Reason.NOT_ALLOWED
        assert self.one(client, DeadLetter(tokens, changed)) == Settled(None, failures)

    @precondition(lambda self: self.someone_holds())
    @rule(data=st.data(), client=st.sampled_from(CLIENTS))
    def release(self, data: st.DataObject, client: int) -> None:
        tokens = self.pick(data, client)
        self.expected_failures(tokens)
        self.give_back(tokens)
        if data.draw(st.booleans()):
            self.run_cycle([(client, Release(tokens))])
        else:
            assert self.one(client, GiveBack(tokens)) == Settled(None)

    @precondition(lambda self: self.recalls)
    @rule(data=st.data())
    def answer_recall(self, data: st.DataObject) -> None:
        client, subqueue = self.recalls.pop(data.draw(st.integers(0, len(self.recalls) - 1)))
        held = [
            each.lock.token
            for each in self.held(client)
            if each.subqueue == subqueue and each.lock and not each.deferred
        ]
        tokens = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
        self.expected_failures(tokens)
        self.give_back(tokens)
        self.run_cycle([(client, Recalled(subqueue, tokens))])

    @precondition(lambda self: self.someone_holds())
    @rule(
        data=st.data(),
        client=st.sampled_from(CLIENTS),
        duration_ms=st.sampled_from([None, None, 1_000, 60_000]),
    )
    def renew(self, data: st.DataObject, client: int, duration_ms: int | None) -> None:
        tokens = self.pick(data, client)
        failures = self.expected_failures(tokens)
        until_ms = self.harness.clock.monotonic_ms() + (duration_ms or self.model.lock_ms)
        for place, token in enumerate(tokens):
            message = self.model.find(token)
            if message is not None and message.lock is not None:
                if message.lock.is_of_session:
                    failures[place] = Reason.NOT_ALLOWED
                else:
                    message.lock.until_ms = until_ms
        answer = self.one(client, RenewLocks(tokens, "renew", duration_ms))
        assert answer == Renewed(until_ms, "renew", failures)

    @rule(data=st.data(), client=st.sampled_from(CLIENTS))
    def detach(self, data: st.DataObject, client: int) -> None:
        """What the client has not seen goes back; so does everything of a session that it holds."""
        tokens = self.pick(data, client)
        self.expected_failures(tokens)
        self.give_back(tokens)
        if (held := self.model.held_by(client)) is not None:
            session, hold = held
            of_session = [
                each.lock.token
                for each in self.held(client)
                if each.lock is not None and each.lock.is_of_session
            ]
            del hold.clients[client]
            self.give_back(of_session)
            if not hold.clients:
                del self.model.holds[session]
        for subqueue in SUBQUEUES:
            self.model.demand[client, subqueue] = 0
            self.leaving.discard((client, subqueue))
        self.recalls = [each for each in self.recalls if each[0] != client]
        self.run_cycle([(client, Detach(tokens))])

    @precondition(lambda self: self.has_messages())
    @rule(
        client=st.sampled_from(CLIENTS),
        subqueue=st.sampled_from(ALL_SUBQUEUES),
        start=st.integers(0, 30),
        count=st.integers(1, 10),
        session=st.sampled_from([None, None, *SESSIONS]),
    )
    def peek(self, client: int, subqueue: str, start: int, count: int, session: bytes | None) -> None:
        self.catch_up(client)
        first = (NUMBER << 48) + start
        answer = self.one(client, Peek(subqueue, first, count, session_id=session))
        assert isinstance(answer, Peeked)
        expected = [
            each
            for each in self.model.in_order(subqueue)
            if each.number >= first and session in (None, each.session)
        ][:count]
        assert answer.sequence_numbers == [each.number for each in expected]
        assert answer.messages == [each.body for each in expected]
        for message, enqueued_ms, expires_ms in zip(
            expected, answer.enqueued_at_ms, answer.expires_at_ms, strict=True
        ):
            message.saw_enqueued(enqueued_ms, expires_ms)
        assert answer.delivery_counts == [each.deliveries for each in expected]
        assert answer.states == [each.state for each in expected]
        enqueued = [each.enqueued_ms or 0 for each in expected if each.scheduled_ms is None]
        assert enqueued == sorted(enqueued)
        assert list(map(properties, answer.changed)) == [properties(each.changed) for each in expected]

    @rule(subqueue=st.sampled_from(SUBQUEUES), start=st.integers(0, 30))
    def watch(self, subqueue: str, start: int) -> None:
        self.catch_up()
        if subqueue in self.watched:
            return
        self.watched[subqueue] = (NUMBER << 48) + start
        assert not self.run_cycle([(LOOKER, Watch(subqueue, self.watched[subqueue]))])
