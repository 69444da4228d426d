"""Encodes AMQP 1.0 values (§1.6), each in the shortest form of its type (`types.py`)."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from protocol.types import (
    DEPTH_MAX,
    Array,
    Buffer,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    EncodeError,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_I8, _I16, _I32, _I64 = struct.Struct(">b"), struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_F32, _F64 = struct.Struct(">f"), struct.Struct(">d")


def encode(value: Any) -> bytes:
    """Encode a value in its shortest form. Raises EncodeError if AMQP cannot carry it."""
    try:
        return _encode(value, 0)
    except (struct.error, UnicodeEncodeError, OverflowError, TypeError, AttributeError) as error:
        raise EncodeError(f"{value!r:.80} does not fit its AMQP type: {error}") from error


def encode_list(fields: Sequence[bytes]) -> bytes:
    """Encode a list of values that are already encoded (§1.6.22)."""
    return _compound_bytes(0xC0, 0xD0, len(fields), b"".join(fields))


def encode_map(keys_and_values: Sequence[bytes]) -> bytes:
    """Encode a map from its keys and values, alternating and already encoded (§1.6.23)."""
    return _compound_bytes(0xC1, 0xD1, len(keys_and_values), b"".join(keys_and_values))


def encode_text(utf8: bytes) -> bytes:
    """Encode a string that is already in UTF-8 (§1.6.20)."""
    return _variable_bytes(0xA1, utf8)


def _encode(value: Any, depth: int) -> bytes:
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        encoder = _inherited_encoder(type(value))
    return encoder(value, depth)


_Encoder = Callable[[Any, int], bytes]


def _inherited_encoder(kind: type) -> _Encoder:
    for ancestor in kind.__mro__[1:]:
        if ancestor in _ENCODERS:
            return _ENCODERS[ancestor]
    raise EncodeError(f"AMQP has no type for {kind.__name__}")


def _encode_int(value: int, depth: int) -> bytes:
    if -128 <= value <= 127:
        return b"\x54" + _I8.pack(value)
    if -(2**31) <= value < 2**31:
        return b"\x71" + _I32.pack(value)
    return b"\x81" + _I64.pack(value)


def _encode_forced_int(value: int, depth: int) -> bytes:
    return b"\x54" + _I8.pack(value) if -128 <= value <= 127 else b"\x71" + _I32.pack(value)


def _encode_long(value: int, depth: int) -> bytes:
    return b"\x55" + _I8.pack(value) if -128 <= value <= 127 else b"\x81" + _I64.pack(value)


def _encode_uint(value: int, depth: int) -> bytes:
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if 0 < value < 256 else b"\x70" + _U32.pack(value)


def _encode_ulong(value: int, depth: int) -> bytes:
    if value == 0:
        return b"\x44"
    return bytes((0x53, value)) if 0 < value < 256 else b"\x80" + _U64.pack(value)


def _plain(code: int, layout: struct.Struct) -> _Encoder:
    head, pack = bytes((code,)), layout.pack
    return lambda value, depth: head + pack(value)


def _encode_raw(code: int, size: int) -> _Encoder:
    head = bytes((code,))

    def encode_one(value: bytes, depth: int) -> bytes:
        if len(value) != size:
            raise EncodeError(f"decimal of {len(value)} bytes, {size} wanted")
        return head + value

    return encode_one


def _variable_bytes(code: int, data: Buffer) -> bytes:
    size = len(data)
    head = bytes((code, size)) if size < 256 else bytes((code | 0x10,)) + _U32.pack(size)
    return head + data


def _compound_bytes(code8: int, code32: int, count: int, elements: bytes) -> bytes:
    size = len(elements)
    if count < 256 and size < 255:  # the size includes the byte that holds the count
        return bytes((code8, size + 1, count)) + elements
    return bytes((code32,)) + _U32.pack(size + 4) + _U32.pack(count) + elements


def _deeper(depth: int) -> int:
    if depth >= DEPTH_MAX:
        raise EncodeError(f"values nested deeper than {DEPTH_MAX}")
    return depth + 1


def _encode_list(value: Sequence[Any], depth: int) -> bytes:
    if not value:
        return b"\x45"
    depth = _deeper(depth)
    return _compound_bytes(0xC0, 0xD0, len(value), b"".join([_encode(element, depth) for element in value]))


def _encode_map(value: dict[Any, Any], depth: int) -> bytes:
    depth = _deeper(depth)
    pairs = [_encode(key, depth) + _encode(entry, depth) for key, entry in value.items()]
    return _compound_bytes(0xC1, 0xD1, 2 * len(pairs), b"".join(pairs))


def _encode_described(value: Described, depth: int) -> bytes:
    depth = _deeper(depth)
    return b"\x00" + _encode(value.descriptor, depth) + _encode(value.value, depth)


def _encode_array(value: Array, depth: int) -> bytes:
    depth = _deeper(depth)
    try:
        element = _ELEMENTS[value.type_code]
    except KeyError:
        raise EncodeError(f"no type has the constructor 0x{value.type_code:02x}") from None
    constructor = bytes((value.type_code,))
    if value.descriptor is not None:
        constructor = b"\x00" + _encode(value.descriptor, depth) + constructor
    elements = constructor + b"".join([element(one, depth) for one in value.values])
    return _compound_bytes(0xE0, 0xF0, len(value.values), elements)


_ENCODERS: dict[type, _Encoder] = {
    type(None): lambda value, depth: b"\x40",
    bool: lambda value, depth: b"\x41" if value else b"\x42",
    int: _encode_int,
    float: _plain(0x82, _F64),
    str: lambda value, depth: _variable_bytes(0xA1, value.encode("utf-8")),
    bytes: lambda value, depth: _variable_bytes(0xA0, value),
    bytearray: lambda value, depth: _variable_bytes(0xA0, value),
    memoryview: lambda value, depth: _variable_bytes(0xA0, bytes(value)),
    uuid.UUID: lambda value, depth: b"\x98" + value.bytes,
    list: _encode_list,
    tuple: _encode_list,
    dict: _encode_map,
    Symbol: lambda value, depth: _variable_bytes(0xA3, value.encode("ascii")),
    Char: lambda value, depth: b"\x73" + _element_char(value, depth),
    UByte: _plain(0x50, struct.Struct(">B")),
    UShort: _plain(0x60, _U16),
    UInt: _encode_uint,
    ULong: _encode_ulong,
    Byte: _plain(0x51, _I8),
    Short: _plain(0x61, _I16),
    Int: _encode_forced_int,
    Long: _encode_long,
    Timestamp: _plain(0x83, _I64),
    Float: _plain(0x72, _F32),
    Decimal32: _encode_raw(0x74, 4),
    Decimal64: _encode_raw(0x84, 8),
    Decimal128: _encode_raw(0x94, 16),
    Described: _encode_described,
    Array: _encode_array,
}


# --- elements of arrays: without their constructor, in the width that the array's constructor sets ----------


def _element_char(value: str, depth: int) -> bytes:
    if len(value) != 1:
        raise EncodeError(f"{value!r:.20} is not one character")
    return value.encode("utf-32-be")


def _element_constant(expected: Any) -> _Encoder:
    def encode_one(value: Any, depth: int) -> bytes:
        if value != expected:
            raise EncodeError(f"{value!r:.80} in an array of {expected!r}")
        return b""

    return encode_one


def _element_fixed(layout: struct.Struct) -> _Encoder:
    pack = layout.pack
    return lambda value, depth: pack(value)


def _element_sized(size: struct.Struct, text_encoding: str | None) -> _Encoder:
    def encode_one(value: Any, depth: int) -> bytes:
        data = value.encode(text_encoding) if text_encoding else bytes(value)
        return size.pack(len(data)) + data

    return encode_one


def _element_compound(size: struct.Struct, flatten: Callable[[Any], Sequence[Any]]) -> _Encoder:
    def encode_one(value: Any, depth: int) -> bytes:
        depth = _deeper(depth)
        flat = flatten(value)
        elements = b"".join([_encode(element, depth) for element in flat])
        return size.pack(len(elements) + size.size) + size.pack(len(flat)) + elements

    return encode_one


def _element_array(size: struct.Struct) -> _Encoder:
    def encode_one(value: Array, depth: int) -> bytes:
        whole = _encode_array(value, depth)
        head = 3 if whole[0] == 0xE0 else 9
        return size.pack(len(whole) - head + size.size) + size.pack(len(value.values)) + whole[head:]

    return encode_one


def _flat_map(value: dict[Any, Any]) -> Sequence[Any]:
    return [part for pair in value.items() for part in pair]


def _elements() -> dict[int, _Encoder]:
    u8 = struct.Struct(">B")
    table: dict[int, _Encoder] = {
        0x40: _element_constant(None), 0x41: _element_constant(True), 0x42: _element_constant(False),
        0x43: _element_constant(0), 0x44: _element_constant(0), 0x45: _element_constant([]),
        0x73: _element_char, 0x98: lambda value, depth: value.bytes,
        0xE0: _element_array(u8), 0xF0: _element_array(_U32),
    }  # fmt: skip
    layouts = {
        0x50: u8, 0x51: _I8, 0x52: u8, 0x53: u8, 0x54: _I8, 0x55: _I8, 0x56: struct.Struct(">?"), 0x60: _U16,
        0x61: _I16,
        0x70: _U32, 0x71: _I32, 0x72: _F32, 0x80: _U64, 0x81: _I64, 0x82: _F64, 0x83: _I64,
        0x74: struct.Struct("4s"), 0x84: struct.Struct("8s"), 0x94: struct.Struct("16s"),
    }  # fmt: skip
    table |= {code: _element_fixed(layout) for code, layout in layouts.items()}
    for size, high in ((u8, 0xA0), (_U32, 0xB0)):
        for low, text_encoding in ((0x0, None), (0x1, "utf-8"), (0x3, "ascii")):
            table[high | low] = _element_sized(size, text_encoding)
        table[high + 0x20] = _element_compound(size, lambda value: value)
        table[high + 0x21] = _element_compound(size, _flat_map)
    return table


_ELEMENTS = _elements()
