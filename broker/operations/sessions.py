"""Operations on message sessions, and their answers (AMQP contract 5.4).

A session-id is in UTF-8 here (`identifiers.py`). `holder` is the client that holds the session: the receiving
link, on whose behalf somebody else may ask.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.identifiers import ClientId

# --- operations ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class AcceptSession:
    """Lock a message session for this client, until it detaches or the lock ends (AMQP contract 5.4).
    Answered with `SessionAccepted` or `Failed`.

    From then on, `Demand` of this client asks for the messages of this session. A client holds at most one
    session.
    """

    subqueue: str
    session_id: bytes | None
    """In UTF-8; None for the session with messages that has been free for longest."""
    is_shared: bool = False
    """Other clients may hold the session as well, if they ask for it so and know the lock's token."""
    token: bytes | None = None
    """The token of a shared lock."""
    cookie: object = None


@dataclass(slots=True)
class WatchSessions:
    """Tell the client once when a session with messages is free. Answered with `Arrived`, now or later. Ends
    with `Detach`, or when the partition goes down (`Unavailable`). While the partition is down, the client is
    told nothing; it hears `Unavailable` when the partition is back."""

    subqueue: str


@dataclass(slots=True)
class RenewSession:
    """Have the lock of a session last for some time from now. Answered with `SessionRenewed` or `Failed`."""

    subqueue: str
    session_id: bytes
    holder: ClientId
    """The client that holds the session."""
    cookie: object = None
    duration_ms: int | None = None
    """None for the entity's lock duration."""


@dataclass(slots=True)
class SetSessionState:
    """Store the state of a session. Answered with `Updated` or `Failed`."""

    subqueue: str
    session_id: bytes
    holder: ClientId
    state: bytes | None
    """None clears it."""
    states_max: int
    """How many sessions of the partition may have a state."""
    cookie: object = None


@dataclass(slots=True)
class GetSessionState:
    """Fetch the state of a session. Answered with `SessionState` or `Failed`."""

    subqueue: str
    session_id: bytes
    holder: ClientId
    cookie: object = None


@dataclass(slots=True)
class ListSessions:
    """List sessions that have messages or a state. Answered with `SessionList`."""

    subqueue: str
    skip: int
    """Leave out this many."""
    count: int
    """List at most this many."""
    changed_after_ms: int | None = None
    """Only sessions whose state has changed after this time, in wall time."""
    cookie: object = None


SessionOperation = (
    AcceptSession | WatchSessions | RenewSession | GetSessionState | SetSessionState | ListSessions
)


# --- answers ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SessionAccepted:
    """The client holds this session."""

    partition: int
    subqueue: str
    session_id: bytes
    token: bytes
    """16 bytes that identify the lock."""
    locked_until_ms: int
    """In monotonic time."""
    cookie: object


@dataclass(slots=True)
class SessionLost:
    """The client holds no session here any more: the lock has ended. Its demand is void."""

    partition: int
    subqueue: str


@dataclass(slots=True)
class SessionRenewed:
    """The lock of the session lasts until `locked_until_ms`, in monotonic time."""

    locked_until_ms: int
    cookie: object


@dataclass(slots=True)
class SessionState:
    """The state of a session; None if it has none."""

    state: bytes | None
    cookie: object


@dataclass(slots=True)
class SessionList:
    """Some sessions of a partition."""

    session_ids: list[bytes]
    skipped: int
    """How many were left out: fewer than asked if there are no more."""
    cookie: object


SessionAnswer = SessionAccepted | SessionLost | SessionRenewed | SessionState | SessionList
