"""Random SQL filters match what a naive evaluation says, alone and among many in the index; texts that are no
expressions are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.base.errors import Reason, Refused
from broker.entities.rules import RuleDescription, RuleValue, SqlFilter, ValueType
from broker.rules.evaluating import Compiler
from broker.rules.filters import compile_filter
from broker.rules.matching import Matcher
from broker.rules.message_view import MessageView
from broker.rules.sql import SQL_DIALECT, parse_action, parse_filter
from broker.rules.values import EvaluationFailed
from tests.property.rule_expressions import (
    PARAMETERS,
    Expression,
    Failed,
    Message,
    expressions,
    is_true,
    messages,
    text_of,
    truth,
)
from tests.support.rule_messages import ENQUEUED_MS, matched, stored_with

TYPES = {int: ValueType.INT, str: ValueType.STRING, bool: ValueType.BOOLEAN}
GIVEN = tuple((name, RuleValue(TYPES[type(value)], value)) for name, value in PARAMETERS.items())
FIELDS = {"Label": "subject", "To": "to", "CorrelationId": "correlation_id"}


def stored(message: Message) -> bytes:
    properties: dict[str, Any] = {FIELDS[name]: text for name, text in message.system.items()}
    return stored_with(dict(message.own), **properties)


def filter_of(expression: Expression) -> SqlFilter:
    return SqlFilter(text_of(expression), GIVEN)


def expected(expression: Expression, message: Message) -> bool | None:
    """Whether the filter matches; None if it fails."""
    try:
        return is_true(expression, message)
    except Failed:
        return None


def found(filter: SqlFilter, message: Message) -> bool | None:
    try:
        return compile_filter(filter).matches(MessageView(stored(message), ENQUEUED_MS))
    except EvaluationFailed:
        return None


def check_one(expression: Expression, message: Message) -> None:
    """Compare whether the filter matches, and whether the condition is true, false or unknown."""
    text = text_of(expression)
    assert found(filter_of(expression), message) is expected(expression, message), text
    decide = Compiler(SQL_DIALECT, PARAMETERS).condition(parse_filter(text), only_true=False)
    try:
        result: object = truth(expression, message)
    except Failed:
        result = Failed
    try:
        assert decide(MessageView(stored(message), ENQUEUED_MS)) is result, text
    except EvaluationFailed:
        assert result is Failed, text


def check_many(several: list[Expression], message: Message) -> None:
    """The index leaves out no filter that matches or fails, and finds none that does not."""
    matcher = Matcher()
    for number, expression in enumerate(several):
        matcher.set_rules(number, [RuleDescription("rule", filter_of(expression))])
    match = matched(matcher, stored(message))
    results = [expected(expression, message) for expression in several]
    assert match.subscriptions == tuple(number for number, result in enumerate(results) if result)
    assert [each.subscription for each in match.failures] == [
        number for number, result in enumerate(results) if result is None
    ]
    for number in range(len(several)):
        matcher.forget(number)
    assert matched(matcher, stored(message)).subscriptions == ()


@settings(max_examples=300, deadline=None)
@given(expressions, messages)
def test_a_filter_matches_what_a_naive_evaluation_says(expression: Expression, message: Message) -> None:
    check_one(expression, message)


@settings(max_examples=100, deadline=None)
@given(st.lists(expressions, max_size=8), messages)
def test_many_filters_in_an_index_match_what_each_of_them_matches(
    several: list[Expression], message: Message
) -> None:
    check_many(several, message)


@settings(max_examples=200, deadline=None)
@given(st.text("aASETsys.@'[]\"()=<>+-*/%, 1NOTIIKELD;", max_size=30))
@pytest.mark.parametrize("parse", [parse_filter, parse_action])
def test_any_text_is_an_expression_or_refused_with_a_position(parse: object, text: str) -> None:
    assert callable(parse)
    try:
        parse(text)
    except Refused as why:
        assert why.reason is Reason.ARGUMENT
        assert "position" in why.description or "no statement" in why.description
