"""broker/namespace/file_subscriptions.py: what the configuration file does to subscriptions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.entities.rules import CorrelationFilter, RuleDescription
from broker.entities.topics import SubscriptionSettings, TopicDescription, TopicSettings
from broker.namespace.file_subscriptions import fixed_differences, with_subscriptions
from broker.settings.config_file import SubscriptionSpec, TopicSpec

EMPTY = TopicDescription("events", "a" * 32, 4, TopicSettings())
DEFAULT = RuleDescription("$Default")
RED = RuleDescription("red", CorrelationFilter(label="red"))
SETTINGS = SubscriptionSettings(max_delivery_count=3)


def spec(*subscriptions: SubscriptionSpec) -> TopicSpec:
    return TopicSpec("events", TopicSettings(), None, subscriptions)


ONE = SubscriptionSpec("one", SETTINGS, (DEFAULT,))
TOPIC = with_subscriptions(EMPTY, spec(ONE), 5)


def test_a_missing_subscription_is_created_and_applying_it_again_changes_nothing() -> None:
    (one,) = TOPIC.subscriptions
    assert (one.name, one.settings, one.created_at_ms) == ("one", SETTINGS, 5)
    assert one.rules == (replace(DEFAULT, created_at_ms=5),)
    assert with_subscriptions(TOPIC, spec(ONE), 9) is TOPIC
    assert with_subscriptions(TOPIC, spec(), 9) is TOPIC, "what the file does not name stays"


def test_many_subscriptions_are_applied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic is described anew for all of them together: a description takes as long as it has
    subscriptions."""
    built: list[TopicDescription] = []
    build = TopicDescription.__post_init__

    def build_and_note(self: TopicDescription) -> None:
        built.append(self)
        build(self)

    monkeypatch.setattr(TopicDescription, "__post_init__", build_and_note)
    two, three = (replace(ONE, name=name) for name in ("two", "three"))
    changed = replace(ONE, settings=replace(SETTINGS, max_delivery_count=4))
    topic = with_subscriptions(TOPIC, spec(three, changed, two), 7)
    assert [(each.name, each.number) for each in topic.subscriptions] == [
        ("one", 1),
        ("three", 2),
        ("two", 3),
    ]
    assert topic.last_subscription == 3 and topic.subscriptions[0].settings.max_delivery_count == 4
    assert built == [topic]


def test_what_the_api_changed_stays_until_the_entry_itself_changes() -> None:
    (one,) = TOPIC.subscriptions
    by_api = replace(one.with_rules((RED,), 6), settings=replace(SETTINGS, max_delivery_count=9))
    topic = TOPIC.with_changed(by_api)
    assert with_subscriptions(topic, spec(ONE), 7) is topic
    other_settings = replace(ONE, settings=replace(SETTINGS, max_delivery_count=4))
    (changed,) = with_subscriptions(topic, spec(other_settings), 7).subscriptions
    assert changed.settings.max_delivery_count == 4 and changed.rules == by_api.rules
    (changed,) = with_subscriptions(topic, spec(replace(ONE, rules=(RED, DEFAULT))), 7).subscriptions
    assert [rule.name for rule in changed.rules] == ["red", "$Default"]
    assert changed.settings.max_delivery_count == 9 and changed.number == one.number


def test_sessions_are_fixed_at_creation_and_reported() -> None:
    sessions = replace(ONE, settings=replace(SETTINGS, requires_session=True, max_delivery_count=4))
    topic = with_subscriptions(TOPIC, spec(sessions), 7)
    (changed,) = topic.subscriptions
    assert (changed.settings.requires_session, changed.settings.max_delivery_count) == (False, 4)
    ((name, reason),) = fixed_differences(topic, spec(sessions))
    assert name == "one" and reason.startswith("RequiresSession is true in the file and false")
    assert list(fixed_differences(topic, spec(ONE))) == []
