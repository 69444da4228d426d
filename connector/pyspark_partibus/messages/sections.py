"""Where each section of an encoded message begins and ends (§3.2), found without decoding any of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pyspark_partibus.client.values import Buffer, decode
from pyspark_partibus.errors import BadMessage

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES = 0x70, 0x71, 0x72, 0x73
APPLICATION_PROPERTIES, DATA, SEQUENCE, VALUE, FOOTER = 0x74, 0x75, 0x76, 0x77, 0x78
PROPERTY_FIELDS = (
    "message_id",
    None,
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    None,
    None,
    None,
    "session_id",
    None,
    "reply_to_session_id",
)
"""The columns that are fields of the properties section, in its order (§3.2.4)."""
_CODES = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}
"""By symbol, which a sender may write in place of the code (§1.2)."""
_WIDTHS = (0, 1, 2, 4, 8, 16)
"""Bytes of a value whose constructor begins with 0x4 to 0x9 (§1.2)."""
_u32 = struct.Struct(">I").unpack_from


def sections(data: Buffer, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The code of each section of the message in `data[at:end]`, where its value begins, and where it
    ends."""
    while at < end:
        try:
            if data[at] != 0x00:
                raise BadMessage(f"byte {at} begins no section")
            if data[at + 1] == 0x53:
                code, start = data[at + 2], at + 3
            else:
                descriptor, start = decode(data, at + 1)
                descriptor = _CODES.get(descriptor, descriptor) if isinstance(descriptor, str) else descriptor
                if not isinstance(descriptor, int):
                    raise BadMessage(f"the section at byte {at} has the unknown descriptor {descriptor!r}")
                code = descriptor
            if not HEADER <= code <= FOOTER:
                raise BadMessage(f"the section at byte {at} has the unknown descriptor {code:#x}")
            at = _end_of(data, start)
        except (IndexError, struct.error):
            raise BadMessage(f"the section at byte {at} is cut off") from None
        if at > end:
            raise BadMessage(f"the section that begins at byte {start} is cut off")
        yield code, start, at


def _end_of(data: Buffer, at: int) -> int:
    """Where the value ends that begins at `at`."""
    kind = data[at] >> 4
    if kind >= 0xB:
        return at + (2 + data[at + 1] if kind in (0xC, 0xE) else 5 + int(_u32(data, at + 1)[0]))
    if kind == 0xA:
        return at + 2 + data[at + 1]
    if 0x4 <= kind <= 0x9:
        return at + 1 + _WIDTHS[kind - 4]
    return decode(data, at)[1]  # a described value in a value section
