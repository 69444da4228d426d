"""broker/entities/subscription_validation.py: allowed names, settings, rules and numbers of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntityStatus
from broker.entities.rules import (
    CorrelationFilter,
    RuleDescription,
    RuleValue,
    SqlAction,
    SqlFilter,
    TrueFilter,
    ValueType,
)
from broker.entities.subscription_validation import (
    TopicLimits,
    check_limits,
    check_rule,
    check_rules,
    check_subscription,
    check_subscription_name,
    check_subscription_update,
    filter_counts,
)
from broker.entities.topics import (
    SUBSCRIPTION_NUMBER_MAX,
    SubscriptionSettings,
    TopicDescription,
    TopicSettings,
)
from broker.entities.validation import WrongProperty
from broker.partition.records import REMOVED, Mark, encode_mark, encode_runs

DEFAULTS = SubscriptionSettings()
TOPIC = TopicDescription("events", "a" * 32, 4, TopicSettings())
RED = RuleDescription("red", CorrelationFilter(label="red"))


@pytest.mark.parametrize("name", ["a", "subscription.1", "a_b-c~d", "Z" * 50])
def test_a_name_of_the_service_is_taken(name: str) -> None:
    check_subscription_name(name)
    check_rule(RuleDescription(name))


@pytest.mark.parametrize("name", ["mine$client.1$D", "ours$$D", "m$" + "c" * 46 + "$D"])
def test_a_subscription_may_have_the_name_of_a_clients_one(name: str) -> None:
    check_subscription_name(name)
    with pytest.raises(Refused):
        check_rule(RuleDescription(name))


@pytest.mark.parametrize(
    "name", ["$client$D", "mine$D", "mine$a$b$D", "mine$client$ND", "m$" + "c" * 47 + "$D"]
)
def test_another_name_with_a_client_is_refused(name: str) -> None:
    with pytest.raises(Refused):
        check_subscription_name(name)


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a.", "a b", "a" * 51, "$Defaults", "ä"])
def test_another_name_is_refused(name: str) -> None:
    for check in (check_subscription_name, lambda name: check_rule(RuleDescription(name))):
        with pytest.raises(WrongProperty) as caught:
            check(name)
        assert (caught.value.reason, caught.value.element) == (Reason.ARGUMENT, "Name")


def test_only_rules_may_be_called_default() -> None:
    check_rule(RuleDescription("$default"))
    with pytest.raises(WrongProperty):
        check_subscription_name("$Default")


@pytest.mark.parametrize(
    ("element", "settings"),
    [
        ("LockDuration", SubscriptionSettings(lock_duration_ms=300_001)),
        ("MaxDeliveryCount", SubscriptionSettings(max_delivery_count=0)),
        ("DefaultMessageTimeToLive", SubscriptionSettings(default_time_to_live_ms=999)),
        ("AutoDeleteOnIdle", SubscriptionSettings(auto_delete_on_idle_ms=1)),
        ("UserMetadata", SubscriptionSettings(user_metadata="x" * 1_025)),
        ("ForwardTo", SubscriptionSettings(requires_session=True, forward_to="other")),
        ("ForwardTo", SubscriptionSettings(forward_to="events/subscriptions/ONE")),
        ("Status", SubscriptionSettings(status=EntityStatus.SEND_DISABLED)),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(element: str, settings: SubscriptionSettings) -> None:
    with pytest.raises(WrongProperty) as caught:
        check_subscription("events", "one", settings)
    assert caught.value.element == element


def test_forwarding_counts_as_use() -> None:
    settings = SubscriptionSettings(forward_to="other", auto_delete_on_idle_ms=400_000)
    assert check_subscription("events", "one", settings).auto_delete_on_idle_ms is None


def test_sessions_are_fixed_at_creation() -> None:
    with pytest.raises(WrongProperty) as caught:
        check_subscription_update("events", "one", DEFAULTS, SubscriptionSettings(requires_session=True))
    assert caught.value.element == "RequiresSession"


def text(value: str) -> RuleValue:
    return RuleValue(ValueType.STRING, value)


LONG = "x" * 32_769
MANY = tuple((f"{number:08}", text("x" * 8)) for number in range(4_097))


def test_the_values_of_a_filter_may_be_as_large_as_the_properties_of_a_message() -> None:
    check_rule(RuleDescription("r", CorrelationFilter(label="x" * 32_768, to="x" * 32_768)))
    check_rule(RuleDescription("r", CorrelationFilter(properties=MANY[1:])))
    check_rule(RuleDescription("r", SqlFilter("a = @x", (("@x", text("x" * 32_768)),))))


@pytest.mark.parametrize(
    ("element", "rule"),
    [
        ("CorrelationFilter", RuleDescription("r", CorrelationFilter())),
        ("SqlFilter", RuleDescription("r", SqlFilter(" "))),
        ("SqlFilter", RuleDescription("r", SqlFilter("x" * 1_025))),
        ("SqlRuleAction", RuleDescription("r", TrueFilter(), SqlAction(""))),
        # Symptom: these were accepted, and kept in memory, on the disk and in every answer.
        ("CorrelationFilter", RuleDescription("r", CorrelationFilter(label="x" * 32_769))),
        ("CorrelationFilter", RuleDescription("r", CorrelationFilter(to="\N{PILE OF POO}" * 8_193))),
        (
            "CorrelationFilter",
            RuleDescription("r", CorrelationFilter("x" * 30_000, "x" * 30_000, "x" * 30_000)),
        ),
        ("CorrelationFilter", RuleDescription("r", CorrelationFilter(properties=((LONG, text("x")),)))),
        ("CorrelationFilter", RuleDescription("r", CorrelationFilter(properties=(("x", text(LONG)),)))),
        ("CorrelationFilter", RuleDescription("r", CorrelationFilter(properties=MANY))),
        ("SqlFilter", RuleDescription("r", SqlFilter("a = 1", parameters=(("@x", text(LONG)),)))),
        ("SqlRuleAction", RuleDescription("r", TrueFilter(), SqlAction("SET a = 1", parameters=MANY))),
    ],
)
def test_a_rule_that_says_nothing_or_too_much_is_refused(element: str, rule: RuleDescription) -> None:
    with pytest.raises(WrongProperty) as caught:
        check_rule(rule)
    assert caught.value.element == element


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(WrongProperty):
        check_rules([RED, RuleDescription("RED")])


def test_the_default_rule_counts_as_a_sql_filter_and_numbers_are_limited() -> None:
    topic = TOPIC.with_new("one", DEFAULTS, [RuleDescription("$Default"), RED], 1)
    assert filter_counts(topic) == (1, 1)
    check_limits(TOPIC, topic, TopicLimits(subscriptions=1, rules=2))
    for limits in (TopicLimits(subscriptions=0), TopicLimits(rules=1)):
        with pytest.raises(Refused) as caught:
            check_limits(TOPIC, topic, limits)
        assert caught.value.reason is Reason.QUOTA_EXCEEDED
        check_limits(topic, topic, limits)  # what there was before may stay


def test_a_topic_that_has_given_all_numbers_gets_no_more_subscriptions() -> None:
    before = replace(TOPIC, last_subscription=SUBSCRIPTION_NUMBER_MAX - 1)
    last = before.with_new("last", DEFAULTS, [], 1)
    check_limits(before, last, TopicLimits())
    number = last.subqueues.end - 1
    assert encode_mark(Mark(REMOVED, number, [1], target=number)) and encode_runs(number, [1], [1])
    deleted = last.without(SUBSCRIPTION_NUMBER_MAX)
    check_limits(last, deleted, TopicLimits())
    with pytest.raises(Refused, match="16383 subscriptions over time") as caught:
        check_limits(deleted, deleted.with_new("next", DEFAULTS, [], 1), TopicLimits())
    assert caught.value.reason is Reason.QUOTA_EXCEEDED
    beyond = replace(last, last_subscription=SUBSCRIPTION_NUMBER_MAX + 1)
    check_limits(beyond, beyond.without(SUBSCRIPTION_NUMBER_MAX), TopicLimits())
