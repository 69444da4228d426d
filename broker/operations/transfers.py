"""Operations that move messages from one entity to another, and their answers.

The messages of a partition are *handed over* to a partition of another entity. That one enqueues them, and
then the first one removes them. Between the two, a crash may leave the messages in both places. So the second
partition keeps the *numbers* of the messages that it was handed over, for each *source*, and drops those that
come again. A source is any text that names where the numbers come from, and in which no number ever stands
for another message: `source_of` makes one.

The one that hands over says which numbers must still be kept: those whose removal at the source is not known
to be durable. So the partition keeps little more than the latest numbers of each source.

`HandOver` and `LockNext` are answered once the partition's log is synced, also with `fsync: interval` or
`never`. Otherwise a power cut could undo the end of the log of a source, whose new messages would get numbers
that others have kept, or the end of the log of a target, after the messages were removed at the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.identifiers import LockToken
from broker.operations.columns import ColumnLists


def source_of(generation: str, partition: int, subqueue: int) -> bytes:
    """The name of one subqueue of one partition of an entity, as a source of messages."""
    return f"{generation}/{partition}/{subqueue}".encode()


def parts_of_source(source: bytes) -> tuple[str, int, int]:
    """The generation, partition and subqueue that `source_of` has named."""
    generation, partition, subqueue = source.decode().rsplit("/", 2)
    return generation, int(partition), int(subqueue)


# --- operations ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class HandOver:
    """Enqueue messages of another entity in the main subqueue, each of them once, however often it comes.
    What there is no room for is left out, and what one commit has no room for is put off; the rest is
    enqueued, or nothing is. Answered with `HandedOver` or `Failed`.

    May have no messages, to change only what is kept of the source.
    """

    source: bytes
    """Where the messages come from."""
    numbers: Sequence[int]
    """What identifies each message at the source."""
    messages: Sequence[bytes]
    """Stored messages, as those of a `Send`; one for each number."""
    time_to_live_ms: Sequence[int | None] | None = None
    columns: ColumnLists = field(default_factory=dict)
    identities: Sequence[bytes] | None = None
    """As in a `Send`."""
    keeps: Sequence[int] | None = None
    """Of the numbers that were kept before, those that may come again; None if all of them may."""
    cookie: object = None
    scheduled_ms: Sequence[int | None] | None = None
    """As in a `Send`."""
    full: str | None = None
    """Why the whole entity has no room for all these messages, in words; None if it has. Messages that come
    again need no room …"""
    room: int = 0
    """… and this is how many bytes of new ones it has room for. Each has MESSAGE_OVERHEAD_BYTES more."""


@dataclass(slots=True)
class LockNext:
    """Lock the oldest available messages of a subqueue for a given time. Answered with `Locked` (its `cookie`
    set), at once and even if there are none; then everything that this client did before is synced.

    Meant for the broker itself: no other client can recall these messages.
    """

    subqueue: str
    count: int
    bytes_max: int
    """Lock messages of at most this many bytes, but at least one message. The partition's own bounds also
    apply."""
    duration_ms: int
    cookie: object = None


@dataclass(slots=True)
class FailTransfer:
    """Move locked messages of any subqueue to the transfer dead-letter subqueue. Answered with `Settled`."""

    tokens: Sequence[LockToken]
    changed: bytes | None = None
    """Application properties to set, an encoded AMQP map: reason and description."""
    cookie: object = None


@dataclass(slots=True)
class FindSources:
    """Say what is left of the handing over of messages, to and from this partition. Answered with
    `SourcesFound`."""

    cookie: object = None


# --- answers ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class HandedOver:
    """All messages of a `HandOver` that were neither left out nor put off are durable here: they were
    enqueued now, earlier, or were duplicates."""

    known: list[int]
    """The places of messages that had been enqueued before."""
    duplicates: list[int]
    """The places of messages that were dropped, because the window of duplicate detection holds their
    identities."""
    kept: list[int]
    """Numbers that are kept of the source besides those of this operation."""
    cookie: object = None
    left_out: list[int] = field(default_factory=list)
    """The places of messages that there is no room for …"""
    full: str | None = None
    """… and why, in words."""
    put_off: list[int] = field(default_factory=list)
    """The places of messages to hand over again, in a topic: one commit has no room for the copies that rules
    make of them and of those before them. Never all of them."""


@dataclass(slots=True)
class SourcesFound:
    """What is left of the handing over of messages."""

    sources: list[bytes]
    """The sources of which the partition keeps numbers."""
    passes_on: bool
    """Whether it holds messages that are on their way to other entities."""
    cookie: object = None
    changes_rules: bool = False
    """Whether transactions have changed rules, and the topic may not have the changes yet."""
