"""Looking at messages without locking them, and hearing of new ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.operations.columns import ColumnLists

# --- operations ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Peek:
    """Look at messages from a sequence number on: active, locked, deferred, scheduled. Answered with
    `Peeked`."""

    subqueue: str
    from_sequence_number: int
    count: int
    cookie: object = None
    bytes_max: int | None = None
    """Show at most this many bytes, but at least one message. The partition's own bound also applies."""
    session_id: bytes | None = None
    """Show the messages of this session only."""


@dataclass(slots=True)
class Watch:
    """Tell the client once when the subqueue holds a message that `Peek` from this sequence number on would
    show.

    Answered with `Arrived`, now or later. Ends with `Detach`, or when the partition goes down
    (`Unavailable`).
    """

    subqueue: str
    from_sequence_number: int


# --- answers ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Peeked:
    """Messages as they are, oldest first; the lists are parallel."""

    sequence_numbers: list[int]
    enqueued_at_ms: list[int]
    delivery_counts: list[int]
    expires_at_ms: list[int | None]
    messages: list[bytes]
    changed: list[bytes | None]
    states: list[int]
    cookie: object
    more: bool = False
    """More messages follow, but this answer is as large as allowed."""
    columns: ColumnLists = field(default_factory=dict)
    """Those of `COLUMNS` that are answered."""


@dataclass(slots=True)
class Arrived:
    """There may be new messages to look at. Answers `Watch` and ends it."""

    partition: int
    subqueue: str
