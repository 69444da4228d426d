"""Hypothesis strategies for AMQP values, and an equality that distinguishes AMQP types."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

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
    TypeCode,
    UByte,
    UInt,
    ULong,
    UShort,
)

ascii_text = st.text(st.characters(max_codepoint=127), max_size=300)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    int32,
    st.floats(),
    st.text(max_size=300),
    st.binary(max_size=300),
    st.uuids(),
    ascii_text.map(Symbol),
    st.integers(0, 2**8 - 1).map(UByte),
    st.integers(0, 2**16 - 1).map(UShort),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-(2**7), 2**7 - 1).map(Byte),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    int64.map(Long),
    int64.map(Timestamp),
    st.floats(width=32).map(Float),
    st.characters(exclude_categories=["Cs"]).map(Char),
    st.binary(min_size=4, max_size=4).map(Decimal32),
    st.binary(min_size=8, max_size=8).map(Decimal64),
    st.binary(min_size=16, max_size=16).map(Decimal128),
)

arrays = st.one_of(
    st.lists(st.uuids()).map(lambda values: Array(TypeCode.UUID, values)),
    st.lists(int64.map(Long)).map(lambda values: Array(TypeCode.LONG, values)),
    st.lists(ascii_text.map(Symbol)).map(lambda values: Array(TypeCode.SYMBOL, values)),
    st.lists(st.text(max_size=60)).map(lambda values: Array(0xA1, values)),
    st.lists(st.booleans()).map(lambda values: Array(TypeCode.BOOLEAN, values)),
    st.lists(st.lists(int32)).map(lambda values: Array(TypeCode.LIST, values, ULong(0x24))),
    st.lists(st.dictionaries(st.text(max_size=9), int32)).map(lambda values: Array(TypeCode.MAP, values)),
)

values = st.recursive(
    scalars | arrays,
    lambda inner: st.one_of(
        st.lists(inner, max_size=8),
        st.dictionaries(st.text(max_size=9) | ascii_text.map(Symbol), inner, max_size=8),
        st.builds(Described, st.integers(0, 2**64 - 1).map(ULong) | ascii_text.map(Symbol), inner),
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal in value and AMQP type; NaN equals NaN."""
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, Described):
        return same([left.descriptor, left.value], [right.descriptor, right.value])
    if isinstance(left, Array):
        return left.type_code == right.type_code and same(
            [left.descriptor, left.values], [right.descriptor, right.values]
        )
    if isinstance(left, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return bool(left == right)
