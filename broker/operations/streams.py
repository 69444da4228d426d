"""Operations for clients that read and write by position, and their answers (AMQP contract 7.6).

A position is a sequence number; the end of a range is the position behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.operations.sending import Send

# --- operations ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FindPositions:
    """Find where the messages of a subqueue begin and end, and count them. Answered with `Positions`."""

    subqueue: str
    enqueued_from_ms: int | None = None
    """Also find the first message that was enqueued at this time or later, in wall time."""
    backlog_from: int | None = None
    """Also count the messages from this position on."""
    cookie: object = None
    undecided: bool = False
    """Answer as if every number that was given were decided: the head is behind all messages there are."""


@dataclass(slots=True)
class ReadRange:
    """Read active messages of a subqueue by position, locked or not, and change nothing. Answered with
    `RangeRead`, or `Failed` if the range ends beyond the head."""

    subqueue: str
    start: int
    end: int | None
    """Exclusive; None for the head."""
    count: int
    """The most messages to read."""
    bytes_max: int
    """Read at most this many bytes, but at least one message. Changed properties count too."""
    cookie: object = None
    undecided: bool = False
    """The head is as in `FindPositions`: also read what stands between numbers that are not decided."""


EARLIEST, LATEST = -2, -1
"""Stand for the start and the head of a partition where a new cursor begins."""


@dataclass(slots=True)
class CreateCursor:
    """Create a cursor, or change the owner of one that exists. Answered with `CursorState` or `Failed`.

    The first partition of an entity decides who owns a cursor. It is asked first, without `born_ms`; the
    others are asked with what it answered, and follow it.
    """

    subqueue: str
    name: bytes
    owner: bytes
    begin: int
    """Where a new cursor begins: a position, EARLIEST or LATEST."""
    takes_over: bool
    expires_after_ms: int
    """0 if it does not expire."""
    cursors_max: int
    """The most cursors of the subqueue."""
    born_ms: int | None = None
    owned_since_ms: int = 0
    cookie: object = None


@dataclass(slots=True)
class GetCursor:
    """Say where a cursor stands. Answered with `CursorState`, or `Failed` if it does not exist."""

    subqueue: str
    name: bytes
    cookie: object = None


@dataclass(slots=True)
class AdvanceCursor:
    """Move a cursor forward, if it is not there yet, and complete all active messages before it, if asked to:
    both in one commit. Answered with `CursorAdvanced` or `Failed`."""

    subqueue: str
    name: bytes
    owner: bytes
    position: int
    completes: bool = False
    cookie: object = None


@dataclass(slots=True)
class SettleThrough:
    """Complete all active messages before a position that nobody has locked, in one record. Answered with
    `SettledThrough` or `Failed`."""

    subqueue: str
    position: int
    cookie: object = None


@dataclass(slots=True)
class ListCursors:
    """List the cursors of a subqueue. Answered with `CursorList`."""

    subqueue: str
    cookie: object = None


@dataclass(slots=True)
class DeleteCursor:
    """Delete a cursor, if its owner has this token, or has had it since then at the latest. Answered with
    `CursorDeleted` or `Failed`."""

    subqueue: str
    name: bytes
    owner: bytes
    owned_since_ms: int = -1
    cookie: object = None


@dataclass(slots=True)
class SendSinkBatch:
    """Enqueue the messages of a numbered batch, all or none, and note the batch in the sink's ledger in the
    same commit; nothing if this batch or a later one was committed before. Answered with `SinkBatchSent` or
    `Failed`."""

    send: Send
    """May have no messages. Its cookie is not used."""
    sink: bytes
    batch: int
    sinks_max: int
    """The most sinks of a partition."""
    cookie: object = None


@dataclass(slots=True)
class GetSinkBatch:
    """Say which batch a sink has committed in this partition. Answered with `SinkBatch` or `Failed`."""

    sink: bytes
    sinks_max: int | None = None
    """The most sinks of a partition, if a new one that has no room is to be refused."""
    cookie: object = None


StreamOperation = (
    FindPositions | ReadRange | CreateCursor | GetCursor | AdvanceCursor | SettleThrough | ListCursors
    | DeleteCursor | SendSinkBatch | GetSinkBatch
)  # fmt: skip


# --- answers ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Positions:
    """Where the messages of a subqueue begin and end."""

    start: int
    """The position of the oldest message, in any state; the head if there is none."""
    head: int
    """All numbers below are decided: no message will ever be active under one that is not active now."""
    messages: int
    """Active messages, locked or not."""
    bytes: int
    """The size of all messages, as they were sent."""
    cookie: object
    by_time: int | None = None
    """The position by enqueued time, if asked for: the head if no message is that late. It may be too low
    where thousands of scheduled messages follow one another."""
    backlog: int | None = None
    """Messages from the position asked for on. Counts some that are gone, at most as many again."""


@dataclass(slots=True)
class RangeRead:
    """The active messages from the start of a range up to `next`; the first lists are parallel."""

    sequence_numbers: list[int]
    enqueued_at_ms: list[int]
    delivery_counts: list[int]
    expires_at_ms: list[int | None]
    messages: list[bytes]
    """Stored messages."""
    changed: list[bytes | None]
    cookie: object
    next: int = 0
    """Where the next part of the range begins; the range's end once it has been read."""
    end: int = 0
    """The end of the range."""
    start: int = 0
    """As in `Positions`."""
    head: int = 0
    locked: int = 0
    """How many of these messages are locked."""
    left_out: list[int] = field(default_factory=lambda: [0, 0, 0])
    """How many messages of the range were passed over: deferred, scheduled, and those whose time to live is
    over."""
    dead_lettered: int = 0
    """How many numbers belong to messages that are dead letters now."""
    missing: int = 0
    """How many other numbers belong to no message of the subqueue."""


@dataclass(slots=True)
class CursorState:
    """Where a cursor stands in one partition."""

    name: bytes
    owner: bytes
    position: int
    backlog: int
    """As in `Positions`, from the cursor's position on."""
    expires_after_ms: int
    born_ms: int
    owned_since_ms: int
    cookie: object
    is_new: bool = False
    """It was created by this operation."""


@dataclass(slots=True)
class CursorAdvanced:
    """A cursor has moved, or was already there."""

    position: int
    completed: int
    """How many messages were completed."""
    locked: int
    """How many messages before the position stay, because they are locked."""
    cookie: object


@dataclass(slots=True)
class SettledThrough:
    """Messages were completed, durably."""

    completed: int
    locked: int
    """How many messages before the position stay, because they are locked."""
    cookie: object


@dataclass(slots=True)
class CursorList:
    """The cursors of a subqueue in one partition."""

    cursors: list[CursorState]
    cookie: object


@dataclass(slots=True)
class CursorDeleted:
    """A cursor is gone from one partition, durably."""

    existed: bool
    cookie: object


@dataclass(slots=True)
class SinkBatchSent:
    """A batch of a sink and its messages are durable, or were before."""

    first: int
    """As in `Sent`."""
    duplicates: list[int]
    """As in `Sent`; all messages, if this batch or a later one was committed before."""
    is_new: bool
    """It was committed by this operation."""
    batch: int
    """The highest batch of the sink that is committed in this partition."""
    cookie: object


@dataclass(slots=True)
class SinkBatch:
    """The highest batch that a sink has committed in this partition; None if it has committed none."""

    batch: int | None
    cookie: object


StreamAnswer = (
    Positions | RangeRead | CursorState | CursorAdvanced | SettledThrough | CursorList | CursorDeleted
    | SinkBatchSent | SinkBatch
)  # fmt: skip
