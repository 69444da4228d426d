"""Values as AMQP bytes and back: each type has its shortest encoding and comes back with its type."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from protocol.codec import (
    Array,
    Char,
    Described,
    EncodeError,
    Long,
    Symbol,
    Timestamp,
    TypeCode,
    UByte,
    UInt,
    ULong,
    decode_all,
    encode,
)
from tests.support.amqp_values import same

TOKEN = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, "40"),
        (True, "41"),
        (False, "42"),
        (5, "5405"),
        (-300, "71fffffed4"),
        (Long(2**31), "810000000080000000"),
        (1.5, "823ff8000000000000"),
        ("ab", "a1026162"),
        (b"ab", "a0026162"),
        (TOKEN, "9800112233445566778899aabbccddeeff"),
        ([], "45"),
        ([None], "c0020140"),
        ({}, "c10100"),
        (UInt(0), "43"),
        (UInt(255), "52ff"),
        (UInt(256), "7000000100"),
        (ULong(0), "44"),
        (ULong(0x70), "5370"),
        (Long(5), "5505"),
        (UByte(4), "5004"),
        (Timestamp(1), "830000000000000001"),
        (Char("é"), "73000000e9"),
        (Symbol("ab"), "a3026162"),
        (Described(ULong(0x24), []), "00532445"),
        (Array(TypeCode.LONG, [Long(1)]), "e00a01810000000000000001"),
    ],
)
def test_a_value_has_its_shortest_encoding_and_comes_back_with_its_type(value: Any, encoded: str) -> None:
    assert encode(value).hex() == encoded
    assert same(decode_all(bytes.fromhex(encoded)), value)


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"k": v}, lambda v: Described(ULong(1), v)])
def test_nesting_is_bounded_both_ways(wrap: Any) -> None:
    value: Any = None
    for _ in range(64):
        value = wrap(value)
    assert same(decode_all(encode(value)), value)
    with pytest.raises(EncodeError):
        encode(wrap(value))
