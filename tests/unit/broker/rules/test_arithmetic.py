"""Arithmetic of expressions."""

from __future__ import annotations

import math
import uuid
from decimal import Decimal

import pytest

from broker.message.property_sizes import PROPERTY_BYTES_MAX
from broker.rules.arithmetic import calculate, negated, unchanged
from broker.rules.values import Duration, EvaluationFailed, Instant, Value


@pytest.mark.parametrize(
    ("left", "operator", "right", "result"),
    [
        (7, "+", 2, 9),
        (7, "-", 9, -2),
        (7, "*", 2, 14),
        (7, "/", 2, 3),
        (-7, "/", 2, -3),
        (7, "/", -2, -3),
        (7, "%", 3, 1),
        (-7, "%", 3, -1),
        (7, "%", -3, 1),
        (7, "/", 2.0, 3.5),
        (1.5, "+", 1, 2.5),
        (5.5, "%", 2, 1.5),
        (-5.5, "%", 2, -1.5),
        (1.0, "/", 0, math.inf),
        (-1, "/", 0.0, -math.inf),
        (1.0, "/", -0.0, -math.inf),
        (Decimal("1.5"), "*", 2, Decimal(3)),
        (Decimal("1.5"), "-", 1, Decimal("0.5")),
        (Decimal(7), "/", 2, Decimal("3.5")),
        (Decimal(7), "%", 4, Decimal(3)),
        (Decimal("1.5"), "+", 0.5, 2.0),
        ("a", "+", "b", "ab"),
        (Instant(10), "-", Instant(3), Duration(7)),
        (Instant(10), "+", Duration(3), Instant(13)),
        (Instant(10), "-", Duration(3), Instant(7)),
        (Duration(3), "+", Instant(10), Instant(13)),
        (Duration(3), "+", Duration(4), Duration(7)),
        (Duration(3), "-", Duration(4), Duration(-1)),
        (2**63, "+", 1, 2**63 + 1),
        (2**64 - 1, "-", 2**63, 2**63 - 1),
        (None, "+", 1, None),
        ("a", "-", None, None),
    ],
)
def test_results(left: Value, operator: str, right: Value, result: Value) -> None:
    found = calculate(operator, left, right)
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(("left", "right"), [(0.0, 0.0), (math.nan, 0)])
def test_what_is_not_a_number(left: float, right: float) -> None:
    found = calculate("/", left, right)
    assert isinstance(found, float) and math.isnan(found)


def test_a_remainder_of_zero_or_of_the_infinite_is_not_a_number() -> None:
    for left, right in ((1.0, 0), (math.inf, 2)):
        found = calculate("%", left, right)
        assert isinstance(found, float) and math.isnan(found)


@pytest.mark.parametrize(
    ("left", "operator", "right", "why"),
    [
        (1, "/", 0, "1 / 0 has no result"),
        (1, "%", 0, "1 % 0 has no result"),
        (Decimal(1), "/", 0, "has no result"),
        (2**63 - 1, "+", 1, "does not fit 64 bits"),
        (2**63 - 1, "*", 4, "does not fit 64 bits"),
        (2**64 - 1, "+", 1, "does not fit 64 bits"),
        (-(2**63), "-", 1, "does not fit 64 bits"),
        ("a", "+", 1, "no result for a text and a number"),
        (True, "+", 1, "no result for a boolean and a number"),
        ("a", "*", "b", "no result for a text and a text"),
        (Instant(1), "+", Instant(2), "no result for a date and a date"),
        (Duration(1), "-", Instant(2), "no result for a time span and a date"),
        (b"", "-", uuid.UUID(int=1), "no result for a binary and a guid"),
    ],
)
def test_what_has_no_result_fails(left: Value, operator: str, right: Value, why: str) -> None:
    with pytest.raises(EvaluationFailed, match=why):
        calculate(operator, left, right)


def test_signs() -> None:
    assert negated(5) == -5 and negated(-1.5) == 1.5 and negated(Decimal(2)) == Decimal(-2)
    assert negated(Duration(3)) == Duration(-3)
    assert negated(None) is None and unchanged(None) is None
    assert unchanged(5) == 5 and unchanged(Duration(3)) == Duration(3)
    for change in (negated, unchanged):
        for operand in ("a", True, Instant(1)):
            with pytest.raises(EvaluationFailed, match="sign"):
                change(operand)


def test_a_joined_text_is_no_longer_than_a_property_can_be() -> None:
    half = "a" * (PROPERTY_BYTES_MAX // 2)
    assert calculate("+", half, half) == half * 2
    with pytest.raises(EvaluationFailed, match="the limit is 32768"):
        calculate("+", half, half + "b")
