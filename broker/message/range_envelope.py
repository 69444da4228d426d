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
from dataclasses import dataclass
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
    laid_out = _lay_out(fronts, rests)
    report = _report(read, begin, partition, generation)
    columns = {
        "sequence-numbers": _column(TypeCode.LONG, read.sequence_numbers),
        "enqueued-times": _column(TypeCode.TIMESTAMP, read.enqueued_at_ms),
        "delivery-counts": _column(TypeCode.UINT, read.delivery_counts),
        "ends": _column(TypeCode.UINT, laid_out.ends),
        "body-offsets": _column(TypeCode.UINT, laid_out.body_offsets),
        "body-sizes": _column(TypeCode.UINT, laid_out.body_sizes),
    }
    pairs = b"".join(
        [
            *(encode(Symbol(key)) + encode(value) for key, value in report.items()),
            *(encode(Symbol(key)) + column for key, column in columns.items()),
        ]
    )
    head = _MAP.pack(_MESSAGE_ANNOTATIONS, 4 + len(pairs), 2 * (len(report) + len(columns)))
    size = laid_out.ends[-1] if laid_out.ends else 0
    return b"".join((head, pairs, _DATA.pack(_DATA_SECTION, size), *laid_out.parts))


@dataclass(slots=True)
class _LaidOut:
    """Messages one after the other, and where each of them is; the lists of numbers are parallel."""

    parts: list[bytes]
    """All bytes, in pieces."""
    ends: list[int]
    """The offset behind each message."""
    body_offsets: list[int]
    """That of a message's body; the message's own if it has no such body."""
    body_sizes: list[int]
    """NO_BODY for a body that is not one data section."""


def _lay_out(fronts: Sequence[bytes], rests: Sequence[bytes]) -> _LaidOut:
    """Lay out messages that come in two pieces each (`active_deliverables`), of which `rests` may be
    empty."""
    laid_out = _LaidOut([], [], [], [])
    at = 0
    for front, rest in zip(fronts, rests, strict=True):
        if rest:
            body = only_data(rest, bare_message_offset(rest))
            shift = at + len(front) - HEAD.size
            laid_out.parts += front, rest[HEAD.size :]
            size = len(front) + len(rest) - HEAD.size
        else:
            body, shift, size = only_data(front, 0), at, len(front)
            laid_out.parts.append(front)
        laid_out.body_offsets.append(body[0] + shift if body else at)
        laid_out.body_sizes.append(body[1] if body else NO_BODY)
        at += size
        laid_out.ends.append(at)
    return laid_out


def _report(read: RangeRead, begin: int, partition: int, generation: str) -> dict[str, object]:
    """What the envelope says of the range, beside its messages."""
    deferred, scheduled, expired = read.left_out
    return {
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


def _column(constructor: int, numbers: Sequence[int]) -> bytes:
    """An array32 (§1.6.24) of numbers of fixed width."""
    elements = array("I" if constructor == TypeCode.UINT else "q", numbers)
    if sys.byteorder == "little":
        elements.byteswap()
    body = elements.tobytes()
    return _ARRAY.pack(0xF0, 4 + 1 + len(body), len(numbers), constructor) + body
