"""Operations that a partition carries out, and its answers: plain data, no live objects.

Each operation travels to the partition's mailbox with the number of the *client* that asks (a link, a
management request, an HTTP request: `ClientId`), and each answer travels back to the sink kept under
that number. A client gets its answers in the order in which the partition decided them. `cookie` is the
client's own note and is returned unchanged. One operation carries many messages; nothing is made per message.

A *lock token* is the 16 bytes used as delivery tag: the sequence number (8 bytes, big endian; its top 16 bits
are the partition's number) and a nonce that distinguishes this lock from every other lock of the same
message, also across restarts.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.base.errors import Reason
from broker.entities.descriptions import EntityDescription
from broker.identifiers import NO_CLIENT as NO_CLIENT
from broker.identifiers import PARTITION_SHIFT as PARTITION_SHIFT
from broker.identifiers import ClientId as ClientId
from broker.identifiers import LockToken as LockToken
from broker.identifiers import partition_of as partition_of
from broker.identifiers import partition_of_token as partition_of_token
from broker.identifiers import sequence_of_token as sequence_of_token
from broker.rule_operations import RuleChangesFound, RuleOperation
from broker.schedule_operations import BreakPromise, Promised, PromiseNumbers, Reschedule
from broker.selection_operations import CameBack, WatchReturned
from broker.session_operations import SessionAnswer, SessionOperation, WatchSessions
from broker.settlement_operations import Abandon as Abandon
from broker.settlement_operations import Complete as Complete
from broker.settlement_operations import DeadLetter as DeadLetter
from broker.settlement_operations import Defer as Defer
from broker.settlement_operations import GiveBack as GiveBack
from broker.settlement_operations import Release as Release
from broker.settlement_operations import RenewLocks as RenewLocks
from broker.stream_operations import StreamAnswer, StreamOperation
from broker.transfer_operations import (
    FailTransfer,
    FindSources,
    HandedOver,
    HandOver,
    LockNext,
    SourcesFound,
)

BYTES_UNBOUNDED = 1 << 62


# --- columns ------------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Column:
    """One thing that is known of each message. Operations and answers hold it as a list in parallel with the
    messages."""

    name: str
    """In `columns` of operations and answers, and in a partition's reference."""
    number: int
    """In records and checkpoints. It identifies this column for ever: never reuse a number."""
    code: str
    """How a value is stored: the array type of a number (Q 8 bytes, I 4, H 2), or "" for bytes, where None
    means no value."""
    default: int | bytes | None
    """The value of messages that came without one. A column in which all values are the default is not
    stored."""
    is_answered: bool = True
    """Whether `Locked` and `Peeked` show it to receivers. `Locked` shows all columns of messages that were
    asked for by number, or by the broker itself."""


SESSION_ID: Final = "session_id"
DESTINATION: Final = "destination"
"""The name of the entity that a message in the transfer subqueue is for, in UTF-8."""
COLUMNS: Final[tuple[Column, ...]] = (
    Column(SESSION_ID, 1, "", None, is_answered=False),
    Column(DESTINATION, 2, "", None, is_answered=False),
)
"""The columns that a sender may give to its messages, and that stay with them from then on.

*To add one, add it here.* A `Send` with the column in its `columns` has it stored with the message. Recovery,
compaction, checkpoints and repair keep it (`broker/partition/columns.py`), receivers' shelves split it like
all other lists, and `Locked` and `Peeked` return it in their `columns`.
"""

ColumnLists = dict[str, list[int | bytes | None]]
"""Columns of some messages, by name."""

KNOWN_COLUMNS: Final = {
    "sequence_numbers": "sequence_number",
    "enqueued_at_ms": "enqueued_at_ms",
    "delivery_counts": "delivery_count",
    "expires_at_ms": "expires_at_ms",
    "messages": "payload",
    "changed": "changed",
}
"""The lists of `Locked` and `Peeked` that all messages have, and the attributes of references they show."""


# --- operations ---------------------------------------------------------------------------------------------


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
class Demand:
    """Raise by `count` the number of messages that this client wants to lock and receive from a subqueue.

    Answered with `Locked`, now or later and as often as messages are available, until the demand is used up
    or withdrawn.
    """

    subqueue: str
    count: int
    tell_unmet: bool = False
    """Also answer with `Unmet` if the demand cannot be met at once."""
    bytes_max: int = BYTES_UNBOUNDED
    """Once messages of this many bytes were given (at least one message), the rest of the demand is void, and
    `Locked` says so."""


@dataclass(slots=True)
class Withdraw:
    """The client wants nothing more from the subqueue for now. Answered with `Withdrawn`, after the last
    `Locked`."""

    subqueue: str


@dataclass(slots=True)
class Transact:
    """Carry out a send and settlements together, in one commit: all of them, or none (AMQP contract 8.2).
    Answered with `Transacted`, or with `Failed` if any of them cannot be carried out."""

    send: Send
    """May have no messages. Its cookie is not used, and neither are those of the settlements."""
    settlements: Sequence[Complete | Abandon | Defer | DeadLetter]
    """Their tokens are all different."""
    cookie: object = None
    cancelled: Sequence[int] = ()
    """Scheduled messages to remove."""
    scheduled: Send | None = None
    """Messages to schedule with the sequence numbers that were promised for them …"""
    promised: Sequence[int] = ()
    """… which are these: whole promises, one after the other (`PromiseNumbers`)."""
    transfers: Send | None = None
    """Messages for other entities, with the column DESTINATION. They go to the transfer subqueue."""
    full: str | None = None
    room: int = 0
    """Why the whole entity has no room for the messages unless the transaction makes it, and the bytes that
    it has left; None if it has room."""
    change_id: bytes = b""
    rule_changes: bytes = b""
    """Changes of a topic's rules, and their id: noted until the topic has them. Empty for none."""


