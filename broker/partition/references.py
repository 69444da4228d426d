"""What a subqueue knows of a message, and who holds it: references, leases, holders. Plain data.

A *reference* is what a subqueue knows of a message; the bytes stand once in the log (`frame`, `offset`,
`size`). A *lease* holds messages that were locked together, and a *holder* is a client with leases that may
be recalled. The three refer to one another, so they stand in one file.

A million waiting messages should fit in memory, so a reference is one object with slots and no container;
numbers that many messages share (times, sizes, the frame) are one object for all.

The cyclic garbage collector does not look at references and frames, nor at the containers that hold all of
them (`_untracked`): to look at a million of them takes up to 100 ms. A reference is part of a cycle only
while a lease holds it, and whoever ends a lease or drops the state breaks it.
"""

from __future__ import annotations

from broker.operations import COLUMNS, ClientId, MessageState
from broker.partition._untracked import keep_untracked
from storage.log import Position

ACTIVE, DEFERRED = MessageState.ACTIVE, MessageState.DEFERRED
STATES = (ACTIVE, DEFERRED)
"""The states of messages, by the number that records and checkpoints give them. A lock on top of a state is
volatile: `Reference.lease`."""


@keep_untracked
class StoredFrame:
    """A frame of the log in which messages stand that are still referred to."""

    __slots__ = ("live", "position")

    def __init__(self, position: Position) -> None:
        self.position = position
        self.live = 0
        """References to messages in this frame, over all subqueues."""


@keep_untracked
class Reference:
    """What a subqueue knows of a message."""

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
        *(column.name for column in COLUMNS),  # set by `columns.give`
    )

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
        self.expires_at_ms = expires_at_ms
        """Enqueued time plus time to live, in wall time: stored and shown, but never used as a deadline."""
        self.lives_until_ms = lives_until_ms
        """When its time to live ends, in monotonic time; None for never, and while a replay goes on."""
        self.payload = payload
        """The stored message while it is in memory, else empty."""
        self.delivery_count = 0
        self.state = ACTIVE
        self.lease: Lease | None = None
        self.changed: bytes | None = None


class Lease:
    """Messages locked for one client at one time: they share the end of the lock and the nonce of their
    tokens."""

    __slots__ = ("holder", "id", "left", "nonce", "references", "subqueue", "until_ms")

    def __init__(self, id: int, nonce: int, subqueue: int, holder: Holder | None, until_ms: int) -> None:
        self.id = id
        self.nonce = nonce
        """The second half of the lock tokens. A renewal makes another lease with the same nonce."""
        self.subqueue = subqueue
        """Its number."""
        self.holder = holder
        """Whom the messages can be recalled from; None if the client asked for these very messages."""
        self.until_ms = until_ms
        self.references: list[Reference] = []
        """What was locked; those whose `lease` is another one by now are not held by this one any more."""
        self.left = 0
        """How many it still holds."""


class Holder:
    """A client that was granted messages in answer to a demand."""

    __slots__ = ("asked", "client", "granted", "under_way")

    def __init__(self, client: ClientId) -> None:
        self.client = client
        self.granted: set[Lease] = set()
        """Leases since the last recall that still hold something."""
        self.asked: set[Lease] = set()
        """Leases that the recall under way speaks of, and that still hold something."""
        self.under_way = False
