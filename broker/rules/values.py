"""The values that expressions compute with, and how they compare (AMQP contract 11.3). Pure.

    null, or missing   None         number    int, float or Decimal
    boolean            bool         date      Instant
    text               str          time span Duration
    guid               uuid.UUID    binary    bytes

Numbers of all types compare by their value, exactly: an int of 3 and a double of 3.0 are equal. Values of
different kinds are never equal, and none of them comes before the other. A result of None stands for unknown.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from broker.base.ticks import EPOCH_TICKS, TICKS_PER_MS
from broker.entities.rules import NamedValues, RuleValue, ValueType
from protocol.codec import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
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


@dataclass(slots=True, frozen=True, order=True)
class Instant:
    """A date: ticks since the Unix epoch."""

    ticks: int


@dataclass(slots=True, frozen=True, order=True)
class Duration:
    """A time span in ticks."""

    ticks: int


Value: TypeAlias = bool | int | float | Decimal | str | uuid.UUID | Instant | Duration | bytes | None

NUMBERS = frozenset((int, float, Decimal))
_ORDERED = frozenset((str, uuid.UUID, Instant, Duration))


class EvaluationFailed(Exception):
    """An expression has no result for a message. The text says why, in words for whoever wrote it."""


def equal(left: Value, right: Value) -> bool | None:
    """Whether two values are equal; None if one of them is null."""
    if left is None or right is None:
        return None
    if type(left) is type(right) or (type(left) in NUMBERS and type(right) in NUMBERS):
        return left == right
    return False


def comparable(left: Value, right: Value) -> bool:
    """Whether one of two values may come before the other."""
    if type(left) in NUMBERS:
        return type(right) in NUMBERS
    return type(left) is type(right) and type(left) in _ORDERED


def ordered(left: Value, right: Value) -> bool:
    """Whether one of two values comes before the other, or they are equal. NaN has no place in any order, and
    Python raises an exception if it is compared with a Decimal."""
    return comparable(left, right) and not is_nan(left) and not is_nan(right)


def is_nan(value: Value) -> bool:
    """Whether the value is what stands for no number."""
    return isinstance(value, float) and math.isnan(value)


_Key: TypeAlias = bool | int | float | Decimal | str | uuid.UUID | Instant | Duration | bytes | tuple[bool]


def key_of(value: Value) -> _Key | None:
    """What stands for a value in a dictionary: two values that are not null have the same key exactly if they
    are equal. None for null."""
    return (value,) if type(value) is bool else value  # because Python finds True equal to 1


def _same(value: Any) -> Any:
    return value


def _decimal(data: bytes, bits: int, exponent_bits: int, bias: int) -> Decimal | float:
    """An IEEE 754 decimal in its binary integer form (§1.6.13)."""
    number = int.from_bytes(data, "big")
    sign = number >> (bits - 1)
    digits_bits = bits - 1 - exponent_bits
    if number >> (bits - 3) & 3 != 3:
        exponent = number >> digits_bits & ((1 << exponent_bits) - 1)
        digits = number & ((1 << digits_bits) - 1)
    elif number >> (bits - 5) & 3 != 3:
        exponent = number >> (digits_bits - 2) & ((1 << exponent_bits) - 1)
        digits = number & ((1 << (digits_bits - 2)) - 1) | 1 << digits_bits
    else:
        if number >> (bits - 6) & 1:
            return math.nan  # a Decimal of this kind cannot be compared
        return Decimal("-Infinity" if sign else "Infinity")
    return Decimal((sign, tuple(map(int, str(digits))), exponent - bias))


_DESCRIBED: Mapping[str, Callable[[Any], Value]] = {
    # the official .NET client sends these types as described ones
    "com.microsoft:timespan": lambda value: Duration(int(value)),
    "com.microsoft:datetime-offset": lambda value: Instant(int(value) - EPOCH_TICKS),
    "com.microsoft:uri": str,
}


def _described(value: Described) -> Value:
    read = _DESCRIBED.get(str(value.descriptor))
    try:
        return b"" if read is None else read(value.value)
    except (OverflowError, TypeError, ValueError):
        return b""


_FROM_AMQP: Mapping[type, Callable[[Any], Value]] = {
    **dict.fromkeys((type(None), bool, int, float, str, bytes, uuid.UUID), _same),
    **dict.fromkeys((Byte, Short, Int, Long, UByte, UShort, UInt, ULong), int),
    **dict.fromkeys((Char, Symbol), str),
    Float: float,
    Timestamp: lambda value: Instant(value * TICKS_PER_MS),
    Decimal32: lambda value: _decimal(value, 32, 8, 101),
    Decimal64: lambda value: _decimal(value, 64, 10, 398),
    Decimal128: lambda value: _decimal(value, 128, 14, 6176),
    Described: _described,
}


def from_amqp(value: Any) -> Value:
    """The value that a decoded AMQP value stands for. A list, map or array, which no property may be, is an
    opaque binary."""
    read = _FROM_AMQP.get(type(value))
    return b"" if read is None else read(value)


def from_rule(value: RuleValue) -> Value:
    """The value of a parameter or of a correlation filter's property."""
    if value.type is ValueType.DATE_TIME:
        return Instant(int(value.value))
    if value.type is ValueType.DURATION:
        return Duration(int(value.value))
    if value.type is ValueType.GUID:
        return uuid.UUID(str(value.value))
    return value.value


def parameters_of(parameters: NamedValues) -> dict[str, Value]:
    """Values of parameters by their folded names, which begin with `@`."""
    return {name.casefold(): from_rule(value) for name, value in parameters}
