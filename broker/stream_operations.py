"""Operations for clients that read and write by position, and their answers (AMQP contract 7.6). Plain data,
like those in `operations.py`, which lists all of them.

A position is a sequence number; the end of a range is the position behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
    """Read at most this many bytes, but at least one message."""
    cookie: object = None


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
