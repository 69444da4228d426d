"""Receiving messages from a partition: locked on demand, or by their sequence numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.identifiers import NO_CLIENT, ClientId, LockToken
from broker.operations.columns import ColumnLists

BYTES_UNBOUNDED = 1 << 62


# --- operations ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Demand:
    """Raise by `count` the number of messages that this client wants to lock and receive from a subqueue.

    Answered with `Locked`, now or later and as often as messages are available, until the demand is used up
    or withdrawn.
    """

    subqueue: str
    count: int
    tell_unmet: bool = False
    """Also answer with `Unmet` if the demand is not met by what is available now, as soon as that has been
    handed out."""
    bytes_max: int = BYTES_UNBOUNDED
    """Once messages of this many bytes were given (at least one message), the rest of the demand is void, and
    `Locked` says so."""


@dataclass(slots=True)
class Withdraw:
    """The client wants nothing more from the subqueue for now. Answered with `Withdrawn`, after the last
    `Locked`."""

    subqueue: str


@dataclass(slots=True)
class Recalled:
    """A client's answer to `Recall`: `tokens` are given back as with `Release`, and the client holds no other
    unseen message."""

    subqueue: str
    tokens: Sequence[LockToken]


@dataclass(slots=True)
class ReceiveDeferred:
    """Lock deferred messages by sequence number. Answered with `Locked` (its `cookie` set) or `Failed`.

    Fails, and locks none, if any of them does not exist, they take more than `bytes_max`, or they are more
    than `Bounds.granted_max`.
    """

    subqueue: str
    sequence_numbers: Sequence[int]
    cookie: object = None
    bytes_max: int | None = None
    """The bytes that the answer may have, with changed properties; None for any number."""
    session_id: bytes | None = None
    """The session of the messages, if the subqueue has sessions …"""
    holder: ClientId = NO_CLIENT
    """… and the client that holds it, for which they are locked."""


@dataclass(slots=True)
class LockExactly:
    """Lock the messages with these sequence numbers, except those that are locked or missing, in any state or
    only those that are active. Answered with `Locked`. Locked messages that no client has seen are recalled,
    so that another attempt can lock them.

    Locks as many as one answer may hold (`Bounds.granted_bytes_max`) and at least one.
    """

    subqueue: str
    sequence_numbers: Sequence[int]
    cookie: object = None
    only_active: bool = False


# --- answers ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Locked:
    """Messages locked for the client; the lists are parallel."""

    partition: int
    subqueue: str
    tokens: list[LockToken]
    sequence_numbers: list[int]
    enqueued_at_ms: list[int]
    delivery_counts: list[int]
    """Deliveries that failed before this one (§3.2.1)."""
    expires_at_ms: list[int | None]
    messages: list[bytes]
    """Stored messages, as they were sent."""
    changed: list[bytes | None]
    """Application properties to lay over the message's own, an encoded AMQP map, or None."""
    locked_until_ms: int
    """In monotonic time; add `wall_ahead_ms` before showing it to a client."""
    deferred: bool = False
    cookie: object = None
    voids_demand: bool = False
    """The demand's `bytes_max` was reached, so the partition has dropped the rest of the demand."""
    columns: ColumnLists = field(default_factory=dict)
    """Those of `COLUMNS` that are answered."""


@dataclass(slots=True)
class Unmet:
    """Nothing more is available now; the client's remaining demand waits for messages to come."""

    partition: int
    subqueue: str


@dataclass(slots=True)
class Withdrawn:
    """The client has no demand left in this partition, and no `Locked` is on its way."""

    partition: int
    subqueue: str


@dataclass(slots=True)
class Recall:
    """The partition asks the client to return the messages of this subqueue that it holds unseen. The client
    answers with `Recalled`, even if it holds none."""

    partition: int
    subqueue: str
