"""Measures and counts encoded values without decoding them (AMQP 1.0 §1.6).

A decoded value may take a hundred times the memory of its bytes, and a microsecond for each of its parts; a
list of lists of 4 MB has four million parts. So code that decodes a peer's bytes first counts the values
here, and refuses more than its own bound. Counting stops at the bound, so a refusal is cheap however large
the value is.
"""

from __future__ import annotations

import struct
from typing import Any

from protocol.codec import DEPTH_MAX, DecodeError, decode

VALUES_MAX = 32_768
"""The default bound. A management request about thousands of messages stays far below it. Decoding this many
values takes some 15 ms."""

SIZE8, SIZE32, DESCRIBED, NO_TYPE = 0, -1, -2, -3
_SCALARS = frozenset((0x40, 0x43, 0x52, 0x70, 0xA0, 0xB0))
_U32 = struct.Struct(">I")


class TooManyValues(DecodeError):
    """There are more values than the bound allows."""


def _spans() -> list[int]:
    """For each constructor: the size of the value with its constructor, or how to find it (§1.2)."""
    spans = [NO_TYPE] * 256
    widths = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
    for code in range(0x40, 0x100):
        high = code >> 4
        spans[code] = 1 + widths[high] if high in widths else SIZE32 if high & 1 else SIZE8
    spans[0x00] = DESCRIBED
    return spans


SPANS = _spans()
_STEPS_MAX = 4 * DEPTH_MAX
"""The most steps to skip one value. Each level of descriptors takes two, and no decoder reads more than
DEPTH_MAX levels."""


def skip(buffer: bytes, offset: int) -> int:
    """The offset behind the value at `offset`; it may lie beyond the buffer. Raises DecodeError, IndexError
    or struct.error."""
    pending = 1  # values still to be skipped; a described value counts as two, which avoids recursion
    for _ in range(_STEPS_MAX):
        span = SPANS[buffer[offset]]
        if span > 0:
            offset += span
        elif span == SIZE8:
            offset += 2 + buffer[offset + 1]
        elif span == SIZE32:
            offset += 5 + _U32.unpack_from(buffer, offset + 1)[0]
        elif span == DESCRIBED:
            offset += 1
            pending += 2
        else:
            raise DecodeError(f"no type has the constructor 0x{buffer[offset]:02x} (byte {offset})")
        pending -= 1
        if not pending:
            return offset
    raise DecodeError(f"descriptors nested deeper than {DEPTH_MAX}, at byte {offset}")


def count_values(buffer: bytes, offset: int, end: int, values_max: int) -> int:
    """The number of values between `offset` and `end`, including descriptors and everything inside lists,
    maps and arrays.

    An array of compound elements counts as many values as it has bytes, since each value takes at least one.
    Raises TooManyValues beyond `values_max`, and DecodeError, IndexError or struct.error for bytes that are
    not values.
    """
    count = 0
    while offset < end:
        count += 1
        code = buffer[offset]
        span = SPANS[code]
        high = code >> 4
        if span > 0:
            offset += span
        elif high in (0xC, 0xD):  # a list or map: its elements follow
            offset += 3 if high == 0xC else 9
        elif high in (0xE, 0xF):
            size, elements, first = (
                (buffer[offset + 1], buffer[offset + 2], offset + 3)
                if high == 0xE
                else (
                    _U32.unpack_from(buffer, offset + 1)[0],
                    _U32.unpack_from(buffer, offset + 5)[0],
                    offset + 9,
                )
            )
            if elements:
                compound = buffer[first] >> 4 >= 0xC or buffer[first] in (0x00, 0x45)
                count += max(size, elements) if compound else elements
            offset = skip(buffer, offset)
        elif code == 0x00:
            offset += 1  # the descriptor and the value follow
        else:
            offset = skip(buffer, offset)
        if count > values_max:
            raise TooManyValues(f"more than {values_max} values, the first one at byte {offset}")
    return count


def decode_bounded(buffer: bytes, offset: int = 0, values_max: int = VALUES_MAX) -> tuple[Any, int]:
    """Like `codec.decode`, for at most `values_max` values. Raises only DecodeError."""
    if len(buffer) - offset > values_max and SPANS[buffer[offset]] <= 0:  # every value takes a byte
        try:
            count_values(buffer, offset, min(skip(buffer, offset), len(buffer)), values_max)
        except (IndexError, struct.error) as error:
            raise DecodeError(f"value at byte {offset} is cut off") from error
    return decode(buffer, offset)


def scalar(buffer: bytes, offset: int) -> Any:
    """A null, uint or binary. Other types raise DecodeError and are not decoded: a nested value may be
    large."""
    if buffer[offset] not in _SCALARS:
        raise DecodeError("a field is of another type")
    return decode(buffer, offset)[0]


def is_true(buffer: bytes, place: int) -> bool:
    """Whether the value at `place` is true, in either encoding. Raises IndexError if it is cut off."""
    return buffer[place] == 0x41 or (buffer[place] == 0x56 and buffer[place + 1] == 1)
