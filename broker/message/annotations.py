"""What the broker puts in front of a message on delivery: its header and the `x-opt-*` annotations.

    header                delivery-annotations      message-annotations     bare message
    durable, priority,    x-opt-lock-token of a     the broker's, then      as stored (`stored.py`),
    ttl, delivery-count   lock, then the sender's   the sender's own        unless properties were changed

The types are those that the official clients cast to (AMQP contract 5.5): `long` for sequence numbers,
`timestamp` for times, `int` for the state, `short` for the partition. Descriptors are smallulongs, because
the Python client reads them at a fixed place. The ttl is the one in force, so that enqueued-time + ttl is
when the message expires, as the client computes it. A delivery always has a delivery-annotations section,
with or without a lock (AMQP contract 5.5); a browsed message has the section only if its sender set it.

One call handles a batch: what all its messages share is prepared once, and native code
(`broker/native/annotations.c`) makes the rest for all messages but those with changed properties.
Nothing here knows links or partitions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

from broker.identifiers import partition_of
from broker.message._annotations import fronts
from broker.message.changes import with_changes
from broker.message.stored import FORWARDED, HAS_PRIORITY, HEAD, delivery_annotations
from broker.operations.browsing import Peeked
from broker.operations.message_states import MessageState
from broker.operations.receiving import Locked
from broker.operations.streams import RangeRead
from protocol.codec import Short, Symbol, Timestamp, encode

TIME_TO_LIVE_MS_MAX = 2**32 - 1
"""What fits header.ttl (§3.2.1): about 49.7 days."""


def _key(name: str) -> bytes:
    return encode(Symbol(name))


def _numbers_layout() -> tuple[struct.Struct, tuple[bytes, bytes, bytes, bytes]]:
    """The start of the message-annotations section: its size, its count, and the three numbers each delivery
    has."""
    constants = (
        b"\x00\x53\x72\xd1",
        _key("x-opt-sequence-number") + b"\x81",
        _key("x-opt-enqueued-time") + b"\x83",
        _key("x-opt-enqueue-sequence-number") + b"\x81",
    )
    section, sequence_number, enqueued_time, original = map(len, constants)
    return struct.Struct(f">{section}sII{sequence_number}sq{enqueued_time}sq{original}sq"), constants


_NUMBERS, (_SECTION, _SEQUENCE_NUMBER, _ENQUEUED_TIME, _ENQUEUE_SEQUENCE_NUMBER) = _numbers_layout()
_NUMBERS_BYTES = (
    _NUMBERS.size - 8
)  # what the map's size covers: the count and what follows, but not the section's head
_NUMBERS_ELEMENTS = 6
_TWO_NUMBERS = struct.Struct(f">{len(_SECTION)}sII{len(_SEQUENCE_NUMBER)}sq{len(_ENQUEUED_TIME)}sq")
"""The same for a forwarded message, whose own annotations begin with the original sequence number
(`forwarded.py`)."""

_LOCKED_UNTIL, _PARTITION_ID = _key("x-opt-locked-until"), _key("x-opt-partition-id")
_STATE = _key("x-opt-message-state")
_TOKEN_KEY = _key("x-opt-lock-token") + b"\x98"
_LOCK_TOKEN = b"\x00\x53\x71\xc1" + bytes((1 + len(_TOKEN_KEY) + 16, 2)) + _TOKEN_KEY
"""The delivery-annotations section of a message with a lock, up to the lock token."""
_NO_TOKEN = b"\x00\x53\x71\xc1\x01\x00"
"""The empty delivery-annotations section of a message without a lock."""
_SIZE_AND_COUNT = struct.Struct(">II")

Deliverables = tuple[list[bytes], list[bytes]]
"""Messages as delivered, in two parallel lists, which the engine joins for all of them at once: the bytes in
front of each message, and its stored form, from which the engine skips the first HEAD.size bytes. The second
is empty where the first is the whole message."""


def deliverables(
    locked: Locked,
    *,
    peek_lock: bool = True,
    partitioned: bool = True,
    wall_ahead_ms: int = 0,
) -> Deliverables:
    """The messages of a batch, in the batch's order.

    `peek_lock` is False for receive-and-delete, whose messages show no lock. `wall_ahead_ms` converts the end
    of the locks to wall time (`broker/base/clock.py`).
    """
    constants = constants_of(
        locked_until_ms=locked.locked_until_ms + wall_ahead_ms if peek_lock else None,
        partition_id=locked.partition if partitioned else None,
        state=MessageState.DEFERRED if locked.deferred else None,
    )
    return _in_two_parts(locked, locked.tokens if peek_lock else None, constants)


def active_deliverables(read: RangeRead, *, partition: int, partitioned: bool = True) -> Deliverables:
    """The messages of a range, which are active, as a browser sees them."""
    constants = constants_of(partition_id=partition if partitioned else None, state=MessageState.ACTIVE)
    return _in_two_parts(read, None, constants)


def _in_two_parts(
    messages: Locked | RangeRead, tokens: list[bytes] | None, constants: Constants
) -> Deliverables:
    shared, shared_elements = constants
    made, rests, left = fronts(
        messages.messages,
        tokens,
        messages.sequence_numbers,
        messages.enqueued_at_ms,
        messages.expires_at_ms,
        messages.delivery_counts,
        messages.changed,
        shared,
        shared_elements,
    )
    for index in left:
        made[index] = built(messages, index, constants, tokens[index] if tokens is not None else None)
    return made, rests


def built(messages: Locked | RangeRead, index: int, constants: Constants, token: bytes | None) -> bytes:
    """One complete message of a batch, made without native code; `token` is None without a lock. This is the
    reference if the two differ."""
    (whole,) = _build(
        [constants],
        [messages.messages[index]],
        [messages.sequence_numbers[index]],
        [messages.enqueued_at_ms[index]],
        [messages.delivery_counts[index]],
        [messages.expires_at_ms[index]],
        [messages.changed[index]],
        [_uuid(token) if token is not None else b""],
    )
    return whole


def joined(deliverables: Deliverables) -> list[bytes]:
    """The messages, each in one piece."""
    return [front + rest[HEAD.size :] for front, rest in zip(*deliverables, strict=True)]


def peeked_messages(peeked: Peeked, *, partitioned: bool = True) -> list[bytes]:
    """Messages as a browser sees them: with their state, without a lock."""
    by_state: dict[tuple[int, int], Constants] = {}
    constants = []
    for state, sequence_number in zip(peeked.states, peeked.sequence_numbers, strict=True):
        kind = state, partition_of(sequence_number)
        if kind not in by_state:
            by_state[kind] = constants_of(partition_id=kind[1] if partitioned else None, state=state)
        constants.append(by_state[kind])
    return _build(
        constants,
        peeked.messages,
        peeked.sequence_numbers,
        peeked.enqueued_at_ms,
        peeked.delivery_counts,
        peeked.expires_at_ms,
        peeked.changed,
        None,
    )


Constants = tuple[bytes, int]
"""Encoded annotation pairs that many messages share, and the number of their elements."""


def constants_of(
    *,
    locked_until_ms: int | None = None,
    partition_id: int | None = None,
    state: int | None = None,
) -> Constants:
    """Encode those that are given: when the locks end (ms of wall time since the epoch), the partition's
    number, and the state of the messages (`MessageState`)."""
    parts: list[bytes] = []
    if locked_until_ms is not None:
        parts += _LOCKED_UNTIL, encode(Timestamp(locked_until_ms))
    if partition_id is not None:
        parts += _PARTITION_ID, encode(Short(partition_id))
    if state is not None:
        parts += _STATE, encode(state)
    return b"".join(parts), len(parts)


def _build(
    constants: Sequence[Constants],
    messages: Sequence[bytes],
    sequence_numbers: Sequence[int],
    enqueued_at_ms: Sequence[int],
    delivery_counts: Sequence[int],
    expires_at_ms: Sequence[int | None],
    changed: Sequence[bytes | None],
    tokens: Sequence[bytes] | None,
) -> list[bytes]:
    """Complete messages of any kind. `tokens` is None for browsed messages; a message without a lock has an
    empty token."""
    join, pack, unpack, head_bytes = b"".join, _NUMBERS.pack, HEAD.unpack_from, HEAD.size
    built = []
    for index, stored in enumerate(messages):
        version, flags, priority, ttl_ms, pairs, pairs_bytes = unpack(stored)
        own_end = head_bytes + pairs_bytes
        delivery_pairs, delivery_own, bare = delivery_annotations(stored, own_end)
        sequence_number, enqueued_ms, expires_ms = (
            sequence_numbers[index],
            enqueued_at_ms[index],
            expires_at_ms[index],
        )
        shared, shared_elements = constants[index]
        if expires_ms is not None:
            ttl_ms = min(max(expires_ms - enqueued_ms, 1), TIME_TO_LIVE_MS_MAX)  # 0 would mean no ttl
        header = _header(priority if flags & HAS_PRIORITY else None, ttl_ms, delivery_counts[index])
        if tokens is not None or delivery_pairs:
            header += _delivery_section(
                tokens[index] if tokens is not None else b"", delivery_pairs, delivery_own
            )
        if version & FORWARDED:
            numbers = _TWO_NUMBERS.pack(
                _SECTION,
                _TWO_NUMBERS.size - 8 + len(shared) + pairs_bytes,
                4 + shared_elements + 2 * pairs,
                _SEQUENCE_NUMBER,
                sequence_number,
                _ENQUEUED_TIME,
                enqueued_ms,
            )
        else:
            numbers = pack(
                _SECTION,
                _NUMBERS_BYTES + len(shared) + pairs_bytes,
                _NUMBERS_ELEMENTS + shared_elements + 2 * pairs,
                _SEQUENCE_NUMBER,
                sequence_number,
                _ENQUEUED_TIME,
                enqueued_ms,
                _ENQUEUE_SEQUENCE_NUMBER,
                sequence_number,
            )
        change = changed[index]
        if change is not None:
            built.append(
                join(
                    (header, numbers, shared, stored[head_bytes:own_end], with_changes(stored[bare:], change))
                )
            )
        elif own_end == bare:
            built.append(join((header, numbers, shared, stored[head_bytes:])))
        else:
            built.append(join((header, numbers, shared, stored[head_bytes:own_end], stored[bare:])))
    return built


@lru_cache(maxsize=1024)  # few values differ within a queue
def _header(priority: int | None, ttl_ms: int, delivery_count: int) -> bytes:
    """A header section (§3.2.1): durable, priority and ttl if set, first-acquirer, delivery-count."""
    body = b"".join(
        (
            b"\x05\x41",
            b"\x40" if priority is None else bytes((0x50, priority)),
            b"\x70" + ttl_ms.to_bytes(4, "big") if ttl_ms else b"\x40",
            b"\x42\x70" + delivery_count.to_bytes(4, "big") if delivery_count else b"\x41\x43",
        )
    )
    return b"\x00\x53\x70\xc0" + bytes((len(body),)) + body


def _delivery_section(token: bytes, pairs: int, own: bytes) -> bytes:
    """The delivery-annotations of one message: its lock token, if any, and the sender's own pairs."""
    if not pairs:
        return _LOCK_TOKEN + token if token else _NO_TOKEN
    body = _TOKEN_KEY + token + own if token else own
    elements = 2 * (pairs + 1) if token else 2 * pairs
    return b"\x00\x53\x71\xd1" + _SIZE_AND_COUNT.pack(4 + len(body), elements) + body


def _uuid(token: bytes) -> bytes:
    """A lock token in the byte order of AMQP's uuid; a delivery tag holds it as a .NET GUID (AMQP contract
    5.3)."""
    return token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]
