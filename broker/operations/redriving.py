"""Re-driving messages: from a dead-letter subqueue back to the main one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.identifiers import LockToken
from broker.operations.columns import ColumnLists

# --- operations ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FindDeadLetters:
    """Find the messages of a dead-letter subqueue that are not locked, oldest first, and lock none. Answered
    with `Found`.

    One operation looks at a limited number of messages (`Bounds.deleted_max`); the answer says where to
    continue.
    """

    subqueue: str
    count: int
    """The most messages to find."""
    enqueued_before_ms: int
    """Pass over messages that were enqueued at this time or later."""
    reason: str | None = None
    """Only those with this dead-letter reason."""
    from_sequence_number: int = 0
    cookie: object = None


@dataclass(slots=True)
class Redrive:
    """Enqueue locked messages of a dead-letter subqueue anew in the main one, and remove them from it. What a
    topic publishes by this comes one by one, because it may be from many senders.

    Both happen in one commit: a crash leaves each message in exactly one of the two. Answered with
    `Redriven`, or `Failed`, after which the messages are available in the dead-letter subqueue.
    """

    tokens: Sequence[LockToken]
    messages: Sequence[bytes]
    """The messages as they are to be stored, one for each token."""
    time_to_live_ms: Sequence[int | None] | None
    cookie: object = None
    columns: ColumnLists = field(default_factory=dict)


# --- answers ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Found:
    """Answers `FindDeadLetters`."""

    sequence_numbers: list[int]
    next_sequence_number: int | None
    """Where the next `FindDeadLetters` continues; None if nothing is left to look at."""
    cookie: object
    recalls: bool = False
    """Some of the locked messages may be unseen and are being recalled from their client. The same operation,
    if it is posted after this answer, finds them available."""


@dataclass(slots=True)
class Redriven:
    """Messages were enqueued anew, durably. Answers `Redrive`."""

    sequence_numbers: list[int]
    """The new sequence numbers, in the order of the operation; 0 for a message whose lock was gone."""
    cookie: object
