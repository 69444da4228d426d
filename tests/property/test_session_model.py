"""Check message sessions against a naive model: random operations, time, restarts, small and large logs.

The model is a list of messages and a table of locks. A partition must give each holder of a session the
session's oldest available messages, as many as it wants, and nobody else any.

`make simulate` runs more examples, from a seed that it draws (`partition_driver.py`). A failure prints the
line that replays it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import hypothesis
import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.identifiers import ClientId, LockToken
from broker.operations import (
    Abandon,
    Answer,
    Complete,
    DeadLetter,
    Defer,
    Demand,
    Detach,
    Failed,
    Locked,
    Operation,
    Peek,
    Peeked,
    ReceiveDeferred,
    Send,
    Sent,
    Settled,
    Updated,
    Withdraw,
    Withdrawn,
)
from broker.partition.task import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from broker.session_operations import (
    AcceptSession,
    GetSessionState,
    ListSessions,
    RenewSession,
    SessionAccepted,
    SessionList,
    SessionLost,
    SessionRenewed,
    SessionState,
    SetSessionState,
)
from tests.property.partition_driver import EXAMPLES, SEED, STEPS
from tests.support.partition_harness import NUMBER, Harness

LOCK_MS, MAX_DELIVERIES = 2_000, 3
CLIENTS, SESSIONS = (1, 2, 3), ("a", "b", "c")
SENDER, LOOKER = 8, 9
SHARE = 10
"""One in this many of the examples of the whole partition's model."""


@dataclass
class Message:
    """A message as the model knows it."""

    number: int
    session: str
    body: bytes
    deliveries: int = 0
    deferred: bool = False
    dead: bool = False
    token: LockToken | None = None
    """The token of its lock."""


@dataclass
class Hold:
    """A locked session."""

    client: int
    until_ms: int
    wanted: int = 0
    """Demand that was not met yet."""


@dataclass
class Model:
    """Sessions, as plain lists."""

    messages: list[Message] = field(default_factory=list)
    holds: dict[str, Hold] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)

    def of(self, client: int) -> tuple[str, Hold] | None:
        """The session that a client holds."""
        return next(((name, hold) for name, hold in self.holds.items() if hold.client == client), None)

    def available(self, session: str) -> list[Message]:
        """The session's messages that may be given out, in order."""
        found = [
            each
            for each in self.messages
            if each.session == session and not (each.deferred or each.dead or each.token)
        ]
        return sorted(found, key=lambda each: each.number)

    def locked(self, session: str) -> list[Message]:
        return [each for each in self.messages if each.session == session and each.token]

    def find(self, token: LockToken) -> Message | None:
        return next((each for each in self.messages if each.token == token), None)

    def fail_delivery(self, message: Message) -> None:
        message.token = None
        if message.deliveries + 1 >= MAX_DELIVERIES:
            message.dead, message.deferred = True, False
        message.deliveries += 1

    def free(self, session: str, *, counts: bool) -> None:
        """End the lock of a session."""
        for message in self.locked(session):
            if counts:
                self.fail_delivery(message)
            message.token = None
        del self.holds[session]


