"""AMQP 1.0 values, to bytes and back: the type system of §1.6, pure.

Answers for single values: bodies of management requests, annotations, performative fields. Knows nothing of
messages, frames or entities; a message on its way through is never decoded here (`sections.py` finds its
parts).

What comes in is untrusted: nesting, counts and sizes are bounded by the bytes that are really there, and
every malformed input is a `DecodeError`, never an error of Python's own. What goes out carries AMQP's types:
a value that was decoded encodes to the same type again, and a plain Python value gets the type that one
expects:

    None → null           bool → boolean     int → int, or long beyond 32 bits     float → double str → string
    bytes → binary     uuid.UUID → uuid                      list, tuple → list     dict → map

Every other type has a class here. All of them but `Described` and `Array` *are* the Python value (`UInt(5) ==
5`), so that reading code need not care.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

DEPTH_MAX = 64
"""How deep values may be nested; the official .NET and Python clients refuse to read beyond this, too."""

ZERO_WIDTH_ELEMENTS_MAX = 16
"""Elements of an array whose elements take no bytes (null, true, list0 …): their number is bounded by nothing
else."""

Buffer = bytes | bytearray | memoryview


class DecodeError(ValueError):
    """The bytes are not what they should be. The text says what was met, and where."""


class EncodeError(ValueError):
    """A value that AMQP cannot carry, or not with the type asked for: the caller's mistake."""


class Symbol(str):
    """ASCII text from a constrained domain (§1.6.21)."""

    __slots__ = ()


class Char(str):
    """One Unicode character (§1.6.16)."""

    __slots__ = ()


class UByte(int):
    """0 … 2⁸-1 (§1.6.3)."""

    __slots__ = ()


class UShort(int):
    """0 … 2¹⁶-1 (§1.6.4)."""

    __slots__ = ()


class UInt(int):
    """0 … 2³²-1 (§1.6.5)."""

    __slots__ = ()


class ULong(int):
    """0 … 2⁶⁴-1 (§1.6.6)."""

    __slots__ = ()


class Byte(int):
    """-2⁷ … 2⁷-1 (§1.6.7)."""

    __slots__ = ()


class Short(int):
    """-2¹⁵ … 2¹⁵-1 (§1.6.8)."""

    __slots__ = ()


class Int(int):
    """-2³¹ … 2³¹-1 (§1.6.9); decoded as a plain int, which encodes to the same."""

    __slots__ = ()


class Long(int):
    """-2⁶³ … 2⁶³-1 (§1.6.10)."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since the Unix epoch (§1.6.17)."""

    __slots__ = ()


class Float(float):
    """Binary floating point of 32 bits (§1.6.11)."""

    __slots__ = ()


class Decimal32(bytes):
    """The 4 bytes of a decimal32 (§1.6.13), not interpreted."""

    __slots__ = ()


class Decimal64(bytes):
    """The 8 bytes of a decimal64 (§1.6.14), not interpreted."""

    __slots__ = ()


class Decimal128(bytes):
    """The 16 bytes of a decimal128 (§1.6.15), not interpreted."""

    __slots__ = ()


@dataclass(slots=True, frozen=True)
class Described:
    """A value with a descriptor, a `ULong` or a `Symbol` as a rule (§1.3.2)."""

    descriptor: Any
    value: Any


@dataclass(slots=True, frozen=True)
class Array:
    """Values of one type (§1.6.24): `type_code` is the constructor that all elements share (see `TypeCode`).

    `descriptor` stands once for all elements when they are described.
    """

    type_code: int
    values: Sequence[Any]
    descriptor: Any = None


class TypeCode:
    """Constructors for the elements of an `Array` (§1.6)."""

    BOOLEAN = 0x56
    UINT, INT = 0x70, 0x71
    ULONG, LONG, TIMESTAMP = 0x80, 0x81, 0x83
    UUID = 0x98
    BINARY, STRING, SYMBOL = 0xB0, 0xB1, 0xB3
    LIST, MAP = 0xD0, 0xD1


# --- decoding -----------------------------------------------------------------------------------------------

_Decoder = Callable[[Buffer, int, int], tuple[Any, int]]
"""(buffer, offset behind the constructor, depth) → (value, offset behind the value)."""

_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_I8, _I16, _I32, _I64 = struct.Struct(">b"), struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_F32, _F64 = struct.Struct(">f"), struct.Struct(">d")


def decode(buffer: Buffer, offset: int = 0) -> tuple[Any, int]:
    """The value that begins at `offset`, and the offset behind it. Raises DecodeError, and nothing else."""
    try:
        return _decode(buffer, offset, 0)
    except DecodeError:
        raise
    except (IndexError, struct.error) as error:
        raise DecodeError(f"value at byte {offset} is cut off") from error
    except UnicodeDecodeError as error:
        raise DecodeError(f"value at byte {offset}: text is not {error.encoding}") from error


def decode_all(buffer: Buffer) -> Any:
    """The one value that the buffer consists of. Raises DecodeError, also when bytes are left over."""
    value, end = decode(buffer)
    if end != len(buffer):
        raise DecodeError(f"{len(buffer) - end} bytes behind the value")
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
    return uuid.UUID(bytes=bytes(data))


def _char(code_point: int) -> Char:
    if code_point > 0x10FFFF or 0xD800 <= code_point <= 0xDFFF:
        raise DecodeError(f"0x{code_point:x} is no character")
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
    if count > end - offset:  # an element takes a byte at least
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
        return Array(0x40, [])  # not even a constructor: some clients write their empty arrays so
    descriptor, code = None, buffer[offset]
    if code == 0:
        descriptor, offset = _decode(buffer, offset + 1, depth)
        code = buffer[offset]
        if code == 0:
            raise DecodeError("array elements described twice")
    decode_one = _DECODERS[code]
    offset += 1
    if decode_one is _unknown:  # also where there is no element to fail on
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
    return code >> 4 != 4  # §1.2: the high digit of a constructor tells the width, 4 is none


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


# --- encoding -----------------------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """The value in its shortest encoding. Raises EncodeError for what AMQP cannot carry."""
    try:
        return _encode(value, 0)
    except (struct.error, UnicodeEncodeError, OverflowError, TypeError, AttributeError) as error:
        raise EncodeError(f"{value!r:.80} does not fit its AMQP type: {error}") from error


def encode_list(fields: Sequence[bytes]) -> bytes:
    """A list of values that are encoded already (§1.6.22)."""
    return _compound_bytes(0xC0, 0xD0, len(fields), b"".join(fields))


def encode_map(keys_and_values: Sequence[bytes]) -> bytes:
    """A map of keys and values in turn that are encoded already (§1.6.23)."""
    return _compound_bytes(0xC1, 0xD1, len(keys_and_values), b"".join(keys_and_values))


def encode_text(utf8: bytes) -> bytes:
    """A string whose bytes are at hand (§1.6.20)."""
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
    if count < 256 and size < 255:  # the size counts the byte of the count as well
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


# --- elements of arrays: the value without its constructor, in the one width the constructor prescribes
# ---------------


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
