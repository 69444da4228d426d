"""AMQP 1.0 types as Python classes (§1.6).

Plain Python values stand for the types that one would expect:

    None → null           bool → boolean     int → int, or long beyond 32 bits     float → double
    str → string          bytes → binary     uuid.UUID → uuid                      list, tuple → list
    dict → map

Every other type has a class here. All but `Described` and `Array` are subclasses of the Python type
(`UInt(5) == 5`), so code that only reads values can ignore them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DEPTH_MAX = 64
"""How deeply values may be nested. The official .NET and Python clients read no deeper either."""

Buffer = bytes | bytearray | memoryview


class DecodeError(ValueError):
    """The bytes are not an AMQP value, or not the expected one. The text says what was found, and where."""


class EncodeError(ValueError):
    """AMQP cannot carry the value, or not as the requested type. This is the caller's mistake."""


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
    """-2³¹ … 2³¹-1 (§1.6.9). Decoded as a plain int, which encodes to the same type."""

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
    """A value with a descriptor, usually a `ULong` or a `Symbol` (§1.3.2)."""

    descriptor: Any
    value: Any


@dataclass(slots=True, frozen=True)
class Array:
    """Values of one type (§1.6.24). `type_code` is the constructor that all elements share (see `TypeCode`).

    If the elements are described, they share the one `descriptor`.
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
