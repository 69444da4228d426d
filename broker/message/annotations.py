"""What the broker puts in front of a message when it hands it out: header and `x-opt-*` annotations.

    header                delivery-annotations      message-annotations          bare message durable,
    priority,    x-opt-lock-token of a     the broker's, then the       as it rests (`stored.py`)        ,
    ttl, delivery-count   lock, then the sender's   sender's own                 unless properties were
    changed

Types are those that the official clients cast to (AMQP contract 5.5): `long` for sequence numbers,
`timestamp` for times, `int` for the state, `short` for the partition; descriptors are smallulongs, for the
Python client reads them at a fixed place. The ttl is the one in force, so that enqueued-time + ttl is when
the message expires: the client computes it so. A delivery always has a delivery-annotations section, with or
without a lock (AMQP contract 5.5); a message that is only shown has the section if its sender set it.

One call per batch: what is the same for all its messages is prepared once. Nothing here knows links or
partitions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import repeat

from broker.message.changes import with_changes
from broker.message.stored import HAS_PRIORITY, HEAD, PLAIN, delivery_annotations
from broker.operations import Locked, MessageState, Peeked, partition_of
from protocol.codec import Short, Symbol, Timestamp, encode

TIME_TO_LIVE_MS_MAX = 2**32 - 1
"""What fits header.ttl (§3.2.1): about 49.7 days."""


def _key(name: str) -> bytes:
    return encode(Symbol(name))


def _numbers_layout() -> tuple[struct.Struct, tuple[bytes, bytes, bytes, bytes]]:
    """The begin of the message-annotations section: its size, its count, and the three numbers each delivery
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
)  # what counts for the size of the map: not the section's head, but its count
_NUMBERS_ELEMENTS = 6

_LOCKED_UNTIL, _PARTITION_ID = _key("x-opt-locked-until"), _key("x-opt-partition-id")
_STATE, _DEAD_LETTER_SOURCE = _key("x-opt-message-state"), _key("x-opt-deadletter-source")
_TOKEN_KEY = _key("x-opt-lock-token") + b"\x98"
_TOKEN_BYTES = 16
_LOCK_TOKEN = b"\x00\x53\x71\xc1" + bytes((1 + len(_TOKEN_KEY) + _TOKEN_BYTES, 2)) + _TOKEN_KEY
"""The delivery-annotations section of a plain message with a lock, up to the token …"""
_NO_TOKEN = b"\x00\x53\x71\xc1\x01\x00"
"""… and the empty section of a message without a lock."""
_NO_LOCK = (b"",)
_SIZE_AND_COUNT = struct.Struct(">II")
_SWAPS = [
    (slice(to, None, _TOKEN_BYTES), slice(source, None, _TOKEN_BYTES))
    for to, source in enumerate((3, 2, 1, 0, 5, 4, 7, 6))
]
"""The bytes whose order differs between a delivery tag and a uuid: for all tokens, where the byte goes and
where it comes from (AMQP contract 5.3)."""
_FEW = 8
"""From this many tokens on, swapping the bytes of all tokens at once is faster than one token after the
other."""
_SPLIT_TOKENS = struct.Struct(f"{_TOKEN_BYTES}s").iter_unpack

_MAP_HEAD = struct.Struct(f">{len(_SECTION)}sII")
_FIRST_DELIVERY = b"\x00\x53\x70\xc0\x06\x05\x41\x40\x40\x41\x43"
"""The header of a message without priority and ttl, not delivered before: durable, first acquirer, count
0."""


Deliverables = tuple[list[bytes], list[bytes]]
"""Messages as a receiver is to see them, in two parts, which the engine joins for all of them at once: what
stands in front of each, and the rest, behind the first HEAD.size bytes of it; empty where the front is
all."""


def deliverables(
    locked: Locked,
    *,
    peek_lock: bool = True,
    partitioned: bool = True,
    dead_letter_source: str | None = None,
    wall_ahead_ms: int = 0,
) -> Deliverables:
    """The messages of a batch, in the batch's order.

    `peek_lock` is False for receive-and-delete, whose messages show no lock. `dead_letter_source` names the
    entity that messages forwarded out of a dead-letter queue died in. `wall_ahead_ms` converts the end of the
    locks to wall time (`broker/base/clock.py`).
    """
    constants = _constants(
        locked_until_ms=locked.locked_until_ms + wall_ahead_ms if peek_lock else None,
        partition_id=locked.partition if partitioned else None,
        state=MessageState.DEFERRED if locked.deferred else None,
        dead_letter_source=dead_letter_source,
    )
    tokens = _uuids(locked.tokens) if peek_lock else repeat(_NO_LOCK, len(locked.tokens))
    if locked.deferred or dead_letter_source is not None:
        return _build_locked(locked, constants, tokens), [b""] * len(locked.messages)
    return _build_plain(locked, constants, tokens)


def joined(deliverables: Deliverables) -> list[bytes]:
    """The messages, each in one piece."""
    return [front + rest[HEAD.size :] for front, rest in zip(*deliverables, strict=True)]


