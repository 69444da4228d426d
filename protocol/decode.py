"""Decodes AMQP 1.0 values (§1.6).

It decodes single values: bodies of management requests, annotations, fields of performatives. A message on
its way through is never decoded; `sections.py` finds its parts without that.

The bytes are untrusted. Nesting, counts and sizes are bounded by the bytes that are actually there, and every
malformed input raises `DecodeError`, never another Python exception. A decoded value encodes to its own type
again (`encode.py`).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
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
    DecodeError,
    Described,
    Float,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

ZERO_WIDTH_ELEMENTS_MAX = 16
"""The most elements in an array whose elements take no bytes (null, true, list0 …). Nothing else bounds their
number."""

_Decoder = Callable[[Buffer, int, int], tuple[Any, int]]
"""(buffer, offset after the constructor, depth) → (value, offset after the value)."""

_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_I8, _I16, _I32, _I64 = struct.Struct(">b"), struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_F32, _F64 = struct.Struct(">f"), struct.Struct(">d")


def decode(buffer: Buffer, offset: int = 0) -> tuple[Any, int]:
    """Decode the value at `offset`; gives it and the offset behind it. Raises only DecodeError."""
    try:
        return _decode(buffer, offset, 0)
    except DecodeError:
        raise
    except (IndexError, struct.error) as error:
        raise DecodeError(f"value at byte {offset} is cut off") from error
    except UnicodeDecodeError as error:
        raise DecodeError(f"value at byte {offset}: text is not {error.encoding}") from error


def decode_all(buffer: Buffer) -> Any:
    """Decode the one value that fills the buffer. Raises DecodeError, also if bytes are left over."""
    value, end = decode(buffer)
    if end != len(buffer):
        raise DecodeError(f"{len(buffer) - end} bytes after the value")
    return value


def _decode(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
    return _DECODERS[buffer[offset]](buffer, offset + 1, depth)


def _unknown(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
    raise DecodeError(f"no type has the constructor 0x{buffer[offset - 1]:02x} (byte {offset - 1})")


def _constant(value: Any) -> _Decoder:
    return lambda buffer, offset, depth: (value, offset)


def _empty_list(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
    return [], offset


def _boolean(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
    byte = buffer[offset]
    if byte > 1:
        raise DecodeError(f"boolean of {byte} at byte {offset}")
    return byte == 1, offset + 1


def _fixed(layout: struct.Struct, kind: Callable[[Any], Any] | None = None) -> _Decoder:
    unpack, size = layout.unpack_from, layout.size
    if kind is None:
        return lambda buffer, offset, depth: (unpack(buffer, offset)[0], offset + size)
    return lambda buffer, offset, depth: (kind(unpack(buffer, offset)[0]), offset + size)


def _small(kind: Callable[[int], Any]) -> _Decoder:
    return lambda buffer, offset, depth: (kind(buffer[offset]), offset + 1)


def _take(buffer: Buffer, offset: int, size: int) -> Buffer:
    taken = buffer[offset : offset + size]
    if len(taken) != size:
        raise DecodeError(f"value at byte {offset} wants {size} bytes, {len(taken)} are left")
    return taken


def _raw(size: int, kind: Callable[[Buffer], Any]) -> _Decoder:
    return lambda buffer, offset, depth: (kind(_take(buffer, offset, size)), offset + size)


def _uuid(data: Buffer) -> uuid.UUID:
    """As `uuid.UUID(bytes=…)`, which takes several times as long: a request may hold 60,000 lock tokens."""
    made = _new(_UUID)
    _set_int(made, int.from_bytes(data, "big"))
    _set_safe(made, _UNKNOWN)
    return made


_new, _UUID, _UNKNOWN = object.__new__, uuid.UUID, uuid.SafeUUID.unknown
_set_int, _set_safe = (vars(uuid.UUID)[name].__set__ for name in ("int", "is_safe"))


def _char(code_point: int) -> Char:
    if code_point > 0x10FFFF or 0xD800 <= code_point <= 0xDFFF:
        raise DecodeError(f"0x{code_point:x} is not a character")
    return Char(chr(code_point))


def _text(data: Buffer) -> str:
    return str(data, "utf-8")


def _symbol(data: Buffer) -> Symbol:
    return Symbol(str(data, "ascii"))


def _variable8(kind: Callable[[Buffer], Any]) -> _Decoder:
    def decode_one(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        size = buffer[offset]
        return kind(_take(buffer, offset + 1, size)), offset + 1 + size

    return decode_one


def _variable32(kind: Callable[[Buffer], Any]) -> _Decoder:
    def decode_one(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        size = _U32.unpack_from(buffer, offset)[0]
        return kind(_take(buffer, offset + 4, size)), offset + 4 + size

    return decode_one


_Body = Callable[[Buffer, int, int, int, int], Any]
"""(buffer, offset of the first element, count, end, depth) → value."""


def _compound8(body: _Body) -> _Decoder:
    def decode_one(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        end = offset + 1 + buffer[offset]
        return _compound(body, buffer, offset + 2, buffer[offset + 1], end, depth), end

    return decode_one


def _compound32(body: _Body) -> _Decoder:
    def decode_one(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        size, count = _U32.unpack_from(buffer, offset)[0], _U32.unpack_from(buffer, offset + 4)[0]
        end = offset + 4 + size
        return _compound(body, buffer, offset + 8, count, end, depth), end

    return decode_one


def _compound(body: _Body, buffer: Buffer, offset: int, count: int, end: int, depth: int) -> Any:
    if not offset <= end <= len(buffer):
        raise DecodeError(f"size of the value before byte {offset} reaches to byte {end} of {len(buffer)}")
    if depth >= DEPTH_MAX:
        raise DecodeError(f"values nested deeper than {DEPTH_MAX}")
    return body(buffer, offset, count, end, depth + 1)


def _end(offset: int, end: int) -> None:
    if offset != end:
        raise DecodeError(f"elements end at byte {offset}, their size says byte {end}")


def _list_body(buffer: Buffer, offset: int, count: int, end: int, depth: int) -> list[Any]:
    if count > end - offset:  # an element takes at least one byte
        raise DecodeError(f"{count} elements in {end - offset} bytes")
    values = []
    for _ in range(count):
        value, offset = _DECODERS[buffer[offset]](buffer, offset + 1, depth)
        values.append(value)
    _end(offset, end)
    return values


def _map_body(buffer: Buffer, offset: int, count: int, end: int, depth: int) -> dict[Any, Any]:
    flat = _list_body(buffer, offset, count, end, depth)
    if count % 2:
        raise DecodeError(f"map of {count} elements: a key lacks its value")
    try:
        return dict(zip(flat[::2], flat[1::2], strict=True))
    except TypeError as error:
        raise DecodeError("a list, map or array is the key of a map") from error


def _array_body(buffer: Buffer, offset: int, count: int, end: int, depth: int) -> Array:
    if count == 0 and offset == end:
        return Array(0x40, [])  # some clients write empty arrays without a constructor
    descriptor, code = None, buffer[offset]
    if code == 0:
        descriptor, offset = _decode(buffer, offset + 1, depth)
        code = buffer[offset]
        if code == 0:
            raise DecodeError("array elements described twice")
    decode_one = _DECODERS[code]
    offset += 1
    if decode_one is _unknown:  # refused even if there are no elements
        _unknown(buffer, offset, depth)
    room = end - offset
    if count > (room if _is_wide(code) else ZERO_WIDTH_ELEMENTS_MAX):
        raise DecodeError(f"array of {count} elements in {room} bytes")
    values = []
    for _ in range(count):
        value, offset = decode_one(buffer, offset, depth)
        values.append(value)
    _end(offset, end)
    return Array(code, values, descriptor)


def _is_wide(code: int) -> bool:
    return code >> 4 != 4  # the high digit of a constructor is the width; 4 stands for no bytes (§1.2)


def _described(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
    if depth >= DEPTH_MAX:
        raise DecodeError(f"values nested deeper than {DEPTH_MAX}")
    descriptor, offset = _decode(buffer, offset, depth + 1)
    value, offset = _decode(buffer, offset, depth + 1)
    return Described(descriptor, value), offset


def _decoders() -> list[_Decoder]:
    table: list[_Decoder] = [_unknown] * 256
    table[0x00] = _described
    table[0x40], table[0x41], table[0x42] = _constant(None), _constant(True), _constant(False)
    table[0x43], table[0x44], table[0x45] = _constant(UInt(0)), _constant(ULong(0)), _empty_list
    table[0x50], table[0x51] = _small(UByte), _fixed(_I8, Byte)
    table[0x52], table[0x53] = _small(UInt), _small(ULong)
    table[0x54], table[0x55], table[0x56] = _fixed(_I8), _fixed(_I8, Long), _boolean
    table[0x60], table[0x61] = _fixed(_U16, UShort), _fixed(_I16, Short)
    table[0x70], table[0x71], table[0x72] = _fixed(_U32, UInt), _fixed(_I32), _fixed(_F32, Float)
    table[0x73], table[0x74] = _fixed(_U32, _char), _raw(4, Decimal32)
    table[0x80], table[0x81], table[0x82] = _fixed(_U64, ULong), _fixed(_I64, Long), _fixed(_F64)
    table[0x83], table[0x84] = _fixed(_I64, Timestamp), _raw(8, Decimal64)
    table[0x94], table[0x98] = _raw(16, Decimal128), _raw(16, _uuid)
    for low, kind in ((0x0, bytes), (0x1, _text), (0x3, _symbol)):
        table[0xA0 | low], table[0xB0 | low] = _variable8(kind), _variable32(kind)
    table[0xC0], table[0xD0] = _compound8(_list_body), _compound32(_list_body)
    table[0xC1], table[0xD1] = _compound8(_map_body), _compound32(_map_body)
    table[0xE0], table[0xF0] = _compound8(_array_body), _compound32(_array_body)
    return table


_DECODERS = _decoders()
