"""Encoding: what AMQP cannot carry is refused, and encoded parts are put together."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.codec import (
    Array,
    Char,
    EncodeError,
    Int,
    Long,
    Symbol,
    UByte,
    UInt,
    encode,
    encode_list,
    encode_map,
)


def test_a_whole_number_beyond_32_bits_is_a_long() -> None:
    assert encode(2**31) == encode(Long(2**31))
    assert encode(-(2**31)) == encode(Int(-(2**31)))


@pytest.mark.parametrize(
    "value",
    [
        UByte(256),
        UInt(-1),
        Long(2**63),
        Int(2**31),
        2**64,
        Symbol("é"),
        object(),
        Array(0x99, []),
        Array(0x98, [1]),
        Char("ab"),
    ],
)
def test_what_amqp_cannot_carry_is_an_encode_error(value: Any) -> None:
    with pytest.raises(EncodeError):
        encode(value)


def test_parts_that_are_encoded_already_are_put_together() -> None:
    assert encode_list([encode("a"), encode(None)]) == encode(["a", None])
    assert encode_map([encode("a"), encode(1)]) == encode({"a": 1})
    assert encode_list([encode(b"x" * 400)]) == encode([b"x" * 400])
