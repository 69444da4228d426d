"""Values there and back, beside proton's own codec, and bytes that are no values."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_partibus.client.values import (
    LONGS,
    STRINGS,
    TIMESTAMPS,
    Array,
    Char,
    Decimal,
    Described,
    Int,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    decode,
    encode,
)
from pyspark_partibus.errors import BadMessage
from tests.interop.proton_client import array

SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    st.floats(allow_nan=False),
    st.text(max_size=300),
    st.binary(max_size=300),
    st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol),
    st.uuids(),
    st.characters(exclude_categories=["Cs"]).map(Char),
)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(st.text(max_size=4), inner, max_size=6),
        st.builds(Described, st.integers(0, 255).map(ULong), inner),
    ),
    max_leaves=12,
)


@given(VALUES)
def test_a_value_survives_its_encoding(value: object) -> None:
    encoded = encode(value)
    assert decode(encoded) == (value, len(encoded))
    assert decode(memoryview(b"before" + encoded), 6) == (value, 6 + len(encoded))


@given(VALUES, st.data())
def test_a_value_that_is_cut_off_is_noticed(value: object, data: st.DataObject) -> None:
    encoded = encode(value)
    with pytest.raises(BadMessage):
        decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@given(st.binary(max_size=60))
def test_bytes_are_a_value_or_none(data: bytes) -> None:
    try:
        _, end = decode(data)
    except BadMessage:
        return
    assert end <= len(data)


@pytest.mark.parametrize(
    ("ours", "of_proton"),
    [
        (["a", None, True, ULong(2**63), -5], ["a", None, True, proton.ulong(2**63), -5]),
        ({"k": UInt(7), "l": Int(-7)}, {"k": proton.uint(7), "l": proton.int32(-7)}),
        (Timestamp(1_700_000_000_000), proton.timestamp(1_700_000_000_000)),
        (Symbol("x-opt"), proton.symbol("x-opt")),
        (UUID(int=5), UUID(int=5)),
        (b"\x00" * 300, b"\x00" * 300),
        (Char("\N{GRINNING FACE}"), proton.char("\N{GRINNING FACE}")),
        (-0.5, -0.5),
        (Described(ULong(0x70), [None]), proton.Described(proton.ulong(0x70), [None])),
        ([1, 2, 3], array(proton.Data.LONG, 1, 2, 3)),
        (["a", "b"], array(proton.Data.STRING, "a", "b")),
        ([True, False], array(proton.Data.BOOL, True, False)),
        ([[1], []], array(proton.Data.LIST, [1], [])),
        (-3, proton.byte(-3)),
        (3, proton.ushort(3)),
        (0.5, proton.float32(0.5)),
        (Decimal(b"\x00\x00\x00\x05"), proton.decimal32(5)),
    ],
)
def test_proton_encodes_what_we_decode(ours: object, of_proton: Any) -> None:
    data = proton.Data()
    data.put_object(of_proton)
    assert decode(data.encode())[0] == ours


@pytest.mark.parametrize(
    ("array", "items"),
    [
        (Array(LONGS, [1, -(2**40)]), [1, -(2**40)]),
        (Array(TIMESTAMPS, []), []),
        (Array(STRINGS, ["a", "ö" * 200]), ["a", "ö" * 200]),
    ],
)
def test_proton_decodes_our_arrays(array: Array, items: list[object]) -> None:
    data = proton.Data()
    data.decode(encode(array))
    data.rewind()
    data.next()
    decoded = data.get_py_array()
    assert decoded is not None
    assert list(decoded.elements) == items
    assert decode(encode(array))[0] == items


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        b"\xc0\x02\x01" * 50 + b"\x40",
        b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40",
        b"\xf0\x00\x00\x00\x0d\x00\x00\x00\x02\x81" + b"\x00" * 8,
        b"\xc0\x03\x01\x40\x40",
        b"\xc1\x02\x01\x40",
        b"\xc1\x03\x02\x45\x40",
        b"\xa1\x01\xff",
        b"\x73\x7f\xff\xff\xff",
        b"\x3f",
    ],
)
def test_hostile_bytes_are_no_value(data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(data)


def test_what_amqp_does_not_have_cannot_be_encoded() -> None:
    with pytest.raises(TypeError):
        encode(object())
    for value in (2**63, UInt(-1), ULong(2**64), Int(2**31)):
        with pytest.raises(OverflowError):
            encode(value)