def _build_plain(locked: Locked, constants: _Constants, tokens: Iterable[tuple[bytes]]) -> Deliverables:
    """The short way: most messages of a batch differ in their numbers and bytes alone. The others take the
    long one."""
    shared, shared_elements = constants
    middle = (
        _MAP_HEAD.pack(_SECTION, _NUMBERS_BYTES + len(shared), _NUMBERS_ELEMENTS + shared_elements)
        + _SEQUENCE_NUMBER
    )
    layouts: dict[tuple[int | None, int], tuple[Callable[..., bytes], bytes]] = {}
    fronts: list[bytes] = []
    rests = list(locked.messages)
    for index, (stored, sequence_number, enqueued_ms, expires_ms, delivery_count, change,
    (token,)) in enumerate(zip(
        locked.messages,
        locked.sequence_numbers,
        locked.enqueued_at_ms,
        locked.expires_at_ms,
        locked.delivery_counts,
        locked.changed,
        tokens,
        strict=True,
    )):  # fmt: skip
        if change is not None or not stored.startswith(PLAIN):
            whole = _build(
                [constants],
                [stored],
                [sequence_number],
                [enqueued_ms],
                [delivery_count],
                [expires_ms],
                [change],
                [(token,)],
            )
            fronts += whole
            rests[index] = b""
            continue
        kind = (expires_ms and expires_ms - enqueued_ms, delivery_count)
        layout = layouts.get(kind)
        if layout is None:
            ttl_ms = 0 if expires_ms is None else min(max(expires_ms - enqueued_ms, 1), TIME_TO_LIVE_MS_MAX)
            begin = _header(None, ttl_ms, delivery_count) if ttl_ms or delivery_count else _FIRST_DELIVERY
            begin += _LOCK_TOKEN if token else _NO_TOKEN
            layout = layouts[kind] = (_layout_from(len(begin), len(token) + len(middle), len(shared)), begin)
        pack, begin = layout
        fronts.append(
            pack(
                begin,
                token + middle,
                sequence_number,
                _ENQUEUED_TIME,
                enqueued_ms,
                _ENQUEUE_SEQUENCE_NUMBER,
                sequence_number,
                shared,
            )
        )
    return fronts, rests


@lru_cache(maxsize=64)
def _layout_from(begin_bytes: int, middle_bytes: int, shared_bytes: int) -> Callable[..., bytes]:
    """Packs the front of a plain message: its header, its token, its numbers, and what the batch shares."""
    return struct.Struct(
        f">{begin_bytes}s{middle_bytes}sq{len(_ENQUEUED_TIME)}sq{len(_ENQUEUE_SEQUENCE_NUMBER)}sq{shared_bytes}s"
    ).pack


def _build_locked(locked: Locked, constants: _Constants, tokens: Iterable[tuple[bytes]]) -> list[bytes]:
    return _build(
        [constants] * len(locked.messages),
        locked.messages,
        locked.sequence_numbers,
        locked.enqueued_at_ms,
        locked.delivery_counts,
        locked.expires_at_ms,
        locked.changed,
        list(tokens),
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
    tokens: Sequence[tuple[bytes]] | None,
) -> list[bytes]:
    """The long way, for any message. `tokens` is None for messages that are only shown; a token is empty
    without a lock."""
    join, pack, unpack, head_bytes = b"".join, _NUMBERS.pack, HEAD.unpack_from, HEAD.size
    built = []
    for index, stored in enumerate(messages):
        _, flags, priority, ttl_ms, pairs, pairs_bytes = unpack(stored)
        own_end = head_bytes + pairs_bytes
        delivery_pairs, delivery_own, bare = delivery_annotations(stored, own_end)
        sequence_number, enqueued_ms, expires_ms = (
            sequence_numbers[index],
            enqueued_at_ms[index],
            expires_at_ms[index],
        )
        shared, shared_elements = constants[index]
        if expires_ms is not None:
            ttl_ms = min(max(expires_ms - enqueued_ms, 1), TIME_TO_LIVE_MS_MAX)  # 0 would read as none
        if delivery_counts[index] or flags & HAS_PRIORITY or ttl_ms:
            header = _header(priority if flags & HAS_PRIORITY else None, ttl_ms, delivery_counts[index])
        else:
            header = _FIRST_DELIVERY
        if tokens is not None or delivery_pairs:
            header += _delivery_section(
                tokens[index][0] if tokens is not None else b"", delivery_pairs, delivery_own
            )
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


@lru_cache(maxsize=1024)  # the messages of a queue differ little in this
def _header(priority: int | None, ttl_ms: int, delivery_count: int) -> bytes:
    """A header section (§3.2.1): durable, priority and ttl where there is one, first-acquirer,
    delivery-count."""
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
    """The delivery-annotations of one message: its lock's token, if it has one, and the sender's own
    pairs."""
    if not pairs:
        return _LOCK_TOKEN + token if token else _NO_TOKEN
    body = _TOKEN_KEY + token + own if token else own
    elements = 2 * (pairs + 1) if token else 2 * pairs
    return b"\x00\x53\x71\xd1" + _SIZE_AND_COUNT.pack(4 + len(body), elements) + body


def _uuids(tokens: Sequence[bytes]) -> Iterable[tuple[bytes]]:
    """Lock tokens in the byte order of AMQP's uuid: a delivery tag has them as a .NET GUID (AMQP contract
    5.3)."""
    if len(tokens) < _FEW:
        return [(token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:],) for token in tokens]
    tags = b"".join(tokens)
    uuids = bytearray(tags)
    for to, source in _SWAPS:
        uuids[to] = tags[source]
    return _SPLIT_TOKENS(uuids)
