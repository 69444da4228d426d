"""What a partition does with the state of message sessions, and listing sessions. Pure.

AMQP contract 7.3.8, 7.3.9. Only the holder of a session reads and changes its state, so that no two receivers
work on it at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from broker.base.errors import Reason, Refused
from broker.identifiers import ClientId
from broker.operations.general import Updated
from broker.operations.sessions import (
    GetSessionState,
    ListSessions,
    SessionList,
    SessionState,
    SetSessionState,
)
from broker.partition.quotas import check_state
from broker.partition.session_locks import SessionLocks
from broker.partition.session_states import ENTRY_BYTES, SessionStates, set_state
from broker.partition.workspace import Workspace


class _Walk:
    """A list of sessions in progress."""

    __slots__ = ("found", "ids", "operation", "skipped")

    def __init__(self, operation: ListSessions, ids: Iterator[bytes]) -> None:
        self.operation, self.ids = operation, ids
        self.skipped = 0
        self.found: list[bytes] = []


class SessionData:
    """The states and the list of one partition's sessions."""

    __slots__ = ("_locks", "_space", "_walk")

    def __init__(self, space: Workspace, locks: SessionLocks) -> None:
        self._space, self._locks = space, locks
        self._walk: _Walk | None = None
        """The list that continues in the next cycle."""

    @property
    def _states(self) -> SessionStates:
        return self._space.messages.states.of(SessionStates)

    def set(self, client: ClientId, operation: SetSessionState) -> None:
        """Set or clear the state of a session. Raises Refused: SESSION_LOCK_LOST, QUOTA_EXCEEDED,
        SERVER_BUSY while memory is scarce, DISK_FULL."""
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
                check_state(space.messages.payloads, len(state), added)
                space.check_room(added)
                space.check_growth(added)
        space.record(set_state(subqueue.number, session.id, state, space.cycle.wall_ms))
        space.answer(client, Updated(operation.cookie))

    def get(self, client: ClientId, operation: GetSessionState) -> None:
        """Show the state of a session. Raises Refused(SESSION_LOCK_LOST)."""
        space = self._space
        subqueue = space.messages.find(operation.subqueue)
        session, _ = self._locks.held(operation.holder, operation.session_id, subqueue)
        entry = self._states.entries.get((subqueue.number, session.id))
        space.answer(client, SessionState(entry.value if entry is not None else None, operation.cookie))

    def list(self, client: ClientId, operation: ListSessions) -> bool:
        """List some sessions. Returns False if it looked at so many that it must continue in the next
        cycle."""
        space = self._space
        number, looks_max = space.messages.find(operation.subqueue).number, space.bounds.looks_max
        walk = self._walk
        if walk is None or walk.operation is not operation:
            walk = self._walk = _Walk(operation, self._known(number, operation.changed_after_ms))
        since_ms, states = operation.changed_after_ms, self._states.entries
        index = space.subqueues[number].sessions
        looked_at = 0
        for session_id in islice(walk.ids, looks_max):
            looked_at += 1
            session = index.find(session_id) if index is not None and since_ms is None else None
            if session is None or not session.count:  # without messages, only a state counts
                state = states.get((number, session_id))
                if state is None or (since_ms is not None and state.changed_at_ms <= since_ms):
                    continue
            if walk.skipped < operation.skip:
                walk.skipped += 1
            elif len(walk.found) < operation.count:
                walk.found.append(session_id)
            else:
                break
        else:
            if looked_at == looks_max:
                space.cycle.work += looked_at
                return False
        self._walk = None
        space.cycle.work += looked_at
        space.answer(client, SessionList(walk.found, walk.skipped, operation.cookie))
        return True

    def _known(self, subqueue: int, changed_after_ms: int | None) -> Iterator[bytes]:
        """The sessions of a subqueue; with a time, only those that have a state. Those that get their first
        message meanwhile, or lose their last one, may be left out or come twice."""
        index = self._space.subqueues[subqueue].sessions
        if changed_after_ms is not None:
            index = None
        if index is not None:
            yield from index.walk()
        for home, id in self._states.entries.walk():
            if home == subqueue and (index is None or index.find(id) is None):
                yield id
