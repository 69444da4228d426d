"""Topics, subscriptions and rules through the Python administration client, unchanged, over TLS."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import (
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

VALUES: dict[str, Any] = {
    "text": "red",
    "int": 7,
    "long": 2**40,
    "double": 2.5,
    "flag": True,
    "when": datetime.datetime(2026, 1, 5, 10, 0, 0, tzinfo=datetime.UTC),
    "span": datetime.timedelta(days=1, seconds=1.5),
}


@pytest.fixture
def topic(admin: ServiceBusAdministrationClient) -> str:
    name = f"dir/topic-py-{uuid.uuid4().hex}"
    admin.create_topic(name)
    return name


def test_a_topic_is_created_changed_listed_and_deleted(admin: ServiceBusAdministrationClient) -> None:
    name = f"topic-py-{uuid.uuid4().hex}"
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule", rights=["Send"], key_name="k", primary_key="p"
    )
    created = admin.create_topic(
        name,
        default_message_time_to_live=datetime.timedelta(minutes=11),
        max_size_in_megabytes=2048,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=datetime.timedelta(minutes=12),
        enable_batched_operations=False,
        enable_partitioning=False,
        user_metadata="<kept>",
        authorization_rules=[rule],
    )
    found = admin.get_topic(name)
    (kept,) = found.authorization_rules or []
    assert (kept.key_name, kept.rights, kept.primary_key) == ("k", ["Send"], "p")
    created.authorization_rules = found.authorization_rules
    assert dict(found) == dict(created)
    assert (created.requires_duplicate_detection, created.enable_partitioning, created.status) == (
        True,
        False,
        "Active",
    )
    with pytest.raises(ResourceExistsError):
        admin.create_topic(name.upper())
    with pytest.raises(ResourceExistsError):
        admin.create_queue(name)
    created.user_metadata = "changed"
    admin.update_topic(created)
    assert admin.get_topic(name).user_metadata == "changed"
    created.requires_duplicate_detection = False
    with pytest.raises(HttpResponseError, match="cannot be changed"):
        admin.update_topic(created)
    assert name in [each.name for each in admin.list_topics()]
    assert name not in [each.name for each in admin.list_queues()]
    runtime = admin.get_topic_runtime_properties(name)
    assert (runtime.subscription_count, runtime.scheduled_message_count, runtime.size_in_bytes) == (0, 0, 0)
    admin.delete_topic(name)
    for missing in (admin.get_topic, admin.delete_topic):
        with pytest.raises(ResourceNotFoundError):
            missing(name)


def test_a_subscription_is_created_changed_listed_and_deleted(
    admin: ServiceBusAdministrationClient, topic: str
) -> None:
    admin.create_queue(f"{topic}-target")
    created = admin.create_subscription(
        topic,
        "One",
        lock_duration=datetime.timedelta(seconds=13),
        default_message_time_to_live=datetime.timedelta(hours=1),
        dead_lettering_on_message_expiration=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        max_delivery_count=4,
        user_metadata="mine",
        forward_dead_lettered_messages_to=f"{topic}-target",
    )
    assert dict(admin.get_subscription(topic, "One")) == dict(created)
    assert (created.name, created.max_delivery_count, created.requires_session) == ("One", 4, False)
    assert (created.forward_dead_lettered_messages_to or "").endswith(f"/{topic}-target")
    with pytest.raises(ResourceExistsError):
        admin.create_subscription(topic, "ONE")
    created.max_delivery_count = 5
    admin.update_subscription(topic, created)
    assert admin.get_subscription(topic, "One").max_delivery_count == 5
    created.requires_session = True
    with pytest.raises(HttpResponseError, match="cannot be changed"):
        admin.update_subscription(topic, created)
    runtime = admin.get_subscription_runtime_properties(topic, "One")
    assert (runtime.active_message_count, runtime.total_message_count) == (0, 0)
    assert [each.name for each in admin.list_subscriptions_runtime_properties(topic)] == ["One"]
    assert admin.get_topic_runtime_properties(topic).subscription_count == 1
    admin.delete_subscription(topic, "One")
    for missing in (admin.get_subscription, admin.delete_subscription):
        with pytest.raises(ResourceNotFoundError):
            missing(topic, "One")
    with pytest.raises(ResourceNotFoundError):
        admin.create_subscription(f"{topic}-none", "One")
    with pytest.raises(HttpResponseError, match="destination entity does not exist"):
        admin.create_subscription(topic, "Two", forward_to="nowhere")


def test_a_list_of_subscriptions_has_pages(admin: ServiceBusAdministrationClient, topic: str) -> None:
    names = [f"s{number:03d}" for number in range(103)]
    for name in names:
        admin.create_subscription(topic, name)
    assert [each.name for each in admin.list_subscriptions(topic)] == names


def test_rules_of_all_kinds_come_back_as_they_were_made(
    admin: ServiceBusAdministrationClient, topic: str
) -> None:
    admin.create_subscription(topic, "one")
    (default,) = admin.list_rules(topic, "one")
    assert (default.name, type(default.filter)) == ("$Default", TrueRuleFilter)
    admin.delete_rule(topic, "one", "$Default")
    parameters = {f"@{name}": value for name, value in VALUES.items()}
    made: dict[str, tuple[Any, SqlRuleAction | None]] = {
        "true": (TrueRuleFilter(), None),
        "false": (FalseRuleFilter(), None),
        "sql": (
            SqlRuleFilter("color = @text", parameters=parameters),
            SqlRuleAction("SET size = @int", parameters),
        ),
        "correlation": (CorrelationRuleFilter(label="red", properties=VALUES), None),
        "all": (
            CorrelationRuleFilter(
                correlation_id="a",
                message_id="b",
                to="c",
                reply_to="d",
                label="e",
                session_id="f",
                reply_to_session_id="g",
                content_type="h",
                properties={},
            ),
            None,
        ),
    }
    for name, (rule_filter, action) in made.items():
        created = admin.create_rule(topic, "one", name, filter=rule_filter, action=action)
        found: Any = admin.get_rule(topic, "ONE", name)
        for rule in (created, found):
            assert rule.name == name and type(rule.filter) is type(rule_filter)
            fields = set(vars(rule_filter)) - {"sql_expression", "parameters", "requires_preprocessing"}
            assert {each: getattr(rule.filter, each) for each in fields} == {
                each: getattr(rule_filter, each) for each in fields
            }
        if isinstance(rule_filter, SqlRuleFilter) and name == "sql":
            assert found.filter.sql_expression == "color = @text"
            assert dict(found.filter.parameters) == parameters
            assert found.action is not None and found.action.sql_expression == "SET size = @int"
    assert [each.name for each in admin.list_rules(topic, "one")] == list(made)
    with pytest.raises(ResourceExistsError):
        admin.create_rule(topic, "one", "TRUE")
    changed: Any = admin.get_rule(topic, "one", "correlation")
    changed.filter = CorrelationRuleFilter(label="blue")
    admin.update_rule(topic, "one", changed)
    changed = admin.get_rule(topic, "one", "correlation")
    assert changed.filter.label == "blue"
    admin.delete_rule(topic, "one", "true")
    for missing in (admin.get_rule, admin.delete_rule):
        with pytest.raises(ResourceNotFoundError):
            missing(topic, "one", "true")


@pytest.mark.parametrize(
    ("rule_filter", "words"),
    [
        (SqlRuleFilter("color ="), "position"),
        (SqlRuleFilter("a" * 1_025), "1024"),
        (CorrelationRuleFilter(), "at least one"),
        (CorrelationRuleFilter(label="x" * 32_769), "32769 bytes"),
    ],
)
def test_a_wrong_rule_is_refused_with_the_reason(
    admin: ServiceBusAdministrationClient,
    topic: str,
    rule_filter: SqlRuleFilter | CorrelationRuleFilter,
    words: str,
) -> None:
    admin.create_subscription(topic, "one")
    with pytest.raises(HttpResponseError, match=words) as refused:
        admin.create_rule(topic, "one", "wrong", filter=rule_filter)
    assert refused.value.status_code == 400
