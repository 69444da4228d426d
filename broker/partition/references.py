"""References to messages, and the leases and holders that lock them. Plain data.

A *reference* is what a subqueue knows of a message; the message's bytes are in the log (`frame`, `offset`,
`size`). A *lease* holds messages that were locked together. A *holder* is a client with leases that may be
recalled. The three classes refer to one another, so they share a file.

A million waiting messages should fit in memory. So a reference is a single object with slots and no
container, and messages share the objects for equal values (times, sizes, the frame).

References, frames and the containers that hold all of them are hidden from the cyclic garbage collector
(`_untracked`), which would take up to 100 ms to scan a million of them. A reference is part of a cycle only
while a lease holds it; the code that ends the lease or drops the state breaks the cycle.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from broker.identifiers import ClientId
from broker.operations.columns import COLUMNS, KNOWN_COLUMNS
from broker.operations.message_states import MessageState
from broker.partition import _references
from broker.partition._new_references import learn
from broker.partition._untracked import keep_untracked
from storage.log import Position

ACTIVE, DEFERRED, SCHEDULED = MessageState.ACTIVE, MessageState.DEFERRED, MessageState.SCHEDULED
STATES = (ACTIVE, DEFERRED, SCHEDULED)
"""The states of messages, by their number in records and checkpoints. A lock is volatile and not part of the
state: see `Reference.lease`."""


@keep_untracked
class StoredFrame:
    """A frame of the log that contains messages still referred to."""

    __slots__ = ("live", "position")

    def __init__(self, position: Position) -> None:
        self.position = position
        self.live = 0
        """How many references point into this frame, over all subqueues."""


@learn
@keep_untracked
class Reference:
    """What a subqueue knows of a message. Runs of new ones are made by `broker/native/new_references.c`."""

    __slots__ = (
        "changed",
        "delivery_count",
        "enqueued_at_ms",
        "expires_at_ms",
        "frame",
        "lease",
        "lives_until_ms",
        "offset",
        "payload",
        "sequence_number",
        "size",
        "state",
    )

    if TYPE_CHECKING:  # see `ColumnedReference`
        session_id: bytes | None

    def __init__(
        self,
        sequence_number: int,
        frame: StoredFrame,
        offset: int,
        size: int,
        enqueued_at_ms: int,
        expires_at_ms: int | None,
        payload: bytes = b"",
        lives_until_ms: int | None = None,
    ) -> None:
        self.sequence_number = sequence_number
        self.frame = frame
        self.offset = offset
        self.size = size
        self.enqueued_at_ms = enqueued_at_ms
        """In wall time. While the message is scheduled, the time at which it will be enqueued."""
        self.expires_at_ms = expires_at_ms
        """Enqueued time plus time to live, in wall time. Stored and shown to clients, but never used as a
        deadline."""
        self.lives_until_ms = lives_until_ms
        """When its time to live ends, in monotonic time. None if it never ends, while the message is
        scheduled, and during a replay."""
        self.payload = payload
        """The stored message while it is in memory; otherwise empty."""
        self.delivery_count = 0
        self.state = ACTIVE
        self.lease: Lease | None = None
        self.changed: bytes | None = None


for _column in COLUMNS:
    setattr(Reference, _column.name, _column.default)


@keep_untracked
class ColumnedReference(Reference):
    """What a subqueue knows of a message with columns. All other messages have the columns' defaults, as
    attributes of the class, and pay nothing for columns that they do not use."""

    __slots__ = tuple(column.name for column in COLUMNS)  # set by `columns.give`


_references.bind(Reference, StoredFrame, tuple(KNOWN_COLUMNS.values()))

_SIZE_OF = attrgetter("size")


def bytes_of(references: Iterable[Reference]) -> int:
    """The size of these messages together."""
    return sum(map(_SIZE_OF, references))


TOKEN = struct.Struct(">QQ")
"""A lock token: the message's sequence number and its lease's nonce."""


class Lease:
    """Messages locked together for one client. Their locks share one end, and their lock tokens one nonce."""

    __slots__ = (
        "holder",
        "id",
        "is_delay",
        "left",
        "nonce",
        "references",
        "session",
        "subqueue",
        "until_ms",
    )

    def __init__(
        self,
        id: int,
        nonce: int,
        subqueue: int,
        holder: Holder | None,
        until_ms: int,
        session: SessionHolder | None = None,
    ) -> None:
        self.id = id
        self.nonce = nonce
        """The second half of the lock tokens. A renewal creates another lease with the same nonce."""
        self.subqueue = subqueue
        """The number of the subqueue."""
        self.holder = holder
        """The client that the messages can be recalled from; None if it asked for these messages by
        number."""
        self.until_ms = until_ms
        """With a session: what the client is told. `session.until_ms` decides."""
        self.is_delay = False
        """No client has locked the messages: they are offered again when this lease ends (`delays.py`)."""
        self.session = session
        """Who holds the messages' session. If somebody does, the lease ends with that and has no end of its
        own."""
        self.references: list[Reference] = []
        """The messages that were locked. This lease no longer holds those whose `lease` is now another
        one."""
        self.left = 0
        """How many messages it still holds."""


class Holder:
    """A client that was granted messages for its demand."""

    __slots__ = ("asked", "client", "granted", "under_way")

    def __init__(self, client: ClientId) -> None:
        self.client = client
        self.granted: set[Lease] = set()
        """Leases granted since the last recall that still hold messages."""
        self.asked: set[Lease] = set()
        """Leases named in the recall under way that still hold messages."""
        self.under_way = False


class SessionLock:
    """The lock of a message session. It stays while somebody holds the session, and then until what former
    holders had is back."""

    __slots__ = ("holders", "is_shared", "key", "leaving", "token", "until_ms")

    def __init__(self, token: bytes, until_ms: int, is_shared: bool) -> None:
        self.key = 0
        """Identifies the lock and its end, for as long as the partition is open. A renewal changes it."""
        self.token = token
        """16 bytes that identify the lock for clients, also across restarts."""
        self.until_ms = until_ms
        self.is_shared = is_shared
        """Whether other clients may hold it as well, if they know its token."""
        self.holders: dict[ClientId, SessionHolder] = {}
        """Without any, the lock has ended."""
        self.leaving: set[SessionHolder] = set()
        """Holders that have gone, or have lost the session, and whose messages are being given back. Until
        all are back, the session's messages are given to nobody."""


class SessionHolder:
    """A client that holds a session, its demand, and the leases of the messages that it was given."""

    __slots__ = ("bytes", "client", "count", "has_gone", "leases", "until_ms")

    def __init__(self, client: ClientId, until_ms: int) -> None:
        self.client = client
        self.until_ms = until_ms
        """When the locks of its messages end: with the session's, or when it goes."""
        self.has_gone = False
        """It holds the session no more."""
        self.leases: dict[Lease, None] = {}
        """Those that still hold messages, in the order in which they were made."""
        self.count = 0
        """Messages that it still wants."""
        self.bytes = 0
        """Bytes it may still be given under its latest demand; at 0 the demand is void."""
