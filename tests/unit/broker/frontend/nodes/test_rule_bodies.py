"""broker/frontend/nodes/rule_bodies.py: rules as the official clients send and read them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.rules import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    RuleValue,
    SqlAction,
    SqlFilter,
    TrueFilter,
    ValueType,
)
from broker.frontend.nodes.rule_bodies import described_rule, rule_of
from protocol.codec import Described, Float, Long, Symbol, Timestamp, UInt, ULong, decode, encode

GUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
PROPERTIES: dict[str, object] = {
    "text": "red",
    "flag": True,
    "int": -7,  # as it is decoded
    "uint": UInt(7),
    "long": Long(7),
    "ulong": ULong(7),
    "half": 0.5,
    "float": Float(0.5),
    "when": Timestamp(1_500),
    "id": GUID,
    "span": Described(Symbol("com.microsoft:timespan"), Long(70)),
}
OFFSET_BEFORE_THE_YEAR_1 = Described(Symbol("com.microsoft:datetime-offset"), Long(-1))
SPAN_BEYOND_64_BITS = Described(Symbol("com.microsoft:timespan"), ULong(2**63))
VALUES = (
    ("text", RuleValue(ValueType.STRING, "red")),
    ("flag", RuleValue(ValueType.BOOLEAN, True)),
    ("int", RuleValue(ValueType.INT, -7)),
    ("uint", RuleValue(ValueType.UNSIGNED_INT, 7)),
    ("long", RuleValue(ValueType.LONG, 7)),
    ("ulong", RuleValue(ValueType.UNSIGNED_LONG, 7)),
    ("half", RuleValue(ValueType.DOUBLE, 0.5)),
    ("float", RuleValue(ValueType.FLOAT, 0.5)),
    ("when", RuleValue(ValueType.DATE_TIME, 15_000_000)),
    ("id", RuleValue(ValueType.GUID, str(GUID))),
    ("span", RuleValue(ValueType.DURATION, 70)),
)


def request(**description: object) -> dict[str, Any]:
    spelled = {name.replace("_", "-"): value for name, value in description.items()}
    return {"rule-name": "r", "rule-description": spelled}


def test_a_sql_rule_is_read_with_its_action() -> None:
    rule = rule_of(request(sql_filter={"expression": "a = 1"}, sql_rule_action={"expression": "SET b = 2"}))
    assert rule == RuleDescription("r", SqlFilter("a = 1"), SqlAction("SET b = 2"))


def test_a_correlation_rule_keeps_the_types_of_its_properties() -> None:
    fields = {"correlation-id": "c", "label": "l", "to": None, "properties": PROPERTIES}
    rule = rule_of(request(correlation_filter=fields))
    assert rule.filter == CorrelationFilter(correlation_id="c", label="l", properties=VALUES)
    assert isinstance(rule.filter, CorrelationFilter)
    types = {type(value.value) for _, value in rule.filter.properties}
    assert types == {str, bool, int, float}, "no AMQP types, which other values would not equal"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"rule-name": 7, "rule-description": {"sql-filter": {"expression": "1=1"}}},
        {"rule-name": "r"},
        {
            "rule-name": "r",
            "rule-description": {"rule-name": "other", "sql-filter": {"expression": "1=1"}},
        },
        {"rule-name": "r", "rule-description": {"correlation-filter": {"label": "", "to": "x"}}},
        request(),
        request(sql_filter={"expression": "1=1"}, correlation_filter={"label": "x"}),
        request(sql_filter={}),
        request(sql_filter={"expression": "1=1", "parameters": {}}),
        request(true_filter={}),
        request(correlation_filter={"subject": "x"}),
        request(correlation_filter={"label": 7}),
        request(correlation_filter={"properties": {"list": [1]}}),
        request(correlation_filter={"properties": {"when": Timestamp(-62_135_596_800_001)}}),
        request(correlation_filter={"properties": {"when": Timestamp(253_402_300_800_000)}}),
        request(correlation_filter={"properties": {"when": OFFSET_BEFORE_THE_YEAR_1}}),
        request(correlation_filter={"properties": {"span": SPAN_BEYOND_64_BITS}}),
        request(sql_filter={"expression": "1=1"}, sql_rule_action={"expression": None}),
    ],
)
def test_what_cannot_be_understood_is_refused_and_never_dropped(body: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        rule_of(body)
    assert caught.value.reason is Reason.ARGUMENT


@pytest.mark.parametrize(
    ("rule_filter", "code", "fields"),
    [
        (SqlFilter("a = 1"), 83483426822, ["a = 1", 20]),
        (TrueFilter(), 83483426823, []),
        (FalseFilter(), 83483426824, []),
        (
            CorrelationFilter("a", "b", "c", "d", "e", "f", "g", "h", VALUES),
            83483426825,
            [*"abcdefgh", PROPERTIES],
        ),
    ],
)
def test_a_rule_is_described_by_position_with_the_services_codes(
    rule_filter: Any, code: int, fields: list[object]
) -> None:
    described = decode(encode(described_rule(RuleDescription("r", rule_filter, None, 1_500))))[0]
    assert described.descriptor == 1335734829060
    of_filter, action, name, created = described.value
    assert (of_filter.descriptor, of_filter.value) == (code, fields)
    assert (action.descriptor, action.value, name, created) == (1335734829061, [], "r", 1_500)


def test_an_action_is_described_with_its_expression() -> None:
    rule = RuleDescription("r", TrueFilter(), SqlAction("SET a = 1"))
    action = described_rule(rule).value[1]
    assert (action.descriptor, action.value) == (1335734829062, ["SET a = 1", 20])
