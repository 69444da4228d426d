"""Range envelopes: many active messages of one partition in one delivery (AMQP contract 7.6.2).

    message-annotations     what the envelope holds: numbers, and columns with one element for each message
    data                    the messages one after the other, each whole, as a browsing link delivers it

A reader takes columns and bodies straight out of the envelope's bytes. So columns are arrays of fixed width,
and two of them say where the body of each message is.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from broker.message.annotations import active_deliverables
from broker.message.stored import HEAD, bare_message_offset
from broker.operations.streams import RangeRead
from protocol.codec import Long, Symbol, TypeCode, UInt, encode
from protocol.sections import only_data

NO_BODY: Final = 0xFFFF_FFFF
"""The size of a body that is not one data section."""
_MAP = struct.Struct(">4sII")
_ARRAY = struct.Struct(">BIIB")
_DATA = struct.Struct(">4sI")
_MESSAGE_ANNOTATIONS, _DATA_SECTION = b"\x00\x53\x72\xd1", b"\x00\x53\x75\xb0"


def range_envelope(
    read: RangeRead, begin: int, partition: int, generation: str, *, partitioned: bool = True
) -> bytes:
    """The envelope with the messages of a part of a range, which begins at `begin`."""
    fronts, rests = active_deliverables(read, partition=partition, partitioned=partitioned)
    parts: list[bytes] = []
    sizes: list[int] = []
    body_offsets: list[int] = []
    body_sizes: list[int] = []
    at = 0
    for front, rest in zip(fronts, rests, strict=True):
        if rest:
            body = only_data(rest, bare_message_offset(rest))
            shift = at + len(front) - HEAD.size
            parts += front, rest[HEAD.size :]
            size = len(front) + len(rest) - HEAD.size
        else:
            body, shift, size = only_data(front, 0), at, len(front)
            parts.append(front)
        body_offsets.append(body[0] + shift if body else at)
        body_sizes.append(body[1] if body else NO_BODY)
        sizes.append(size)
        at += size
    deferred, scheduled, expired = read.left_out
    values = {
        "generation": generation,
        "partition": UInt(partition),
        "from": Long(begin),
        "next": Long(read.next),
        "to": Long(read.end),
        "last": read.next == read.end,
        "start": Long(read.start),
        "head": Long(read.head),
        "locked": UInt(read.locked),
        "deferred": UInt(deferred),
        "scheduled": UInt(scheduled),
        "expired": UInt(expired),
        "dead-lettered": UInt(read.dead_lettered),
        "missing": Long(read.missing),
    }
    columns = {
        "sequence-numbers": _column(TypeCode.LONG, read.sequence_numbers),
        "enqueued-times": _column(TypeCode.TIMESTAMP, read.enqueued_at_ms),
        "delivery-counts": _column(TypeCode.UINT, read.delivery_counts),
        "ends": _column(TypeCode.UINT, list(accumulate(sizes))),
        "body-offsets": _column(TypeCode.UINT, body_offsets),
        "body-sizes": _column(TypeCode.UINT, body_sizes),
    }
    pairs = b"".join(
        [
            *(encode(Symbol(key)) + encode(value) for key, value in values.items()),
            *(encode(Symbol(key)) + column for key, column in columns.items()),
        ]
    )
    head = _MAP.pack(_MESSAGE_ANNOTATIONS, 4 + len(pairs), 2 * (len(values) + len(columns)))
    return b"".join((head, pairs, _DATA.pack(_DATA_SECTION, at), *parts))


def _column(constructor: int, numbers: Sequence[int]) -> bytes:
    """An array32 (§1.6.24) of numbers of fixed width."""
    elements = array("I" if constructor == TypeCode.UINT else "q", numbers)
    if sys.byteorder == "little":
        elements.byteswap()
    body = elements.tobytes()
    return _ARRAY.pack(0xF0, 4 + 1 + len(body), len(numbers), constructor) + body
