"""AMQP 1.0's type system (§1.6): Python values into bytes and back.

Decoding gives plain Python values; the types below keep apart what Python would not (§1.6): symbols from
strings, and the widths of integers when encoding. A value that cannot be decoded raises `BadMessage`, and no
input reads beyond its end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pyspark_partibus.errors import BadMessage

DEPTH_MAX = 32
"""How deeply values may be nested. Deeper ones would exhaust Python's stack."""

Buffer = bytes | bytearray | memoryview


class Symbol(str):
    """A symbol (§1.6.21)."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since the epoch (§1.6.17)."""

    __slots__ = ()


class ULong(int):
    """An unsigned integer of 64 bits; a plain int is encoded as long."""

    __slots__ = ()


class UInt(int):
    """An unsigned integer of 32 bits."""

    __slots__ = ()


class Int(int):
    """A signed integer of 32 bits."""

    __slots__ = ()


class Char(str):
    """A single character (§1.6.16)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor (§1.3.2)."""

    descriptor: Any
    value: Any


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal number, undecoded (§1.6.13 to §1.6.15)."""

    encoded: bytes


@dataclass(frozen=True, slots=True)
class Array:
    """An array to encode (§1.6.24). `code` is the constructor of its items: see `LONGS` and the others."""

    code: int
    items: Iterable[Any]


LONGS, TIMESTAMPS, STRINGS = 0x81, 0x83, 0xB1

_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_F32, _F64 = struct.Struct(">f"), struct.Struct(">d")

Decoded = tuple[Any, int]


def decode(data: Buffer, at: int = 0, depth: int = 0) -> Decoded:
    """The value that begins at `at`, and where it ends."""
    try:
        code = data[at]
        if code == 0x00:
            return _described(data, at + 1, depth)
        return _DECODERS[code](data, at + 1, depth)
    except KeyError:
        raise BadMessage(f"unknown type 0x{data[at]:02x} at byte {at}") from None
    except (IndexError, struct.error):
        raise BadMessage(f"a value that begins at byte {at} is cut off") from None
    except UnicodeDecodeError:
        raise BadMessage(f"the text at byte {at} is not valid") from None


def _described(data: Buffer, at: int, depth: int) -> Decoded:
    _check_depth(depth)
    descriptor, at = decode(data, at, depth + 1)
    value, at = decode(data, at, depth + 1)
    return Described(descriptor, value), at


def _check_depth(depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise BadMessage(f"values are nested more than {DEPTH_MAX} levels deep")


def _whole(data: Buffer, at: int, size: int) -> memoryview:
    """`size` bytes, all of which are there."""
    if at + size > len(data):
        raise BadMessage(f"a value at byte {at} is cut off")
    return memoryview(data)[at : at + size]


def _fixed(form: struct.Struct, kind: Callable[[Any], Any] | None = None) -> Callable[..., Decoded]:
    read, size = form.unpack_from, form.size

    def decoder(data: Buffer, at: int, depth: int) -> Decoded:
        value = read(data, at)[0]
        return (value if kind is None else kind(value)), at + size

    return decoder


def _constant(value: Any) -> Callable[..., Decoded]:
    return lambda data, at, depth: (value, at)


def _sized(width: int, convert: Callable[[memoryview], Any]) -> Callable[..., Decoded]:
    def decoder(data: Buffer, at: int, depth: int) -> Decoded:
        size = data[at] if width == 1 else _U32.unpack_from(data, at)[0]
        start = at + width
        return convert(_whole(data, start, size)), start + size

    return decoder


def _bare(size: int, convert: Callable[[memoryview], Any]) -> Callable[..., Decoded]:
    return lambda data, at, depth: (convert(_whole(data, at, size)), at + size)


def _compound(data: Buffer, at: int, width: int) -> tuple[int, int, int]:
    """Where the items begin, how many there are, and where they end."""
    form = "B" if width == 1 else "I"
    size, count = struct.unpack_from(f">{form}{form}", data, at)
    if size < width or at + width + size > len(data):
        raise BadMessage(f"a list or map at byte {at} is cut off")
    return at + 2 * width, count, at + width + size


def _items(data: Buffer, at: int, width: int, depth: int) -> tuple[list[Any], int]:
    _check_depth(depth)
    at, count, end = _compound(data, at, width)
    if count > end - at:
        raise BadMessage(f"a list or map at byte {at} counts more items than it has bytes")
    items = []
    for _ in range(count):
        item, at = decode(data, at, depth + 1)
        items.append(item)
    if at != end:
        raise BadMessage(f"a list or map that ends at byte {end} has items up to byte {at}")
    return items, end


def _list(width: int) -> Callable[..., Decoded]:
    return lambda data, at, depth: _items(data, at, width, depth)


def _map(width: int) -> Callable[..., Decoded]:
    def decoder(data: Buffer, at: int, depth: int) -> Decoded:
        items, end = _items(data, at, width, depth)
        if len(items) % 2:
            raise BadMessage(f"a map at byte {at} has a key without a value")
        try:
            return dict(zip(items[::2], items[1::2], strict=True)), end
        except TypeError:
            raise BadMessage(f"a map at byte {at} has a key that is no simple value") from None

    return decoder


def _array(width: int) -> Callable[..., Decoded]:
    def decoder(data: Buffer, at: int, depth: int) -> Decoded:
        _check_depth(depth)
        at, count, end = _compound(data, at, width)
        while data[at] == 0x00:  # a described constructor; the descriptor is of no use here
            _, at = decode(data, at + 1, depth + 1)
        code = data[at]
        at += 1
        if (form := _RUNS.get(code)) is not None:  # numbers, in one step
            if end - at != count * form.size:
                raise BadMessage(f"an array that ends at byte {end} has another size than its items")
            return list(struct.unpack_from(f">{count}{form.format[-1]}", data, at)), end
        if count > end - at and code not in _EMPTY:
            raise BadMessage(f"an array that ends at byte {end} counts more items than it has bytes")
        if count > ITEMS_WITHOUT_BYTES_MAX and code in _EMPTY:
            raise BadMessage(f"an array that ends at byte {end} counts {count} items of no size")
        decoder_of_item = _DECODERS[code]
        items = []
        for _ in range(count):
            item, at = decoder_of_item(data, at, depth + 1)
            items.append(item)
        if at != end:
            raise BadMessage(f"an array that ends at byte {end} has items up to byte {at}")
        return items, end

    return decoder


ITEMS_WITHOUT_BYTES_MAX = 1000
_EMPTY = frozenset((0x40, 0x41, 0x42, 0x43, 0x44, 0x45))
_RUNS = {
    0x60: _U16,
    0x61: _I16,
    0x70: _U32,
    0x71: _I32,
    0x72: _F32,
    0x80: _U64,
    0x81: _I64,
    0x82: _F64,
    0x83: _I64,
}


def _text(view: memoryview) -> str:
    return str(view, "utf-8")


def _symbol(view: memoryview) -> Symbol:
    return Symbol(str(view, "ascii"))


def _character(number: int) -> Char:
    try:
        character = chr(number)
        character.encode()  # half of a surrogate pair is no character, though Python has a string of it
        return Char(character)
    except (ValueError, OverflowError):
        raise BadMessage(f"{number} is no character") from None


_DECODERS: dict[int, Callable[..., Decoded]] = {
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(0),
    0x44: _constant(0),
    0x45: lambda data, at, depth: ([], at),
    0x50: _fixed(struct.Struct(">B")),
    0x51: _fixed(struct.Struct(">b")),
    0x52: _fixed(struct.Struct(">B")),
    0x53: _fixed(struct.Struct(">B")),
    0x54: _fixed(struct.Struct(">b")),
    0x55: _fixed(struct.Struct(">b")),
    0x56: _fixed(struct.Struct(">?")),
    0x60: _fixed(_U16),
    0x61: _fixed(_I16),
    0x70: _fixed(_U32),
    0x71: _fixed(_I32),
    0x72: _fixed(_F32),
    0x73: _fixed(_U32, _character),
    0x74: _bare(4, lambda view: Decimal(bytes(view))),
    0x80: _fixed(_U64),
    0x81: _fixed(_I64),
    0x82: _fixed(_F64),
    0x83: _fixed(_I64, Timestamp),
    0x84: _bare(8, lambda view: Decimal(bytes(view))),
    0x94: _bare(16, lambda view: Decimal(bytes(view))),
    0x98: _bare(16, lambda view: UUID(bytes=bytes(view))),
    0xA0: _sized(1, bytes),
    0xA1: _sized(1, _text),
    0xA3: _sized(1, _symbol),
    0xB0: _sized(4, bytes),
    0xB1: _sized(4, _text),
    0xB3: _sized(4, _symbol),
    0xC0: _list(1),
    0xC1: _map(1),
    0xD0: _list(4),
    0xD1: _map(4),
    0xE0: _array(1),
    0xF0: _array(4),
}


def encode(value: Any) -> bytes:
    """The shortest encoding of a value. Raises TypeError or OverflowError for one that AMQP does not have."""
    for kind in type(value).__mro__:
        if (encoder := _ENCODERS.get(kind)) is not None:
            return encoder(value)
    raise TypeError(f"AMQP has no type for {type(value).__name__}")


def _variable(short: int, data: bytes) -> bytes:
    """A value of variable size; the long form's code is 0x10 above the short one's."""
    size = len(data)
    return bytes((short, size)) + data if size < 256 else bytes((short + 0x10,)) + _U32.pack(size) + data


def _encode_uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if 0 < value < 256 else b"\x70" + _pack(_U32, value)


def _encode_ulong(value: int) -> bytes:
    if value == 0:
        return b"\x44"
    return bytes((0x53, value)) if 0 < value < 256 else b"\x80" + _pack(_U64, value)


def _encode_int(value: int) -> bytes:
    return b"\x54" + struct.pack(">b", value) if -128 <= value < 128 else b"\x71" + _pack(_I32, value)


def _encode_long(value: int) -> bytes:
    return b"\x55" + struct.pack(">b", value) if -128 <= value < 128 else b"\x81" + _pack(_I64, value)


def _pack(form: struct.Struct, value: int) -> bytes:
    try:
        return form.pack(value)
    except struct.error:
        raise OverflowError(f"{value} does not fit into {form.size} bytes") from None


def encode_compound(short: int, items: list[bytes]) -> bytes:
    """A list (0xc0) or map (0xc1) of items that are encoded already."""
    body = b"".join(items)
    if len(body) < 255 and len(items) < 256:
        return bytes((short, len(body) + 1, len(items))) + body
    return bytes((short + 0x10,)) + _U32.pack(len(body) + 4) + _U32.pack(len(items)) + body


def _encode_list(value: Iterable[Any]) -> bytes:
    items = [encode(item) for item in value]
    return encode_compound(0xC0, items) if items else b"\x45"


def _encode_map(value: dict[Any, Any]) -> bytes:
    return encode_compound(0xC1, [encode(each) for pair in value.items() for each in pair])


def _encode_array(value: Array) -> bytes:
    items = list(value.items)
    if (form := _RUNS.get(value.code)) is not None:
        body = struct.pack(f">{len(items)}{form.format[-1]}", *items)
    else:
        body = b"".join(_long_form(item) for item in items)
    return b"\xf0" + _U32.pack(len(body) + 5) + _U32.pack(len(items)) + bytes((value.code,)) + body


def _long_form(text: str) -> bytes:
    """A string or symbol as an item of an array."""
    data = text.encode()
    return _U32.pack(len(data)) + data


def _encode_described(value: Described) -> bytes:
    return b"\x00" + encode(value.descriptor) + encode(value.value)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    UInt: _encode_uint,
    ULong: _encode_ulong,
    Int: _encode_int,
    Timestamp: lambda value: b"\x83" + _pack(_I64, value),
    int: _encode_long,
    float: lambda value: b"\x82" + _F64.pack(value),
    Symbol: lambda value: _variable(0xA3, value.encode("ascii")),
    Char: lambda value: b"\x73" + _U32.pack(ord(value)),
    str: lambda value: _variable(0xA1, value.encode()),
    bytes: lambda value: _variable(0xA0, value),
    memoryview: lambda value: _variable(0xA0, bytes(value)),
    UUID: lambda value: b"\x98" + value.bytes,
    list: _encode_list,
    tuple: _encode_list,
    dict: _encode_map,
    Array: _encode_array,
    Described: _encode_described,
}
