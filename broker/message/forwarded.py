"""Messages on their way from one entity to another: as their senders encoded them, and with a *trail*. Pure.

The trail is what delivered messages show of their way (AMQP contract 5.5), and how often a message was
forwarded. It is kept in the stored form (`stored.py`), which then has version 5 instead of 1, or 6 instead of
2. The byte that is zero otherwise holds the number of hops, and the annotation pairs begin with the trail's
own:

    x-opt-enqueue-sequence-number   long      the number that the message got first
    x-opt-deadletter-source         string    the entity that it was last dead-lettered in and forwarded from;
                                              there if the flag 4 is set
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from broker.base.errors import Reason, Refused
from broker.message.changes import with_changes
from broker.message.stored import (
    FORWARDED,
    HAS_DEAD_LETTER_SOURCE,
    HAS_PRIORITY,
    HEAD,
    delivery_annotations,
)
from protocol.codec import Symbol, decode, encode

HOPS_MAX = 4
"""How often a message may be forwarded (AMQP contract 10.4)."""
_ORIGINAL = encode(Symbol("x-opt-enqueue-sequence-number")) + b"\x81"
_SOURCE = encode(Symbol("x-opt-deadletter-source"))
_ORIGINAL_BYTES = len(_ORIGINAL) + 8
_PAIRS_BYTES_MAX = 0xFFFF
_HEAD_WITH_HOPS = struct.Struct(">BBBBIHH")
_MAP32 = struct.Struct(">II")
assert _HEAD_WITH_HOPS.size == HEAD.size


class Trail(NamedTuple):
    """How a message came to an entity."""

    hops: int
    original: int
    """The sequence number that it got first."""
    dead_letter_source: str | None = None
    """The entity that it was last dead-lettered in, and forwarded from."""


def trail_of(stored: bytes, sequence_number: int) -> Trail:
    """The trail of a stored message, whose sequence number this is."""
    if not stored[0] & FORWARDED:
        return Trail(0, sequence_number)
    at = HEAD.size + len(_ORIGINAL)
    original = int.from_bytes(stored[at : at + 8], "big", signed=True)
    source = _source_of(stored)
    return Trail(stored[3], original, decode(source)[0] if source else None)


def _source_of(stored: bytes) -> bytes:
    """The encoded name of the dead-letter source; empty if the trail has none."""
    if not stored[1] & HAS_DEAD_LETTER_SOURCE:
        return b""
    at = HEAD.size + _ORIGINAL_BYTES + len(_SOURCE)
    if stored[at] == 0xA1:
        return stored[at : at + 2 + stored[at + 1]]
    return stored[at : at + 5 + int.from_bytes(stored[at + 1 : at + 5], "big")]


def with_trail(stored: bytes, trail: Trail) -> bytes:
    """A stored message that has no trail, with this one. Raises Refused(MESSAGE_TOO_LARGE) if its annotations
    leave no room."""
    version, flags, priority, ttl_ms, pairs, size = HEAD.unpack_from(stored)
    added = _ORIGINAL + trail.original.to_bytes(8, "big", signed=True)
    pairs += 1
    if trail.dead_letter_source is not None:
        added += _SOURCE + encode(trail.dead_letter_source)
        flags |= HAS_DEAD_LETTER_SOURCE
        pairs += 1
    if size + len(added) > _PAIRS_BYTES_MAX:
        raise Refused(
            Reason.MESSAGE_TOO_LARGE,
            f"The message's annotations take {size} bytes, and leave no room for {len(added)} more.",
        )
    head = _HEAD_WITH_HOPS.pack(
        version | FORWARDED, flags, priority, trail.hops, ttl_ms, pairs, size + len(added)
    )
    return b"".join((head, added, stored[HEAD.size :]))


def without_hops(stored: bytes) -> bytes:
    """The stored message as if it had not been forwarded yet, but with the rest of its trail."""
    return stored[:3] + b"\0" + stored[4:] if stored[3] else stored


def as_sent(stored: bytes, changed: bytes | None) -> bytes:
    """A stored message as a sender would encode it, without its trail. `changed`: application properties to
    lay over its own."""
    _, flags, priority, ttl_ms, pairs, size = HEAD.unpack_from(stored)
    begin, end = HEAD.size, HEAD.size + size
    if stored[0] & FORWARDED:
        pairs -= 1
        begin += _ORIGINAL_BYTES
        if source := _source_of(stored):
            pairs -= 1
            begin += len(_SOURCE) + len(source)
    delivery_pairs, delivery_own, bare = delivery_annotations(stored, end)
    parts = [_header(priority if flags & HAS_PRIORITY else None, ttl_ms)]
    if delivery_pairs:
        parts += b"\x00\x53\x71\xd1", _MAP32.pack(4 + len(delivery_own), 2 * delivery_pairs), delivery_own
    if pairs:
        parts += b"\x00\x53\x72\xd1", _MAP32.pack(4 + end - begin, 2 * pairs), stored[begin:end]
    parts.append(stored[bare:] if changed is None else with_changes(stored[bare:], changed))
    return b"".join(parts)


@lru_cache(maxsize=1024)  # few values differ within a queue
def _header(priority: int | None, ttl_ms: int) -> bytes:
    """A header section (§3.2.1) with what the sender had set; empty if it had set nothing."""
    if priority is None and not ttl_ms:
        return b""
    body = b"\x03\x40" + (b"\x40" if priority is None else bytes((0x50, priority)))
    body += b"\x70" + ttl_ms.to_bytes(4, "big") if ttl_ms else b"\x40"
    return b"\x00\x53\x70\xc0" + bytes((len(body),)) + body
