"""Mutate valid bytes into invalid ones. Mutations are seeded, so a case can be rebuilt from its number.

There are two kinds. *Bytes*: flip, cut and repeat bytes, or overwrite them with lengths and constructors that
matter. *Frames*: split an AMQP stream into frames (§2.3), then drop, repeat or move frames, send them on
another channel, give them a false size, or replace fields of their performatives with values of other types.
Byte mutations mostly fail in the decoder; frame mutations get past it.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from protocol.codec import (
    Array,
    DecodeError,
    Described,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
)

CHANGES_MAX = 6
BYTES_MAX = 64 * 1024
"""No case grows beyond this. Other tests measure what a large input costs."""

_CONSTRUCTORS = bytes(
    (
        0x00,
        0x40,
        0x41,
        0x42,
        0x43,
        0x44,
        0x45,
        0x50,
        0x52,
        0x53,
        0x70,
        0x80,
        0xA0,
        0xA1,
        0xA3,
        0xB0,
        0xB1,
        0xC0,
        0xC1,
    )
)
_LENGTHS = (0, 1, 4, 7, 8, 9, 255, 256, 511, 512, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1)
_OPEN, _CLOSE = 0x10, 0x18


def mutate(corpus: Sequence[bytes], random: Random, *, frames: bool) -> bytes:
    """Make one case. With `frames`, the corpus is AMQP streams, and most mutations keep them readable."""
    data = random.choice(corpus)
    for _ in range(random.randint(1, CHANGES_MAX)):
        in_frames = frames and random.random() < 0.8
        data = (
            _change_frames(data, corpus, random) if in_frames else random.choice(_BYTE_CHANGES)(data, random)
        )
    return data[:BYTES_MAX]


def cuts(data: bytes, random: Random) -> list[bytes]:
    """Cut the data as it might arrive: in one piece, in a few, or byte by byte for a while."""
    style = random.random()
    if style < 0.4 or len(data) < 2:
        return [data]
    if style < 0.5:
        until = min(len(data), 300)
        return [data[index : index + 1] for index in range(until)] + [data[until:]]
    places = sorted(random.randrange(1, len(data)) for _ in range(random.randint(1, 8)))
    return [data[begin:end] for begin, end in zip([0, *places], [*places, len(data)], strict=True)]


# --- bytes --------------------------------------------------------------------------------------------------


def _flip(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    place = random.randrange(len(data))
    return data[:place] + bytes((data[place] ^ 1 << random.randrange(8),)) + data[place + 1 :]


def _truncate(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _remove(data: bytes, random: Random) -> bytes:
    begin = random.randrange(len(data) + 1)
    return data[:begin] + data[begin + random.randint(1, 16) :]


def _repeat(data: bytes, random: Random) -> bytes:
    begin = random.randrange(len(data) + 1)
    end = begin + random.randint(1, 64)
    return data[:end] + data[begin:end] * random.randint(1, 3) + data[end:]


def _insert(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + random.randbytes(random.randint(1, 12)) + data[place:]


def _length(data: bytes, random: Random) -> bytes:
    place, length = random.randrange(len(data) + 1), random.choice(_LENGTHS)
    written = struct.pack(">I", length) if random.random() < 0.5 else bytes((length & 0xFF,))
    return data[:place] + written + data[place + len(written) :]


def _constructor(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    place = random.randrange(len(data))
    return data[:place] + bytes((random.choice(_CONSTRUCTORS),)) + data[place + 1 :]


_BYTE_CHANGES: tuple[Callable[[bytes, Random], bytes], ...] = (
    _flip,
    _flip,
    _truncate,
    _remove,
    _repeat,
    _insert,
    _length,
    _constructor,
)


# --- frames -------------------------------------------------------------------------------------------------


def split_frames(data: bytes) -> list[bytes]:
    """Split an AMQP stream into protocol headers and frames. The last piece holds whatever cannot be
    split."""
    pieces, offset = [], 0
    while offset < len(data):
        size = 8 if data.startswith(b"AMQP", offset) else int.from_bytes(data[offset : offset + 4], "big")
        if size < 8 or offset + size > len(data):
            pieces.append(data[offset:])
            break
        pieces.append(data[offset : offset + size])
        offset += size
    return pieces


def _change_frames(data: bytes, corpus: Sequence[bytes], random: Random) -> bytes:
    pieces = split_frames(data)
    if not pieces:
        return data
    place = random.randrange(len(pieces))
    match random.randrange(8):
        case 0:
            del pieces[place]
        case 1:
            pieces[place:place] = [pieces[place]] * random.randint(1, 3)
        case 2:
            pieces.insert(random.randrange(len(pieces)), pieces.pop(place))
        case 3:
            pieces[place] = _with_header(pieces[place], random)
        case 4:
            other = split_frames(random.choice(corpus))
            begin = random.randrange(len(other) + 1)
            pieces[place:place] = other[begin : begin + random.randint(1, 4)]
        case _:
            pieces[place] = _with_field(pieces[place], random)
    return b"".join(pieces)


def _with_header(piece: bytes, random: Random) -> bytes:
    """Change the size, offset, type or channel (§2.3.1)."""
    if len(piece) < 8 or piece.startswith(b"AMQP"):
        return piece
    size, offset, kind, channel = struct.unpack_from(">IBBH", piece)
    match random.randrange(4):
        case 0:
            size = random.choice((*_LENGTHS, max(size - 1, 0), min(size + 1, 2**32 - 1)))
        case 1:
            offset = random.choice((0, 1, 3, 255))
        case 2:
            kind = random.choice((1, 2, 255))
        case _:
            channel = random.choice((0, 1, 2, 255, 256, 65_535))
    return struct.pack(">IBBH", size, offset, kind, channel) + piece[8:]


def _with_field(piece: bytes, random: Random) -> bytes:
    """Replace one field of the performative, or one field of a source, target or state within it."""
    if len(piece) < 12 or piece.startswith(b"AMQP") or 4 * piece[4] > len(piece):
        return piece
    body = piece[4 * piece[4] :]
    try:
        value, end = decode(body)
    except DecodeError:
        return piece
    if not isinstance(value, Described):
        return piece
    another = random.random() < 0.1  # another performative, with these fields
    changed = (
        Described(ULong(random.randint(_OPEN, _CLOSE)), value.value) if another else _replaced(value, random)
    )
    body = encode(changed) + body[end:]
    return struct.pack(">I", 4 * piece[4] + len(body)) + piece[4 : 4 * piece[4]] + body


def _replaced(value: Any, random: Random) -> Any:
    if isinstance(value, Described):
        return Described(value.descriptor, _replaced(value.value, random))
    if isinstance(value, list):
        fields = list(value) or [None]
        place = random.randrange(len(fields))
        inner = fields[place]
        fields[place] = (
            _replaced(inner, random)
            if isinstance(inner, Described) and random.random() < 0.6
            else any_value(random)
        )
        return fields
    return any_value(random)


def any_value(random: Random) -> Any:
    """Make a value of any type; more often than not its size is at a limit."""
    return random.choice(_VALUES)(random)


def _any_outcome(random: Random) -> Described:
    fields = [any_value(random) for _ in range(random.randint(0, 3))]
    return Described(
        ULong(random.choice((0x23, 0x24, 0x25, 0x26, 0x27, 0x1D, 0x28, 0x29, 0x30, 0x33, 0x34))), fields
    )


_NUMBERS = (0, 1, 2, 3, 5, 127, 128, 255)
_VALUES: tuple[Callable[[Random], Any], ...] = (
    lambda random: None,
    lambda random: random.random() < 0.5,
    lambda random: UByte(random.choice(_NUMBERS)),
    lambda random: UShort(random.choice((*_NUMBERS, 65_535))),
    lambda random: UInt(random.choice((*_NUMBERS, 2**31 - 1, 2**31, 2**32 - 1))),
    lambda random: UInt(random.choice(_NUMBERS)),
    lambda random: ULong(random.choice((*_NUMBERS, 2**63, 2**64 - 1))),
    lambda random: random.choice((-1, 0, 2**31 - 1, -(2**63))),
    lambda random: Timestamp(random.choice((0, -1, 2**63 - 1))),
    lambda random: random.random(),
    lambda random: random.randbytes(random.choice((0, 1, 4, 16, 32, 33, 300))),
    lambda random: "x" * random.choice((0, 1, 20, 300)),
    lambda random: random.choice(
        ("queue", "$cbs", "queue/$management", "amqps://h/queue", "\x00", "é", "/", "$")
    ),
    lambda random: Symbol("s" * random.choice((0, 1, 300))),
    lambda random: Array(0xA3, [Symbol("one"), Symbol("two")]),
    lambda random: uuid.UUID(bytes=random.randbytes(16)),
    lambda random: [None] * random.choice((0, 1, 20)),
    lambda random: {Symbol("key"): random.choice((1, "text", None)), "plain": [1], 3: {}},
    _any_outcome,
    _any_outcome,
)
