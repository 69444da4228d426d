"""Finds where the sections of a message begin and end (AMQP 1.0 §3.2), in one walk that decodes nothing.

A section is a described value:

    00  descriptor  value      descriptor: 53 70 … 53 78 (a smallulong, nearly always), a ulong or a symbol
                               value: a list, map or binary; of amqp-value, anything

Only sizes are read. Each section occurs at most once, except data and amqp-sequence: they may repeat, one
directly after the other. A body is of one kind. The order of sections does not matter, since the official
Python client puts delivery-annotations last.

Single fields and map entries are found in the same way, by skipping everything before them. Malformed
messages raise `DecodeError`. This file does not know what a section means to a broker.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from protocol._sections import data as native_data
from protocol._sections import find as native_find
from protocol.codec import DecodeError, Symbol
from protocol.values import SIZE8, SIZE32, SPANS, decode_bounded, skip

(
    HEADER,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    APPLICATION_PROPERTIES,
    DATA,
    SEQUENCE,
    VALUE,
    FOOTER,
) = range(9)

_DESCRIPTOR_BASE = 0x70
SECTION_NAMES = (
    "amqp:header:list",
    "amqp:delivery-annotations:map",
    "amqp:message-annotations:map",
    "amqp:properties:list",
    "amqp:application-properties:map",
    "amqp:data:binary",
    "amqp:amqp-sequence:list",
    "amqp:amqp-value:*",
    "amqp:footer:map",
)
"""The symbolic descriptor of each section, in the order of their numbers (§3.2)."""

_U32 = struct.Struct(">I")
SECTIONS_MAX = 16_384
"""The most repeated sections in one message: parts of a body, or messages in the envelope of a batch. Finding
this many takes 0.2 ms, and some 10 ms if the message turns out to be malformed."""
ELEMENTS_MAX = 65_536
"""The most keys and values in one map. The official Python client reads no more either."""

_LISTS, _MAPS = (0x45, 0xC0, 0xD0), (0xC1, 0xD1)
_LEGAL = frozenset(
    section << 8 | constructor
    for section, constructors in (
        (HEADER, _LISTS), (DELIVERY_ANNOTATIONS, _MAPS), (MESSAGE_ANNOTATIONS, _MAPS), (PROPERTIES, _LISTS),
        (APPLICATION_PROPERTIES, _MAPS), (DATA, (0xA0, 0xB0)), (SEQUENCE, _LISTS), (FOOTER, _MAPS),
        (VALUE, (0x00, *range(0x40, 0x100))),
    )
    for constructor in constructors
)  # fmt: skip


@dataclass(slots=True)
class Sections:
    """Offsets by section number. All three are 0 for a section that is not in the message."""

    begins: list[int]
    """Offsets of descriptors; for a repeated section, that of the first one."""
    values: list[int]
    """Offsets of the values' constructors; for a repeated section, that of the first one."""
    ends: list[int]
    """Offsets behind the sections; for a repeated section, that of the last one."""
    in_order: bool
    """Whether the sections are in the order of the specification."""

    def has(self, section: int) -> bool:
        return self.ends[section] > 0


def find_sections(message: bytes) -> Sections:
    """Find where each section of a message begins and ends. Raises DecodeError."""
    try:
        found = native_find(message, SECTIONS_MAX)
    except OverflowError as error:
        raise DecodeError(str(error)) from None
    return find_by_rules(message) if found is None else Sections(*found)


def find_by_rules(message: bytes) -> Sections:
    """The same in Python: decides on malformed messages, and is the reference for `native/sections.c`."""
    begins, values, ends = [0] * 9, [0] * 9, [0] * 9
    in_order, latest, repeated = True, 0, 0
    offset, size = 0, len(message)
    try:
        while offset < size:
            if message[offset + 1] == 0x53 and not message[offset]:
                section, value = message[offset + 2] - _DESCRIPTOR_BASE, offset + 3
            else:
                section, value = _spelled_descriptor(message, offset)
            constructor = message[value]
            if (section << 8 | constructor) not in _LEGAL:
                raise DecodeError(f"no section of a message begins at byte {offset}")
            span = SPANS[constructor]
            if span == SIZE8:
                end = value + 2 + message[value + 1]
            elif span == SIZE32:
                end = value + 5 + _U32.unpack_from(message, value + 1)[0]
            else:
                end = skip(message, value)
            if end > size:
                raise DecodeError(f"section at byte {offset} reaches to byte {end} of {size}")
            if section < latest:
                in_order = False
            latest = section
            if not ends[section]:
                begins[section], values[section] = offset, value
            elif ends[section] != offset or section not in (DATA, SEQUENCE):
                raise DecodeError(f"section {SECTION_NAMES[section]} occurs a second time at byte {offset}")
            else:
                repeated += 1
                if repeated >= SECTIONS_MAX:
                    raise DecodeError(f"more than {SECTIONS_MAX} sections")
            ends[section] = offset = end
    except (IndexError, struct.error) as error:
        raise DecodeError(f"section at byte {offset} is cut off") from error
    if (ends[DATA] and (ends[SEQUENCE] or ends[VALUE])) or (ends[SEQUENCE] and ends[VALUE]):
        raise DecodeError("a body of more than one kind")
    return Sections(begins, values, ends, in_order)


def section_at(message: bytes, offset: int) -> tuple[int, int]:
    """The section that begins at `offset`, and where its value begins. Raises DecodeError or IndexError."""
    if message[offset + 1] == 0x53 and not message[offset]:
        return message[offset + 2] - _DESCRIPTOR_BASE, offset + 3
    return _spelled_descriptor(message, offset)