@dataclass(slots=True)
class Recalled:
    """A client's answer to `Recall`: `tokens` are given back as with `Release`, and the client holds no other
    unseen message."""

    subqueue: str
    tokens: Sequence[LockToken]


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
class CancelScheduled:
    """Remove scheduled messages of the main subqueue before their time. Answered with `Settled`.

    A message that is not there, or not scheduled any more, is one of its failures (MESSAGE_NOT_FOUND); the
    others are removed all the same.
    """

    sequence_numbers: Sequence[int]
    cookie: object = None


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


@dataclass(slots=True)
class Redrive:
    """Enqueue locked messages of a dead-letter subqueue anew in the main one, and remove them from it.

    Both happen in one commit: a crash leaves each message in exactly one of the two. Answered with
    `Redriven`, or `Failed`, after which the messages are available in the dead-letter subqueue.
    """

    tokens: Sequence[LockToken]
    messages: Sequence[bytes]
    """The messages as they are to be stored, one for each token."""
    time_to_live_ms: Sequence[int | None] | None
    cookie: object = None
    columns: ColumnLists = field(default_factory=dict)


@dataclass(slots=True)
class Update:
    """The entity's settings have changed. Answered with `Updated`.

    A partition that is down remembers the description and applies it once it is back.
    """

    description: EntityDescription
    cookie: object = None


@dataclass(slots=True)
class Detach:
    """The client is gone: its demand ends, and its unsettled messages stay locked until their locks run out.

    `unseen` are the locked messages that it never saw: they go back at once, without counting a delivery.
    Never answered.
    """

    unseen: Sequence[LockToken] = ()


Operation = (
    Send | Demand | Withdraw | Complete | Abandon | Defer | DeadLetter | Transact
    | Release | GiveBack | Recalled | RenewLocks | Peek
    | Watch | ReceiveDeferred | CancelScheduled | Delete | Update | Detach | DeleteExactly
    | FindDeadLetters | LockExactly | Redrive | Reschedule | PromiseNumbers | BreakPromise
    | HandOver | LockNext | FailTransfer | FindSources | RuleOperation
    | SessionOperation | StreamOperation | SendSinkBatch | WatchReturned
)  # fmt: skip


# --- answers ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sent:
    """The messages are durable. `first` is the first message's sequence number; the others follow it without
    a gap."""

    first: int
    cookie: object
    duplicates: list[int] = field(default_factory=list)
    """The places of messages that were dropped, because the window of duplicate detection holds their
    identities. They have no sequence number."""


@dataclass(slots=True)
class Failed:
    """Nothing of the operation was done."""

    reason: Reason
    description: str
    cookie: object


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
class Settled:
    """A settlement is durable. `failures` gives the tokens or sequence numbers that it did not reach (by
    position in the operation), and why."""

    cookie: object
    failures: dict[int, Reason] = field(default_factory=dict)


@dataclass(slots=True)
class Transacted:
    """Everything in a `Transact` was carried out and is durable."""

    sent: int
    """The number of messages that were sent, also to other entities, or scheduled."""
    cookie: object


@dataclass(slots=True)
class Renewed:
    """Locks last until `locked_until_ms`, in monotonic time, except those in `failures` (by position in the
    operation)."""

    locked_until_ms: int
    cookie: object
    failures: dict[int, Reason] = field(default_factory=dict)


class MessageState(enum.IntEnum):
    """`x-opt-message-state` (AMQP contract 5.5), and what a partition stores as the state of a message.

    A lock is not a state: it comes on top of one, and is not stored.
    """

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


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


@dataclass(slots=True)
class Recall:
    """The partition asks the client to return the messages of this subqueue that it holds unseen. The client
    answers with `Recalled`, even if it holds none."""

    partition: int
    subqueue: str


@dataclass(slots=True)
class Updated:
    """The partition uses the new settings."""

    cookie: object


@dataclass(slots=True)
class Unavailable:
    """The partition went down: the client's demand and locks in it are void. Sent once to each attached
    client."""

    partition: int
    for_good: bool = False
    """The partition will not come back while the broker runs, so there is no use in asking again."""


Answer = (
    Sent | Failed | Locked | Unmet | Withdrawn | Settled | Transacted | Renewed | Peeked | Arrived | Deleted
    | Recall | Updated | Unavailable | DeletedExactly
    | Found | Redriven | Promised | HandedOver | SourcesFound | RuleChangesFound
    | SessionAnswer | StreamAnswer | CameBack
)  # fmt: skip


def refusal_of(operation: Operation, partition: int, reason: Reason, description: str) -> Answer | None:
    """The answer to an operation that reaches a partition that is gone for good; None if the operation is
    never answered."""
    match operation:
        case Demand() | Watch() | WatchSessions() | WatchReturned():
            return Unavailable(partition, for_good=True)
        case Withdraw():
            return Withdrawn(partition, operation.subqueue)
        case Detach() | Release() | Recalled():
            return None
        case _:
            return Failed(reason, description, operation.cookie)


Sink = Callable[[Answer], None]
"""Takes a client's answers. Called in the event loop; must not raise or block."""


@dataclass(slots=True)
class SubqueueCounts:
    """How many messages of each state a subqueue of one partition holds."""

    active: int = 0
    """Ready for delivery, or locked."""
    locked: int = 0
    deferred: int = 0
    scheduled: int = 0
    bytes: int = 0
    message_ids: int = 0
    """Message-ids remembered to detect duplicates, in the main subqueue of an open partition."""
