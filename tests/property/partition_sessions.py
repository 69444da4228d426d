"""Rules for message sessions: accepting, renewing and losing them, their states, and listing them. They do
nothing in examples whose queue requires no sessions."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN
from broker.identifiers import ClientId
from broker.operations.general import Failed, Updated
from broker.operations.sessions import (
    AcceptSession,
    GetSessionState,
    ListSessions,
    RenewSession,
    SessionAccepted,
    SessionList,
    SessionRenewed,
    SessionState,
    SetSessionState,
    WatchSessions,
)
from tests.property.partition_driver import LOOKER, SESSION_WATCHER, PartitionDriver
from tests.property.partition_model import CLIENTS, SESSIONS, Hold
from tests.property.partition_outcomes import ran

STATES_MAX = 2
"""How many sessions may have a state."""


def has_sessions(machine: PartitionDriver) -> bool:
    return hasattr(machine, "model") and machine.model.requires_session


class PartitionSessions(PartitionDriver):
    """A partition of a queue that may require sessions."""

    def some_holder(self, client: int) -> int:
        """A client that holds a session, if there is one."""
        holders = [each for hold in self.model.holds.values() for each in hold.clients]
        return holders[client % len(holders)] if holders else client

    @precondition(has_sessions)
    @rule(
        client=st.sampled_from(CLIENTS),
        session=st.sampled_from([None, None, *SESSIONS]),
        is_shared=st.booleans(),
        knows_token=st.booleans(),
    )
    def accept_session(self, client: int, session: bytes | None, is_shared: bool, knows_token: bool) -> None:
        if self.model.held_by(client) is not None:
            return
        if session is None:
            self.catch_up()  # one that is still ending is not free yet
        else:
            self.pass_time()
        held = self.model.holds.get(session) if session is not None else None
        token = held.token if held is not None and knows_token else bytes(16) if is_shared else None
        free = self.model.free_sessions
        answer = self.one(client, AcceptSession(MAIN, session, is_shared, token, "accept"))
        if held is not None and held.is_shared and is_shared and knows_token:
            assert isinstance(answer, SessionAccepted)
            assert (answer.session_id, answer.token) == (session, held.token)
            assert answer.locked_until_ms == held.until_ms
            ran["AcceptSession shared"] += 1
        elif held is not None or (session is None and not free):
            reason = Reason.SESSION_NOT_FOUND if session is None else Reason.SESSION_LOCKED
            assert isinstance(answer, Failed) and (answer.reason, answer.cookie) == (reason, "accept")
        else:
            assert isinstance(answer, SessionAccepted) and answer.cookie == "accept"
            name = answer.session_id
            assert name == session or (session is None and name in free)
            until_ms = self.harness.clock.monotonic_ms() + self.model.lock_ms
            assert answer.locked_until_ms == until_ms
            assert answer.token not in self.tokens_seen, "a lock of its own"
            self.tokens_seen.add(answer.token)
            self.model.holds[name] = Hold(until_ms, answer.token, is_shared, {client: 0})
        if isinstance(answer, SessionAccepted):
            self.model.holds[answer.session_id].clients.setdefault(client, 0)

    @precondition(
        lambda self: has_sessions(self) and any(each.is_shared for each in self.model.holds.values())
    )
    @rule(client=st.sampled_from(CLIENTS), knows_token=st.booleans())
    def join_shared_session(self, client: int, knows_token: bool) -> None:
        session = next(name for name, hold in self.model.holds.items() if hold.is_shared)
        if self.model.held_by(client) is not None:
            client = next((each for each in CLIENTS if self.model.held_by(each) is None), client)
        self.accept_session(client, session, True, knows_token)

    @precondition(has_sessions)
    @rule(client=st.sampled_from(CLIENTS), session=st.sampled_from(SESSIONS))
    def share_session(self, client: int, session: bytes) -> None:
        """Two clients that hold nothing else accept one session; rarely met by chance."""
        self.accept_session(client, session, True, False)
        held = self.model.holds.get(session)
        if held is not None and held.is_shared:
            self.join_shared_session(client, True)

    @precondition(has_sessions)
    @rule(client=st.sampled_from(CLIENTS), session=st.sampled_from(SESSIONS))
    def renew_session(self, client: int, session: bytes) -> None:
        client = self.some_holder(client)
        held = self.model.held_by(client)
        session = held[0] if held is not None else session
        answer = self.one(LOOKER, RenewSession(MAIN, session, ClientId(client)))
        if held is None:
            assert isinstance(answer, Failed) and answer.reason is Reason.SESSION_LOCK_LOST
        else:
            held[1].until_ms = self.harness.clock.monotonic_ms() + self.model.lock_ms
            assert answer == SessionRenewed(held[1].until_ms, None)

    @precondition(has_sessions)
    @rule(client=st.sampled_from(CLIENTS), state=st.sampled_from([None, b"", b"x", b"y" * 300]))
    def set_session_state(self, client: int, state: bytes | None) -> None:
        client = self.some_holder(client)
        held = self.model.held_by(client)
        session, states = held[0] if held is not None else SESSIONS[0], self.model.states
        answer = self.one(LOOKER, SetSessionState(MAIN, session, ClientId(client), state, STATES_MAX))
        if held is None:
            assert isinstance(answer, Failed) and answer.reason is Reason.SESSION_LOCK_LOST
        elif state is not None and session not in states and len(states) >= STATES_MAX:
            assert isinstance(answer, Failed) and answer.reason is Reason.QUOTA_EXCEEDED
        else:
            assert isinstance(answer, Updated)
            states.pop(session, None)
            if state is not None:
                states[session] = state, self.harness.clock.now_ms()

    @precondition(has_sessions)
    @rule(client=st.sampled_from(CLIENTS), sets=st.booleans())
    def get_session_state(self, client: int, sets: bool) -> None:
        if sets:
            self.set_session_state(client, b"z")
        client = self.some_holder(client)
        held = self.model.held_by(client)
        session = held[0] if held is not None else SESSIONS[0]
        answer = self.one(LOOKER, GetSessionState(MAIN, session, ClientId(client)))
        if held is None:
            assert isinstance(answer, Failed) and answer.reason is Reason.SESSION_LOCK_LOST
        else:
            assert answer == SessionState(self.model.states.get(session, (None, 0))[0], None)

    @precondition(has_sessions)
    @rule(
        since_ms=st.sampled_from([None, -3_600_000, -5_000, 0]),
        skip=st.sampled_from([0, 0, 1]),
        count=st.sampled_from([1, 100]),
    )
    def list_sessions(self, since_ms: int | None, skip: int, count: int) -> None:
        after_ms = None if since_ms is None else self.harness.clock.now_ms() + since_ms
        answer = self.one(LOOKER, ListSessions(MAIN, skip, count, after_ms))
        assert isinstance(answer, SessionList)
        expected = {
            name for name, (_, at_ms) in self.model.states.items() if after_ms is None or at_ms > after_ms
        }
        if after_ms is None:
            expected |= {each.session for each in self.model.in_order(MAIN) if each.session is not None}
        assert answer.skipped == min(skip, len(expected))
        assert len(answer.session_ids) == max(min(count, len(expected) - skip), 0)
        assert set(answer.session_ids) <= expected
        assert len(set(answer.session_ids)) == len(answer.session_ids)

    @precondition(has_sessions)
    @rule()
    def watch_sessions(self) -> None:
        self.awaits_session = True
        assert not self.run_cycle([(SESSION_WATCHER, WatchSessions(MAIN))])
