"""Filters: true, false and correlation."""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.rules import CorrelationFilter, FalseFilter, RuleValue, SqlFilter, TrueFilter, ValueType
from broker.rules.filters import COMPILED_MAX, compile_filter
from tests.support.rule_messages import view_of


def test_true_matches_everything_and_false_nothing() -> None:
    assert compile_filter(TrueFilter()).matches(view_of())
    assert not compile_filter(FalseFilter()).matches(view_of())


FIELDS = [
    ("correlation_id", "correlation_id"),
    ("message_id", "message_id"),
    ("to", "to"),
    ("reply_to", "reply_to"),
    ("label", "subject"),
    ("session_id", "group_id"),
    ("reply_to_session_id", "reply_to_group_id"),
    ("content_type", "content_type"),
]


@pytest.mark.parametrize(("wanted", "field"), FIELDS)
def test_a_correlation_filter_compares_fields_with_regard_to_case(wanted: str, field: str) -> None:
    """AMQP contract 11.1."""
    given: dict[str, Any] = {wanted: "Value"}
    exact: dict[str, Any] = {field: "Value"}
    other: dict[str, Any] = {field: "value"}
    compiled = compile_filter(CorrelationFilter(**given))
    assert compiled.matches(view_of(**exact))
    assert not compiled.matches(view_of(**other))
    assert not compiled.matches(view_of())


@pytest.mark.parametrize(
    ("wanted", "sent", "matches"),
    [
        (RuleValue(ValueType.STRING, "red"), "red", True),
        (RuleValue(ValueType.STRING, "red"), "RED", False),
        (RuleValue(ValueType.STRING, "3"), 3, False),
        (RuleValue(ValueType.DOUBLE, 3.0), 3, True),
        (RuleValue(ValueType.INT, 1), True, False),
        (RuleValue(ValueType.BOOLEAN, True), True, True),
        (RuleValue(ValueType.STRING, "red"), None, False),
    ],
)
def test_a_correlation_filter_compares_application_properties(
    wanted: RuleValue, sent: Any, matches: bool
) -> None:
    compiled = compile_filter(CorrelationFilter(properties=(("Colour", wanted),)))
    assert compiled.matches(view_of({"colour": sent})) is matches
    assert not compiled.matches(view_of())


def test_all_values_of_a_correlation_filter_must_be_there() -> None:
    red = RuleValue(ValueType.STRING, "red")
    compiled = compile_filter(CorrelationFilter(label="order", properties=(("colour", red),)))
    assert compiled.matches(view_of({"colour": "red"}, subject="order"))
    assert not compiled.matches(view_of({"colour": "red"}))
    assert not compiled.matches(view_of({"colour": "blue"}, subject="order"))
    assert len(compiled.covers) == 2


def test_an_empty_text_is_a_value_too() -> None:
    compiled = compile_filter(CorrelationFilter(label=""))
    assert compiled.matches(view_of(subject="")) and not compiled.matches(view_of())


def test_a_correlation_filter_without_a_value_is_refused() -> None:
    with pytest.raises(Refused, match="at least one value") as refused:
        compile_filter(CorrelationFilter())
    assert refused.value.reason is Reason.ARGUMENT


def test_filters_are_compiled_once() -> None:
    assert compile_filter(CorrelationFilter(label="a")) is compile_filter(CorrelationFilter(label="a"))


def test_many_correlation_filters_do_not_displace_those_that_take_long_to_compile() -> None:
    compiled = compile_filter(SqlFilter("colour = 'red' OR size > 7"))
    for number in range(COMPILED_MAX + 1):
        compile_filter(CorrelationFilter(label=str(number)))
    # Symptom: a topic with so many rules compiled its SQL filters again whenever a partition was opened.
    assert compile_filter(SqlFilter("colour = 'red' OR size > 7")) is compiled
