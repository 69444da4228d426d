"""Counting values without decoding them: what counts, and that counting stops at its bound."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from protocol.codec import Array, DecodeError, Described, Symbol, TypeCode, ULong, decode, encode
from protocol.values import TooManyValues, count_values, decode_bounded, skip


def list_of(element: bytes, count: int) -> bytes:
    """A list32 that holds the same element `count` times."""
    return b"\xd0" + struct.pack(">II", 4 + len(element) * count, count) + element * count


COUNTED: list[tuple[Any, int]] = [
    (None, 1),
    ("text", 1),
    (b"\x00" * 1000, 1),
    ([], 1),
    ([1, "two", None], 4),
    ({"a": 1, "b": [1, 2]}, 7),
    (Described(ULong(0x73), ["id", None]), 5),
    (Array(TypeCode.UUID, []), 1),
    (Array(TypeCode.LONG, list(range(300))), 301),
    (Array(TypeCode.SYMBOL, [Symbol("a"), Symbol("b")]), 3),
    ([Array(TypeCode.STRING, ["x"] * 10)] * 3, 34),
]


@pytest.mark.parametrize(("value", "count"), COUNTED, ids=repr)
def test_every_value_counts_with_what_is_inside_of_it(value: Any, count: int) -> None:
    encoded = encode(value)
    assert count_values(encoded, 0, len(encoded), 1_000) == count
    assert count_values(encoded, 0, len(encoded), count) == count
    with pytest.raises(TooManyValues):
        count_values(encoded, 0, len(encoded), count - 1)
    assert decode_bounded(encoded, 0, count) == decode(encoded)


@pytest.mark.parametrize(
    "element", [b"\x40", b"\x45", b"\xc0\x01\x00", b"\x00\x53\x01\x40", b"\xe0\x02\x00\x40"], ids=bytes.hex
)
def test_a_value_of_millions_is_refused_before_any_is_made(element: bytes) -> None:
    with pytest.raises(TooManyValues, match="more than 1000 values"):
        decode_bounded(list_of(element, 1_000_000), 0, 1_000)


def test_an_array_of_compound_elements_is_counted_by_its_bytes() -> None:
    lists = b"\xf0" + struct.pack(">II", 5 + 2 * 3_000, 3_000) + b"\xc0" + b"\x01\x00" * 3_000
    decode(lists)
    assert count_values(lists, 0, len(lists), 10_000) > 6_000
    with pytest.raises(TooManyValues):
        decode_bounded(lists, 0, 1_000)


def test_only_the_value_asked_for_is_counted() -> None:
    many = list_of(b"\x40", 10_000)
    buffer = b"\xa1\x02ab" + many
    assert decode_bounded(buffer, 0, 10) == ("ab", 4)
    assert decode_bounded(encode([1, 2]) + many, 0, 10)[0] == [1, 2]
    with pytest.raises(DecodeError):
        decode_bounded(buffer, 4, 10)


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_value_that_is_cut_off_is_a_decode_error(cut: int) -> None:
    with pytest.raises(DecodeError):
        decode_bounded(list_of(b"\xa1\x01a", 100)[:cut], 0, 5)


def test_described_values_without_end_are_refused_after_a_few_steps() -> None:
    for nested in (b"\x00\x40" * 1_000_000 + b"\x40", b"\x00" * 1_000_000):
        with pytest.raises(DecodeError, match="nested deeper"):
            skip(nested, 0)