class SessionMachine(RuleBasedStateMachine):
    """Each rule runs one batch of the partition and does the same to the model."""

    @initialize(small_log=st.booleans())
    def start(self, small_log: bool) -> None:
        hypothesis.note(
            f"replay: MODEL_SEED={SEED} MODEL_EXAMPLES={EXAMPLES} MODEL_STEPS={STEPS} make test "
            "ARGS=tests/property/test_session_model.py"
        )
        upkeep = UpkeepLimits()
        if small_log:
            upkeep = UpkeepLimits(checkpoint_bytes=2_000, garbage_bytes_min=700, relocation_bytes=500)
        self.loop = asyncio.new_event_loop()
        self.harness = Harness(
            QueueSettings(requires_session=True, lock_duration_ms=LOCK_MS, max_delivery_count=MAX_DELIVERIES),
            segment_bytes=1_000 if small_log else 1 << 30,
            limits=TaskLimits(upkeep=upkeep),
        )
        self.model = Model()
        self.tokens: list[LockToken] = [bytes(16)]
        """All tokens seen, valid or not."""
        self.bodies = 0

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.close()

    # --- driving both ---------------------------------------------------------------------------------------

    def run_batch(self, client: int, *operations: Operation) -> list[Answer]:
        """Run a batch; returns this client's answers other than messages, which are checked."""
        for operation in operations:
            self.harness.post(client, operation)
        self.loop.run_until_complete(self.harness.settle())
        return self.heard(client)

    def heard(self, client: int) -> list[Answer]:
        left: list[Answer] = []
        given: dict[int, list[tuple[LockToken, bytes, int]]] = {}
        for each in list(self.harness.received):
            for answer in self.harness.take(each):
                if isinstance(answer, Locked) and not answer.deferred:
                    rows = zip(answer.tokens, answer.messages, answer.delivery_counts, strict=True)
                    given.setdefault(each, []).extend(rows)
                elif each == client:
                    left.append(answer)
                else:
                    raise AssertionError(f"client {each} was told {answer}")
        self.given = given
        return left

    def check_given(self) -> None:
        """The messages given out are those that the model expects, in order."""
        given = self.given
        for session, hold in self.model.holds.items():
            expected = self.model.available(session)[: hold.wanted]
            rows = given.pop(hold.client, [])
            assert [body for _, body, _ in rows] == [each.body for each in expected]
            assert [deliveries for _, _, deliveries in rows] == [each.deliveries for each in expected]
            for message, (token, _, _) in zip(expected, rows, strict=True):
                assert token not in self.tokens, "a token is never given twice"
                message.token = token
                self.tokens.append(token)
            hold.wanted -= len(expected)
        assert not given, "messages were given to a client without a session"

    def do(self, client: int, *operations: Operation) -> list[Answer]:
        """Run a batch whose effect on the model is done by now."""
        answers = self.run_batch(client, *operations)
        self.check_given()
        return answers

    # --- rules ----------------------------------------------------------------------------------------------

    @rule(sessions=st.lists(st.sampled_from(SESSIONS), min_size=1, max_size=5))
    def send(self, sessions: list[str]) -> None:
        bodies = [b"%d" % (self.bodies + place) for place in range(len(sessions))]
        self.bodies += len(sessions)
        columns: dict[str, list[int | bytes | None]] = {"session_id": [each.encode() for each in sessions]}
        (answer,) = self.run_batch(SENDER, Send(bodies, None, None, columns))
        assert isinstance(answer, Sent)
        self.model.messages += [
            Message(answer.first + place, session, body)
            for place, (session, body) in enumerate(zip(sessions, bodies, strict=True))
        ]
        self.check_given()

    @rule(client=st.sampled_from(CLIENTS), session=st.one_of(st.none(), st.sampled_from(SESSIONS)))
    def accept(self, client: int, session: str | None) -> None:
        if self.model.of(client) is not None:
            return
        free = {each for each in SESSIONS if each not in self.model.holds and self.model.available(each)}
        (answer,) = self.run_batch(client, AcceptSession(MAIN, session.encode() if session else None))
        if session in self.model.holds or (session is None and not free):
            reason = Reason.SESSION_NOT_FOUND if session is None else Reason.SESSION_LOCKED
            assert isinstance(answer, Failed) and answer.reason is reason
        else:
            assert isinstance(answer, SessionAccepted)
            name = answer.session_id.decode()
            assert name == session or (session is None and name in free)
            until_ms = self.harness.clock.monotonic_ms() + LOCK_MS
            assert answer.locked_until_ms == until_ms
            self.model.holds[name] = Hold(client, until_ms)
        self.check_given()

    @rule(client=st.sampled_from(CLIENTS), count=st.integers(1, 4))
    def demand(self, client: int, count: int) -> None:
        held = self.model.of(client)
        if held is not None:
            held[1].wanted += count
        answers = self.do(client, Demand(MAIN, count))
        assert answers == ([] if held is not None else [SessionLost(NUMBER, MAIN)])

    @rule(client=st.sampled_from(CLIENTS))
    def withdraw(self, client: int) -> None:
        answers = self.do(client, Withdraw(MAIN))
        assert answers == [Withdrawn(NUMBER, MAIN)]
        held = self.model.of(client)
        if held is not None:
            held[1].wanted = 0

    @rule(client=st.sampled_from(CLIENTS))
    def detach(self, client: int) -> None:
        held = self.model.of(client)
        if held is not None:
            self.model.free(held[0], counts=False)
        assert self.do(client, Detach()) == []

    @precondition(lambda self: hasattr(self, "model"))
    @rule(data=st.data(), kind=st.sampled_from([Complete, Abandon, Defer, DeadLetter]))
    def settle(
        self, data: st.DataObject, kind: type[Complete] | type[Abandon] | type[Defer] | type[DeadLetter]
    ) -> None:
        tokens = data.draw(st.lists(st.sampled_from(self.tokens[-12:]), unique=True, min_size=1, max_size=4))
        failures: dict[int, Reason] = {}
        for place, token in enumerate(tokens):
            message = self.model.find(token)
            if message is None:
                failures[place] = Reason.LOCK_LOST
            elif kind is Complete:
                self.model.messages.remove(message)
            elif kind is Abandon:
                self.model.fail_delivery(message)
            elif kind is Defer:
                message.deferred, message.token = True, None
                message.deliveries += 1
            else:
                message.dead, message.deferred, message.token = True, False, None
        assert self.do(LOOKER, kind(tokens)) == [Settled(None, failures)]

    @rule(data=st.data(), client=st.sampled_from(CLIENTS))
    def receive_deferred(self, data: st.DataObject, client: int) -> None:
        deferred = [each for each in self.model.messages if each.deferred]
        if not deferred:
            return
        message = data.draw(st.sampled_from(deferred))
        session = data.draw(st.sampled_from([message.session, *SESSIONS]))
        held = self.model.of(client)
        receive = ReceiveDeferred(MAIN, [message.number], None, None, session.encode(), ClientId(client))
        (answer,) = self.do(LOOKER, receive)
        if held is None or held[0] != session:
            assert isinstance(answer, Failed) and answer.reason is Reason.SESSION_LOCK_LOST
        elif message.session != session or message.token:
            assert isinstance(answer, Failed) and answer.reason is Reason.MESSAGE_NOT_FOUND
        else:
            assert isinstance(answer, Locked) and answer.messages == [message.body]
            (message.token,) = answer.tokens
            self.tokens += answer.tokens

    @rule(client=st.sampled_from(CLIENTS))
    def renew(self, client: int) -> None:
        held = self.model.of(client)
        session = held[0] if held is not None else "a"
        (answer,) = self.do(LOOKER, RenewSession(MAIN, session.encode(), ClientId(client)))
        if held is None:
            assert isinstance(answer, Failed) and answer.reason is Reason.SESSION_LOCK_LOST
        else:
            held[1].until_ms = self.harness.clock.monotonic_ms() + LOCK_MS
            assert answer == SessionRenewed(held[1].until_ms, None)

    @rule(client=st.sampled_from(CLIENTS), state=st.sampled_from([None, b"", b"x", b"y" * 300]))
    def change_state(self, client: int, state: bytes | None) -> None:
        held = self.model.of(client)
        session = held[0] if held is not None else "b"
        operation = SetSessionState(MAIN, session.encode(), ClientId(client), state, 10)
        (answer,) = self.do(LOOKER, operation)
        if held is None:
            assert isinstance(answer, Failed) and answer.reason is Reason.SESSION_LOCK_LOST
            return
        assert isinstance(answer, Updated)
        self.model.states.pop(session, None)
        if state is not None:
            self.model.states[session] = state
        (found,) = self.do(LOOKER, GetSessionState(MAIN, session.encode(), ClientId(client)))
        assert found == SessionState(state, None)

    @rule(ticks=st.sampled_from([1, 40, 99, 100, 250]))
    def wait(self, ticks: int) -> None:
        self.harness.clock.advance(20 * ticks)
        now_ms = self.harness.clock.monotonic_ms()
        lost = [(name, hold) for name, hold in self.model.holds.items() if hold.until_ms <= now_ms]
        for name, _ in lost:
            self.model.free(name, counts=True)
        self.loop.run_until_complete(self.harness.settle())
        for _, hold in lost:
            assert SessionLost(NUMBER, MAIN) in self.harness.received[hold.client]
            self.harness.received[hold.client].remove(SessionLost(NUMBER, MAIN))
        assert self.heard(LOOKER) == []
        self.check_given()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.loop.run_until_complete(self.harness.restart(clean=clean))
        for session in list(self.model.holds):
            self.model.free(session, counts=False)

    @rule()
    def list_sessions(self) -> None:
        (answer,) = self.do(LOOKER, ListSessions(MAIN, 0, 100))
        assert isinstance(answer, SessionList)
        expected = {each.session for each in self.model.messages if not each.dead} | set(self.model.states)
        assert sorted(each.decode() for each in answer.session_ids) == sorted(expected)

    @rule(
        session=st.one_of(st.none(), st.sampled_from(SESSIONS)), subqueue=st.sampled_from([MAIN, DEAD_LETTER])
    )
    def peek(self, session: str | None, subqueue: str) -> None:
        (answer,) = self.do(
            LOOKER, Peek(subqueue, 0, 1_000, session_id=session.encode() if session else None)
        )
        assert isinstance(answer, Peeked)
        expected = [
            each.body
            for each in sorted(self.model.messages, key=lambda each: each.number)
            if each.dead == (subqueue == DEAD_LETTER) and session in (None, each.session)
        ]
        assert answer.messages == expected

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "model") and self.harness.task._partition is not None:
            self.harness.task.check()


TestSessionModel = hypothesis.seed(SEED)(SessionMachine).TestCase
TestSessionModel.settings = settings(
    max_examples=max(EXAMPLES // SHARE, 1),
    stateful_step_count=STEPS,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
