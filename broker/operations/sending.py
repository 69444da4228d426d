"""Sending messages to a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.operations.columns import ColumnLists


@dataclass(slots=True)
class Send:
    """Enqueue messages in the main subqueue, all or none. Answered with `Sent` or `Failed`."""

    messages: Sequence[bytes]
    """Stored messages (`broker/message/stored.py`), opaque here."""
    time_to_live_ms: Sequence[int | None] | None
    """Per message, as the sender set it; None if no message has one."""
    cookie: object = None
    columns: ColumnLists = field(default_factory=dict)
    """Those of `COLUMNS` in which some message has a value of its own."""
    scheduled_ms: Sequence[int | None] | None = None
    """Per message, when it is to be enqueued, in wall time; None or a time that has passed for at once. None
    if all are enqueued at once."""
    identities: Sequence[bytes] | None = None
    """The messages' identities (`broker/message/identity.py`), if duplicates are to be dropped."""
    tells_numbers: bool = False
    """A client is told the sequence numbers, so messages that nobody gets from a topic have some as well."""
    is_lone: bool = False
    """A message that came alone, and not as a batch, while its `Sending` awaited nothing. A link has one
    `Sending`, so its client probably sends the next message once this one is answered. Each request over HTTP
    has its own: of 200 concurrent ones, all are lone, and AHEAD_MAX (`rounds.py`) bounds how many go
    ahead."""


@dataclass(slots=True)
class Sent:
    """The messages are durable. `first` is the first message's sequence number; the others follow it without
    a gap."""

    first: int
    cookie: object
    duplicates: list[int] = field(default_factory=list)
    """The places of messages that were dropped, because the window of duplicate detection holds their
    identities. They have no sequence number."""