def only_data(message: bytes, offset: int) -> tuple[int, int] | None:
    """Where the content of a message's only data section begins, and its size; None if its body is anything
    else. The message begins at `offset`, and is known to be well-formed."""
    size = len(message)
    found: tuple[int, int] | None = None
    while offset < size:
        if message[offset + 1] == 0x53 and not message[offset]:
            section, value = message[offset + 2] - _DESCRIPTOR_BASE, offset + 3
        else:
            section, value = _spelled_descriptor(message, offset)
        span = SPANS[message[value]]
        if span == SIZE8:
            begin, length = value + 2, message[value + 1]
        elif span == SIZE32:
            begin, length = value + 5, _U32.unpack_from(message, value + 1)[0]
        else:
            begin, length = skip(message, value), 0
        if section == DATA:
            if found is not None:
                return None
            found = begin, length
        offset = begin + length
    return found


def _spelled_descriptor(message: bytes, offset: int) -> tuple[int, int]:
    if message[offset]:
        raise DecodeError(f"no section of a message begins at byte {offset}")
    descriptor, value = decode_bounded(message, offset + 1, 1)
    if isinstance(descriptor, Symbol) and descriptor in SECTION_NAMES:
        return SECTION_NAMES.index(descriptor), value
    if isinstance(descriptor, int) and descriptor >= _DESCRIPTOR_BASE:
        return descriptor - _DESCRIPTOR_BASE, value
    raise DecodeError(f"section at byte {offset} has the unknown descriptor {descriptor!r:.40}")


def elements(buffer: bytes, value: int) -> tuple[int, int]:
    """The number of elements in the list or map at `value`, and the offset of the first one."""
    constructor = buffer[value]
    if constructor == 0x45:
        return 0, value + 1
    if constructor < 0xD0:
        return buffer[value + 2], value + 3
    return _U32.unpack_from(buffer, value + 5)[0], value + 9


def fields(buffer: bytes, value: int, end: int, count_max: int) -> list[int]:
    """The offsets of the elements of the list or map at `value`, which ends at `end`, followed by `end`.

    Raises DecodeError if there are more than `count_max`, or if they do not end where the list does.
    """
    try:
        count, offset = elements(buffer, value)
        if count > count_max:
            raise DecodeError(f"{count} elements at byte {value}; the limit is {count_max}")
        offsets = [offset]
        for _ in range(count):
            span = SPANS[buffer[offset]]
            if span > 0:
                offset += span
            elif span == SIZE8:
                offset += 2 + buffer[offset + 1]
            else:
                offset = skip(buffer, offset)
            offsets.append(offset)
    except (IndexError, struct.error) as error:
        raise DecodeError(f"list or map at byte {value} is cut off") from error
    if offset != end:
        raise DecodeError(
            f"elements of the list or map at byte {value} end at byte {offset}, its size says byte {end}"
        )
    return offsets


def pairs(buffer: bytes, value: int, end: int) -> list[int]:
    """The offsets of keys and values, alternating, of the map at `value`, which ends at `end`, followed by
    `end`. Raises DecodeError."""
    offsets = fields(buffer, value, end, ELEMENTS_MAX)
    if not len(offsets) % 2:
        raise DecodeError(f"map of {len(offsets) - 1} elements at byte {value}: a key lacks its value")
    return offsets


def text_bytes(buffer: bytes, offset: int) -> bytes | None:
    """The bytes of the string or symbol at `offset`; None for a value of any other type."""
    constructor = buffer[offset]
    if constructor in (0xA3, 0xA1):
        return buffer[offset + 2 : offset + 2 + buffer[offset + 1]]
    if constructor in (0xB3, 0xB1):
        start = offset + 5
        return buffer[start : start + _U32.unpack_from(buffer, offset + 1)[0]]
    return None


def annotation(message: bytes, sections: Sections, key: bytes) -> Any:
    """The decoded value of one message annotation; None if it is missing. Raises DecodeError."""
    return entry(message, sections, MESSAGE_ANNOTATIONS, key)


def entry(message: bytes, sections: Sections, section: int, key: bytes) -> Any:
    """The decoded value under `key` in a section that is a map; None if it is missing. Of equal keys, the
    last one counts. Raises DecodeError."""
    if not sections.ends[section]:
        return None
    found = None
    places = pairs(message, sections.values[section], sections.ends[section])
    for at_key, at_value in zip(places[:-1:2], places[1::2], strict=True):
        if text_bytes(message, at_key) == key:
            found = at_value
    return None if found is None else decode_bounded(message, found)[0]


def field(message: bytes, sections: Sections, section: int, index: int) -> Any:
    """One decoded field of the header (§3.2.1) or the properties (§3.2.4); None if it is missing. Raises
    DecodeError."""
    if not sections.ends[section]:
        return None
    offsets = fields(message, sections.values[section], sections.ends[section], FIELDS_MAX[section])
    return decode_bounded(message, offsets[index])[0] if index < len(offsets) - 1 else None


def data_sections(message: bytes, sections: Sections) -> list[bytes]:
    """Copies of the contents of the body's data sections, in order (§3.2.6)."""
    return native_data(message, sections.values[DATA], sections.ends[DATA])


FIELDS_MAX = {HEADER: 5, PROPERTIES: 13}
"""The number of fields in the sections that are lists."""
