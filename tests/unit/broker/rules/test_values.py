"""Values of expressions: what AMQP values stand for, and how they compare."""

from __future__ import annotations

import math
import uuid
from decimal import Decimal
from typing import Any

import pytest

from broker.entities.rules import RuleValue, ValueType
from broker.rules.values import (
    Duration,
    Instant,
    Value,
    comparable,
    equal,
    from_amqp,
    from_rule,
    key_of,
    parameters_of,
)
from protocol.codec import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
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

GUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


@pytest.mark.parametrize("kind", [int, Byte, Short, Long, UByte, UShort, UInt, ULong, Float, float])
def test_numbers_of_the_same_value_are_equal_whatever_their_type(kind: type) -> None:
    value = from_amqp(kind(3))
    assert type(value) in (int, float)
    assert equal(value, 3) and equal(3.0, value) and equal(value, Decimal(3))
    assert key_of(value) == key_of(3) and hash(key_of(value)) == hash(key_of(Decimal(3)))


@pytest.mark.parametrize(
    ("sent", "value"),
    [
        (None, None),
        (True, True),
        ("text", "text"),
        (Symbol("s"), "s"),
        (Char("c"), "c"),
        (GUID, GUID),
        (b"\x01", b"\x01"),
        (Timestamp(5), Instant(50_000)),
        (Described(Symbol("com.microsoft:timespan"), Long(7)), Duration(7)),
        (Described(Symbol("com.microsoft:datetime-offset"), Long(621_355_968_000_000_009)), Instant(9)),
        (Described(Symbol("com.microsoft:uri"), "http://a"), "http://a"),
        (Described(Symbol("com.microsoft:timespan"), "seven"), b""),
        (Described(ULong(1), "x"), b""),
        (["list"], b""),
        ({}, b""),
        (Array(0x71, [1]), b""),
    ],
)
def test_what_amqp_values_stand_for(sent: Any, value: Value) -> None:
    found = from_amqp(sent)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("sent", "value"),
    [
        (Decimal32(bytes.fromhex("32800001")), Decimal(1)),
        (Decimal32(bytes.fromhex("b2800001")), Decimal(-1)),
        (Decimal32(bytes.fromhex("6cb89680")), Decimal(10_000_000)),  # digits beyond 23 bits
        (Decimal32(bytes.fromhex("78000000")), Decimal("Infinity")),
        (Decimal64(bytes.fromhex("31a000000000000f")), Decimal("1.5")),
        (Decimal128(bytes.fromhex("303e000000000000000000000000000f")), Decimal("1.5")),
    ],
)
def test_decimals_are_read_in_their_binary_integer_form(sent: Any, value: Decimal) -> None:
    assert from_amqp(sent) == value


def test_a_decimal_that_is_not_a_number_equals_nothing() -> None:
    not_a_number = from_amqp(Decimal32(bytes.fromhex("7c000000")))
    assert isinstance(not_a_number, float) and math.isnan(not_a_number)
    assert equal(not_a_number, not_a_number) is False


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (True, 1),
        (0, False),
        ("1", 1),
        (str(GUID), GUID),
        (Instant(1), Duration(1)),
        (b"a", "a"),
        (1.5, "1.5"),
    ],
)
def test_values_of_different_kinds_are_neither_equal_nor_ordered(left: Value, right: Value) -> None:
    assert equal(left, right) is False
    assert equal(right, left) is False
    assert key_of(left) != key_of(right)
    assert not comparable(left, right) and not comparable(right, left)


@pytest.mark.parametrize("value", [None, 1, "a", False])
def test_whether_anything_equals_null_is_unknown(value: Value) -> None:
    assert equal(value, None) is None
    assert equal(None, value) is None
    assert key_of(None) is None


@pytest.mark.parametrize("pair", [(1, 2.5), ("a", "b"), (Instant(1), Instant(2)), (Duration(1), Duration(2))])
def test_values_of_one_kind_are_ordered(pair: tuple[Value, Value]) -> None:
    assert comparable(*pair)


@pytest.mark.parametrize("value", [True, b"a"])
def test_booleans_and_binaries_have_no_order(value: Value) -> None:
    assert not comparable(value, value)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (RuleValue(ValueType.STRING, "a"), "a"),
        (RuleValue(ValueType.LONG, 5), 5),
        (RuleValue(ValueType.BOOLEAN, False), False),
        (RuleValue(ValueType.DATE_TIME, 50_000), Instant(50_000)),
        (RuleValue(ValueType.DURATION, 7), Duration(7)),
        (RuleValue(ValueType.GUID, str(GUID)), GUID),
    ],
)
def test_values_of_rules_have_their_declared_kind(declared: RuleValue, value: Value) -> None:
    assert from_rule(declared) == value
    assert type(from_rule(declared)) is type(value)


def test_names_of_parameters_have_no_case() -> None:
    assert parameters_of((("@Colour", RuleValue(ValueType.STRING, "red")),)) == {"@colour": "red"}
