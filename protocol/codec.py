"""The AMQP 1.0 type system (§1.6), as other modules import it: types, decoding and encoding in one place.

Knows nothing of messages, frames or entities.
"""

from __future__ import annotations

from protocol.decode import ZERO_WIDTH_ELEMENTS_MAX, decode, decode_all
from protocol.encode import encode, encode_list, encode_map, encode_text
from protocol.types import (
    DEPTH_MAX,
    Array,
    Buffer,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    DecodeError,
    Described,
    EncodeError,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    TypeCode,
    UByte,
    UInt,
    ULong,
    UShort,
)

__all__ = [
    "DEPTH_MAX",
    "ZERO_WIDTH_ELEMENTS_MAX",
    "Array",
    "Buffer",
    "Byte",
    "Char",
    "Decimal32",
    "Decimal64",
    "Decimal128",
    "DecodeError",
    "Described",
    "EncodeError",
    "Float",
    "Int",
    "Long",
    "Short",
    "Symbol",
    "Timestamp",
    "TypeCode",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "decode",
    "decode_all",
    "encode",
    "encode_list",
    "encode_map",
    "encode_text",
]
