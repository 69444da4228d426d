"""Rules as data."""

from __future__ import annotations

from broker.entities.rules import (
    CorrelationFilter,
    RuleDescription,
    RuleValue,
    SqlFilter,
    TrueFilter,
    ValueType,
)


def test_a_rule_without_filter_matches_everything() -> None:
    assert RuleDescription("$Default") == RuleDescription("$Default", TrueFilter(), None, 0)


def test_values_of_different_types_are_different_although_python_finds_them_equal() -> None:
    one, true = RuleValue(ValueType.INT, 1), RuleValue(ValueType.BOOLEAN, True)
    assert one.value == true.value
    assert CorrelationFilter(properties=(("a", one),)) != CorrelationFilter(properties=(("a", true),))


def test_equal_rules_have_equal_hashes() -> None:
    rules = {
        RuleDescription("red", SqlFilter("colour = @c", (("@c", RuleValue(ValueType.STRING, "red")),)))
        for _ in range(2)
    }
    assert len(rules) == 1
