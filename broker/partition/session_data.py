"""What a partition does with the state of message sessions, and listing sessions. Pure.

AMQP contract 7.3.8, 7.3.9. Only the holder of a session reads and changes its state, so that no two receivers
work on it at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.base.errors import Reason, Refused
from broker.operations import ClientId, Updated
from broker.partition.quotas import check_size, check_state
from broker.partition.session_locks import SessionLocks
from broker.partition.session_states import ENTRY_BYTES, SessionStates, set_state
from broker.partition.workspace import Workspace
from broker.session_operations import (
    GetSessionState,
    ListSessions,
    SessionList,
    SessionState,
    SetSessionState,
)


class SessionData:
    """The states and the list of one partition's sessions."""

    __slots__ = ("_locks", "_space")

    def __init__(self, space: Workspace, locks: SessionLocks) -> None:
        self._space, self._locks = space, locks

    @property
    def _states(self) -> SessionStates:
        return self._space.messages.states.of(SessionStates)

    def set(self, client: ClientId, operation: SetSessionState) -> None:
        """Set or clear the state of a session. Raises Refused: SESSION_LOCK_LOST, QUOTA_EXCEEDED, or
        SERVER_BUSY while memory is scarce."""
        space = self._space
        subqueue = space.messages.find(operation.subqueue)
        session, _ = self._locks.held(operation.holder, operation.session_id, subqueue)
        before = self._states.entries.get((subqueue.number, session.id))
        state = operation.state
        if state is None and before is None:
            space.answer(client, Updated(operation.cookie))
            return
        if state is not None:
            if before is None and len(self._states.entries) >= operation.states_max:
                raise Refused(
                    Reason.QUOTA_EXCEEDED,
                    f"Partition {space.number} of '{space.description.name}' holds the state of "
                    f"{operation.states_max} sessions, which is the maximum. Clear the state of those that "
                    "need it no longer.",
                )
            added = len(state) - (len(before.value) if before is not None else -ENTRY_BYTES)
            if added > 0:
                check_state(space.messages.payloads, len(state))
                check_size(
                    space.description,
                    space.number,
                    space.messages.work.occupied.values(),
                    space.messages.states.bytes,
                    added,
                )
        space.record(set_state(subqueue.number, session.id, state, space.batch.wall_ms))
        space.answer(client, Updated(operation.cookie))

    def get(self, client: ClientId, operation: GetSessionState) -> None:
        """Show the state of a session. Raises Refused(SESSION_LOCK_LOST)."""
        space = self._space
        subqueue = space.messages.find(operation.subqueue)
        session, _ = self._locks.held(operation.holder, operation.session_id, subqueue)
        entry = self._states.entries.get((subqueue.number, session.id))
        space.answer(client, SessionState(entry.value if entry is not None else None, operation.cookie))

    def list(self, client: ClientId, operation: ListSessions) -> None:
        """List some sessions."""
        space = self._space
        number = space.messages.find(operation.subqueue).number
        skipped = 0
        found: list[bytes] = []
        for session_id in self._sessions(number, operation.changed_after_ms):
            if skipped < operation.skip:
                skipped += 1
            elif len(found) < operation.count:
                found.append(session_id)
            else:
                break
        space.batch.work += skipped // 64 + len(found)
        space.answer(client, SessionList(found, skipped, operation.cookie))

    def _sessions(self, subqueue: int, changed_after_ms: int | None) -> Iterator[bytes]:
        """The sessions of a subqueue that have messages or state; with a time, those whose state has changed
        since."""
        states = self._states.entries
        if changed_after_ms is not None:
            for (home, session_id), entry in states.items():
                if home == subqueue and entry.changed_at_ms > changed_after_ms:
                    yield session_id
            return
        index = self._space.subqueues[subqueue].sessions
        if index is not None:
            yield from index.ids()
        for home, session_id in states:
            session = index.find(session_id) if index is not None else None
            if home == subqueue and (session is None or not session.count):
                yield session_id
