"""Removing messages that are not locked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# --- operations ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Delete:
    """Remove the oldest messages of a subqueue that are in some of the states and not locked. Answered with
    `Deleted`.

    One operation looks at a limited number of messages (`Bounds.deleted_max`); the answer says where to
    continue.
    """

    subqueue: str
    count: int
    """The most messages to remove."""
    enqueued_before_ms: int
    """Keep messages that were enqueued at this time or later."""
    from_sequence_number: int = 0
    cookie: object = None
    states: Sequence[int] = (0,)
    """Those of `MessageState` that may be removed: only active ones, unless given."""
    recalls: bool = False
    """Recall locked messages that no client has seen; `Deleted` says whether it is worth looking again."""
    session_id: bytes | None = None
    """Remove the messages of this session only."""


@dataclass(slots=True)
class DeleteExactly:
    """Remove the messages with these sequence numbers, in any state, unless they are locked. Counts no
    delivery. Answered with `DeletedExactly`."""

    subqueue: str
    sequence_numbers: Sequence[int]
    cookie: object = None


# --- answers ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Deleted:
    """`count` messages were removed, durably. Answers `Delete`."""

    count: int
    next_sequence_number: int | None
    """Where the next `Delete` continues; None if nothing is left to look at."""
    cookie: object
    recalls: bool = False
    """Some of the locked messages may be unseen and are being recalled from their client. The same operation,
    if it is posted after this answer, finds them available."""


@dataclass(slots=True)
class DeletedExactly:
    """All messages named by a `DeleteExactly` were removed, durably, except these."""

    locked: list[int]
    """Sequence numbers of messages that are locked, and stay."""
    missing: list[int]
    """Sequence numbers that no message of the subqueue has."""
    cookie: object
    recalls: bool = False
    """Some of the locked messages may be unseen and are being recalled from their client. The same operation,
    if it is posted after this answer, finds them available."""
