"""The covers of expressions."""

from __future__ import annotations

import math

import pytest

from broker.rules.covers import Cover, Prefix, Present, Property, Within, equal_cover
from broker.rules.expression_covers import can_fail, covers_of
from broker.rules.sql import parse_filter

A, B, LABEL = Property("a"), Property("b"), Property("label", is_system=True)


def within(property: Property, low: float = -math.inf, high: float = math.inf) -> Cover:
    return frozenset({Within(property, low, high)})


PRESENT_A, PRESENT_B = frozenset({Present(A)}), frozenset({Present(B)})


@pytest.mark.parametrize(
    ("text", "covers"),
    [
        ("a = 1", [equal_cover(A, 1)]),
        ("'x' = sys.Label", [equal_cover(LABEL, "x")]),
        ("a = @p", [equal_cover(A, "given")]),
        ("a = NULL", [frozenset()]),
        ("a IN (1, @p, NULL)", [equal_cover(A, 1, "given")]),
        ("a = b", [PRESENT_A, PRESENT_B]),
        ("a > 5", [within(A, 5)]),
        ("5 >= a", [within(A, high=5)]),
        ("a < @n", [within(A, high=7)]),
        ("a < 'x'", [PRESENT_A]),
        ("a > 5 AND b < 3 AND a <= 9", [within(A, 5, 9), within(B, high=3)]),
        ("a LIKE 'x!%y%' ESCAPE '!'", [frozenset({Prefix(A, "x%y")})]),
        ("a LIKE 'x'", [frozenset({Prefix(A, "x")})]),
        ("5 <> a", [PRESENT_A]),
        ("NOT a = 5", [PRESENT_A]),
        ("a LIKE '%x'", [PRESENT_A]),
        ("a NOT LIKE 'x'", [PRESENT_A]),
        ("a NOT IN (1, b)", [PRESENT_A]),
        ("EXISTS(a)", [PRESENT_A]),
        ("a IS NOT NULL", [PRESENT_A]),
        ("a IS NULL", []),
        ("NOT EXISTS(a)", []),
        ("newid() <> newid()", []),
        ("a = 1 AND b = 2", [equal_cover(A, 1), equal_cover(B, 2)]),
        ("a = 1 AND (b > 2 OR a IS NULL)", [equal_cover(A, 1)]),
        ("a = 1 OR b = 2", [equal_cover(A, 1) | equal_cover(B, 2)]),
        ("a = 1 OR b > 2", [equal_cover(A, 1) | within(B, 2)]),
        ("a > 0 AND a = 1 OR b IN (2, 3)", [equal_cover(A, 1) | equal_cover(B, 2, 3)]),
        ("a = 1 OR b IS NULL", []),
        # what can fail
        ("a + 1 = 2", []),
        ("sys.Colour = 1", []),
        ("a = 1 AND b + 1 = 2", [equal_cover(A, 1)]),
        ("b + 1 = 2 AND a = 1", []),
        ("(a = 1 AND b + 1 = 2) AND b = 1", [equal_cover(A, 1)]),
        ("a = 1 OR b + 1 = 2", []),
        ("NOT (a = 1 AND b + 1 = 2)", []),
    ],
)
def test_covers(text: str, covers: list[Cover]) -> None:
    assert list(covers_of(parse_filter(text), {"@p": "given", "@n": 7})) == covers


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("a = 1 AND sys.Label LIKE 'x%' ESCAPE '!'", False),
        ("a = b + 1", True),
        ("-a = 1", True),
        ("p('a') = 1", True),
        ("EXISTS(sys.Colour)", True),
        ("a LIKE b", True),
        ("a LIKE 'x' ESCAPE b", True),
    ],
)
def test_what_can_fail(text: str, fails: bool) -> None:
    assert can_fail(parse_filter(text)) is fails
