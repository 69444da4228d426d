"""broker/entities/subscription_documents.py: a topic is read back with its subscriptions and rules."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from broker.entities.descriptions import EntityStatus
from broker.entities.documents import decode_description, encode_description
from broker.entities.rules import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    RuleValue,
    SqlAction,
    SqlFilter,
    TrueFilter,
    ValueType,
)
from broker.entities.topics import SubscriptionSettings, TopicDescription, TopicSettings

EMPTY = TopicDescription("events", "a" * 32, 4, TopicSettings(), 1, 1)
DEFAULT = (RuleDescription("$Default"),)
VALUES = (
    ("@text", RuleValue(ValueType.STRING, "ü")),
    ("@number", RuleValue(ValueType.LONG, 2**62)),
    ("@float", RuleValue(ValueType.DOUBLE, 1.0)),
    ("@flag", RuleValue(ValueType.BOOLEAN, True)),
    ("@time", RuleValue(ValueType.DATE_TIME, 5)),
    ("@time without a zone", RuleValue(ValueType.DATE_TIME, 5, has_zone=False)),
)


@pytest.mark.parametrize(
    "rule_filter",
    [
        TrueFilter(),
        FalseFilter(),
        SqlFilter("color = @text", VALUES),
        CorrelationFilter(label="red", properties=VALUES),
        CorrelationFilter("a", "b", "c", "d", "e", "f", "g", "h"),
    ],
)
def test_a_topic_survives_its_document_with_its_subscriptions_and_rules(rule_filter: Filter) -> None:
    rules = (
        *DEFAULT,
        RuleDescription("r", rule_filter, SqlAction("SET color = @text", VALUES), 9),
    )
    settings = SubscriptionSettings(
        status=EntityStatus.RECEIVE_DISABLED, forward_to="other", user_metadata="x"
    )
    topic = EMPTY.with_new("one", settings, rules, 5).with_new("two", settings, rules, 6, from_file=True)
    topic = topic.without(1)
    read = decode_description(encode_description(topic))
    assert read == topic and isinstance(read, TopicDescription)
    assert read.subqueues == topic.subqueues and read.last_subscription == 2
    declared = [
        value for rule in read.subscriptions[0].rules for value in getattr(rule.filter, "properties", ())
    ]
    assert [type(value.value) for _, value in declared] in ([], [str, int, float, bool, int, int])


def test_a_document_names_the_changes_of_rules_that_the_topic_has() -> None:
    made = replace(EMPTY, rule_changes_made=("0a", "0b"))
    assert decode_description(encode_description(made)) == made
    assert b"rule_changes_made" not in encode_description(EMPTY), "earlier builds read it"


def test_a_document_shows_rules_as_people_read_them() -> None:
    rule = RuleDescription("red", CorrelationFilter(label="red"))
    document = json.loads(encode_description(EMPTY.with_new("one", SubscriptionSettings(), [rule], 5)))
    assert document["kind"] == "topic"
    assert document["subscriptions"][0]["rules"][0]["filter"] == {
        "type": "correlation",
        "label": "red",
        "properties": [],
    }


def test_texts_of_users_that_look_like_the_document_are_kept() -> None:
    tricky = '"subscriptions": []'
    topic = TopicDescription("events", "a" * 32, 4, TopicSettings(user_metadata=tricky), 1, 1)
    for read in (topic, topic.with_new("one", SubscriptionSettings(user_metadata=tricky), DEFAULT, 5)):
        assert decode_description(encode_description(read)) == read
