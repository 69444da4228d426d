"""What the broker puts in front of a message when it hands it out: header and `x-opt-*` annotations.

    header                delivery-annotations      message-annotations          bare message
    durable, priority,    x-opt-lock-token, for     the broker's, then the       as it rests (`stored_message.py`),
    ttl, delivery-count   a deferred message        sender's own                 unless properties were changed

Types are those that the official clients cast to (AMQP contract 5.5): `long` for sequence numbers, `timestamp` for times,
`int` for the state, `short` for the partition; descriptors are smallulongs, for the Python client reads them at a fixed
place. The ttl is the one in force, so that enqueued-time + ttl is when the message expires: the client computes it so.

One call per batch: what is the same for all its messages is prepared once. Nothing here knows links or partitions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache

from broker.changed_properties import with_changes
from broker.operations import Locked, MessageState, Peeked, partition_of
from broker.stored_message import HAS_PRIORITY, HEAD, PLAIN, VERSION
from protocol.codec import Short, Symbol, Timestamp, encode

TIME_TO_LIVE_MS_MAX = 2**32 - 1
"""What fits header.ttl (§3.2.1): about 49.7 days."""


def _key(name: str) -> bytes:
    return encode(Symbol(name))


def _numbers_layout() -> tuple[struct.Struct, tuple[bytes, bytes, bytes, bytes]]:
    """The begin of the message-annotations section: its size, its count, and the three numbers each delivery has."""
    constants = (
        b"\x00\x53\x72\xd1",
        _key("x-opt-sequence-number") + b"\x81",
        _key("x-opt-enqueued-time") + b"\x83",
        _key("x-opt-enqueue-sequence-number") + b"\x81",
    )
    section, sequence_number, enqueued_time, original = map(len, constants)
    return struct.Struct(f">{section}sII{sequence_number}sq{enqueued_time}sq{original}sq"), constants


_NUMBERS, (_SECTION, _SEQUENCE_NUMBER, _ENQUEUED_TIME, _ENQUEUE_SEQUENCE_NUMBER) = _numbers_layout()
_NUMBERS_BYTES = _NUMBERS.size - 8  # what counts for the size of the map: not the section's head, but its count
_NUMBERS_ELEMENTS = 6

_LOCKED_UNTIL, _PARTITION_ID = _key("x-opt-locked-until"), _key("x-opt-partition-id")
_STATE, _DEAD_LETTER_SOURCE = _key("x-opt-message-state"), _key("x-opt-deadletter-source")
_LOCK_TOKEN = b"\x00\x53\x71\xc1\x24\x02" + _key("x-opt-lock-token") + b"\x98"

_MAP_HEAD = struct.Struct(f">{len(_SECTION)}sII")
_FIRST_DELIVERY = b"\x00\x53\x70\xc0\x06\x05\x41\x40\x40\x41\x43"
"""The header of a message without priority and ttl, not delivered before: durable, first acquirer, count 0."""


Deliverables = tuple[list[bytes], list[bytes]]
"""Messages as a receiver is to see them, in two parts, which the engine joins for all of them at once: what stands in front of each,
and the rest, behind the first HEAD.size bytes of it; empty where the front is all."""


def deliverables(
    locked: Locked, *, peek_lock: bool = True, partitioned: bool = True, dead_letter_source: str | None = None
) -> Deliverables:
    """The messages of a batch, in the batch's order.

    `peek_lock` is False for receive-and-delete, whose messages show no lock. `dead_letter_source` names the entity that
    messages forwarded out of a dead-letter queue died in.
    """
    constants = _constants(
        locked_until_ms=locked.locked_until_ms if peek_lock else None,
        partition_id=locked.partition if partitioned else None,
        state=MessageState.DEFERRED if locked.deferred else None,
        dead_letter_source=dead_letter_source,
    )
    if locked.deferred or dead_letter_source is not None:
        return _build_locked(locked, constants, peek_lock), [b""] * len(locked.messages)
    return _build_plain(locked, constants)


def joined(deliverables: Deliverables) -> list[bytes]:
    """The messages, each in one piece."""
    return [front + rest[HEAD.size :] for front, rest in zip(*deliverables, strict=True)]


def _build_plain(locked: Locked, constants: _Constants) -> Deliverables:
    """The short way: most messages of a batch differ in their numbers and bytes alone. The others take the long one."""
    shared, shared_elements = constants
    layouts: dict[tuple[int | None, int], tuple[Callable[..., bytes], bytes]] = {}
    fronts: list[bytes] = []
    rests = list(locked.messages)
    for index, (stored, sequence_number, enqueued_ms, expires_ms, delivery_count, change) in enumerate(zip(
        locked.messages,
        locked.sequence_numbers,
        locked.enqueued_at_ms,
        locked.expires_at_ms,
        locked.delivery_counts,
        locked.changed,
        strict=True,
    )):  # fmt: skip
        if change is not None or not stored.startswith(PLAIN):
            whole = _build([constants], [stored], [sequence_number], [enqueued_ms], [delivery_count], [expires_ms], [change], None)
            fronts += whole
            rests[index] = b""
            continue
        kind = (expires_ms and expires_ms - enqueued_ms, delivery_count)
        layout = layouts.get(kind)
        if layout is None:
            ttl_ms = 0 if expires_ms is None else min(max(expires_ms - enqueued_ms, 1), TIME_TO_LIVE_MS_MAX)
            begin = _header(None, ttl_ms, delivery_count) if ttl_ms or delivery_count else _FIRST_DELIVERY
            begin += _MAP_HEAD.pack(_SECTION, _NUMBERS_BYTES + len(shared), _NUMBERS_ELEMENTS + shared_elements) + _SEQUENCE_NUMBER
            layout = layouts[kind] = (_layout_from(len(begin), len(shared)), begin)
        pack, begin = layout
        fronts.append(pack(begin, sequence_number, _ENQUEUED_TIME, enqueued_ms, _ENQUEUE_SEQUENCE_NUMBER, sequence_number, shared))
    return fronts, rests


@lru_cache(maxsize=64)
def _layout_from(begin_bytes: int, shared_bytes: int) -> Callable[..., bytes]:
    """Packs all that stands in front of a plain message: what it begins with, its numbers, what the batch shares."""
    return struct.Struct(f">{begin_bytes}sq{len(_ENQUEUED_TIME)}sq{len(_ENQUEUE_SEQUENCE_NUMBER)}sq{shared_bytes}s").pack


def _build_locked(locked: Locked, constants: _Constants, peek_lock: bool) -> list[bytes]:
    return _build(
        [constants] * len(locked.messages),
        locked.messages,
        locked.sequence_numbers,
        locked.enqueued_at_ms,
        locked.delivery_counts,
        locked.expires_at_ms,
        locked.changed,
        locked.tokens if locked.deferred and peek_lock else None,
    )


def peeked_messages(peeked: Peeked, *, partitioned: bool = True) -> list[bytes]:
    """Messages as a browser is to see them: with their state, without a lock."""
    by_state: dict[tuple[int, int], _Constants] = {}
    constants = []
    for state, sequence_number in zip(peeked.states, peeked.sequence_numbers, strict=True):
        kind = state, partition_of(sequence_number)
        if kind not in by_state:
            by_state[kind] = _constants(partition_id=kind[1] if partitioned else None, state=state)
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


_Constants = tuple[bytes, int]
"""Encoded annotation pairs that many messages share, and the number of their elements."""


def _constants(
    *,
    locked_until_ms: int | None = None,
    partition_id: int | None = None,
    state: int | None = None,
    dead_letter_source: str | None = None,
) -> _Constants:
    parts: list[bytes] = []
    if locked_until_ms is not None:
        parts += _LOCKED_UNTIL, encode(Timestamp(locked_until_ms))
    if partition_id is not None:
        parts += _PARTITION_ID, encode(Short(partition_id))
    if state is not None:
        parts += _STATE, encode(state)
    if dead_letter_source is not None:
        parts += _DEAD_LETTER_SOURCE, encode(dead_letter_source)
    return b"".join(parts), len(parts)


def _build(
    constants: Sequence[_Constants],
    messages: Sequence[bytes],
    sequence_numbers: Sequence[int],
    enqueued_at_ms: Sequence[int],
    delivery_counts: Sequence[int],
    expires_at_ms: Sequence[int | None],
    changed: Sequence[bytes | None],
    tokens: Sequence[bytes] | None,
) -> list[bytes]:
    join, pack, unpack, head_bytes = b"".join, _NUMBERS.pack, HEAD.unpack_from, HEAD.size
    built = []
    for index, stored in enumerate(messages):
        version, flags, priority, ttl_ms, pairs, pairs_bytes = unpack(stored)
        assert version == VERSION
        sequence_number, enqueued_ms, expires_ms = sequence_numbers[index], enqueued_at_ms[index], expires_at_ms[index]
        shared, shared_elements = constants[index]
        if expires_ms is not None:
            ttl_ms = min(max(expires_ms - enqueued_ms, 1), TIME_TO_LIVE_MS_MAX)  # 0 would read as none
        if delivery_counts[index] or flags & HAS_PRIORITY or ttl_ms:
            header = _header(priority if flags & HAS_PRIORITY else None, ttl_ms, delivery_counts[index])
        else:
            header = _FIRST_DELIVERY
        if tokens is not None:
            header += _LOCK_TOKEN + _uuid_order(tokens[index])
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
        if change is None:
            built.append(join((header, numbers, shared, stored[head_bytes:])))
        else:
            bare = head_bytes + pairs_bytes
            built.append(join((header, numbers, shared, stored[head_bytes:bare], with_changes(stored[bare:], change))))
    return built


@lru_cache(maxsize=1024)  # the messages of a queue differ little in this
def _header(priority: int | None, ttl_ms: int, delivery_count: int) -> bytes:
    """A header section (§3.2.1): durable, priority and ttl where there is one, first-acquirer, delivery-count."""
    body = b"".join(
        (
            b"\x05\x41",
            b"\x40" if priority is None else bytes((0x50, priority)),
            b"\x70" + ttl_ms.to_bytes(4, "big") if ttl_ms else b"\x40",
            b"\x42\x70" + delivery_count.to_bytes(4, "big") if delivery_count else b"\x41\x43",
        )
    )
    return b"\x00\x53\x70\xc0" + bytes((len(body),)) + body


def _uuid_order(token: bytes) -> bytes:
    """A lock token in the byte order of AMQP's uuid: a delivery tag has it as a .NET GUID (AMQP contract 5.3)."""
    return token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]
