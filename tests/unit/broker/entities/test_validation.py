"""Allowed names and settings of entities."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import AuthorizationRule, EntityStatus, QueueSettings
from broker.entities.topics import TopicSettings
from broker.entities.validation import (
    WrongProperty,
    check_entity_name,
    check_queue,
    check_topic,
    check_update,
)

ALL = frozenset({"Manage", "Send", "Listen"})


@pytest.mark.parametrize(
    "name", ["a", "queue.1", "dir/queue-2_x", "a.b~c", "Z" * 260, "subscriptions", "health"]
)
def test_a_name_of_the_service_is_taken(name: str) -> None:
    check_entity_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-a",
        "a-",
        "a b",
        "a//b",
        "/a",
        "$Resources",
        "ä",
        "a" * 261,
        "t/subscriptions/s",
        "t/Subscriptions",
        "a/../b",
        "a/./b",
    ],
)
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(WrongProperty) as caught:
        check_entity_name(name)
    assert (caught.value.reason, caught.value.element) == (Reason.ARGUMENT, "Name")


def test_the_defaults_are_allowed() -> None:
    assert check_queue("q", QueueSettings()) == QueueSettings()


@pytest.mark.parametrize(
    ("element", "change"),
    [
        ("LockDuration", {"lock_duration_ms": 0}),
        ("LockDuration", {"lock_duration_ms": 300_001}),
        ("MaxSizeInMegabytes", {"max_size_mb": 0}),
        ("MaxSizeInMegabytes", {"max_size_mb": 81_921}),
        ("MaxDeliveryCount", {"max_delivery_count": 0}),
        ("MaxDeliveryCount", {"max_delivery_count": 2**31}),
        ("MaxMessageSizeInKilobytes", {"max_message_size_kb": 102_401}),
        ("DuplicateDetectionHistoryTimeWindow", {"duplicate_detection_window_ms": 4_999}),
        ("DuplicateDetectionHistoryTimeWindow", {"duplicate_detection_window_ms": 604_800_001}),
        ("DefaultMessageTimeToLive", {"default_time_to_live_ms": 999}),
        ("AutoDeleteOnIdle", {"auto_delete_on_idle_ms": 299_999}),
        ("UserMetadata", {"user_metadata": "x" * 1025}),
        ("ForwardTo", {"forward_to": "Q"}),
        ("ForwardDeadLetteredMessagesTo", {"forward_dead_lettered_to": "q"}),
        ("ForwardTo", {"forward_to": "other", "requires_session": True}),
        ("EnableExpress", {"enable_express": True, "requires_duplicate_detection": True}),
        (
            "AuthorizationRules",
            {"authorization_rules": (AuthorizationRule("a", "k", "", frozenset({"Manage"})),)},
        ),
        ("AuthorizationRules", {"authorization_rules": (AuthorizationRule("a", "k", "", frozenset()),)}),
        ("AuthorizationRules", {"authorization_rules": (AuthorizationRule("a", "", "", ALL),)}),
        ("AuthorizationRules", {"authorization_rules": (AuthorizationRule("", "k", "", ALL),)}),
        ("AuthorizationRules", {"authorization_rules": (AuthorizationRule(" ", "k", "", ALL),)}),
        ("AuthorizationRules", {"authorization_rules": (AuthorizationRule("a", " ", "", ALL),)}),
        ("AuthorizationRules", {"authorization_rules": (AuthorizationRule("a", "k", " ", ALL),)}),
        (
            "AuthorizationRules",
            {
                "authorization_rules": (
                    AuthorizationRule("a", "k", "", ALL),
                    AuthorizationRule("A", "k", "", ALL),
                )
            },
        ),
        (
            "AuthorizationRules",
            {"authorization_rules": tuple(AuthorizationRule(f"a{i}", "k", "", ALL) for i in range(13))},
        ),
    ],
)
def test_a_setting_out_of_its_range_is_refused_by_its_name(element: str, change: dict[str, object]) -> None:
    with pytest.raises(WrongProperty) as caught:
        check_queue("q", replace(QueueSettings(), **change))  # type: ignore[arg-type]
    assert caught.value.element == element


def test_the_limit_and_the_value_met_are_named() -> None:
    with pytest.raises(WrongProperty, match=r"The specified value 0 is invalid.*between 1 and 2147483647"):
        check_queue("q", QueueSettings(max_delivery_count=0))
    with pytest.raises(WrongProperty, match=r"The specified value PT1S is invalid.*at least PT5M"):
        check_queue("q", QueueSettings(auto_delete_on_idle_ms=1_000))


def test_a_topic_cannot_be_disabled_for_receivers_alone() -> None:
    with pytest.raises(WrongProperty, match="ReceiveDisabled"):
        check_topic("t", TopicSettings(status=EntityStatus.RECEIVE_DISABLED))
    check_topic("t", TopicSettings(status=EntityStatus.SEND_DISABLED))


def test_a_queue_that_forwards_is_never_idle() -> None:
    assert (
        check_queue("q", QueueSettings(forward_to="r", auto_delete_on_idle_ms=600_000)).auto_delete_on_idle_ms
        is None
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"enable_partitioning": False}, "Partitioning cannot be changed for Queue/Topic."),
        ({"requires_session": True}, "The value for the 'requiresSession' property of an existing Queue"),
        (
            {"requires_duplicate_detection": True},
            "The value for the 'requiresDuplicateDetection' property of an existing Queue",
        ),
    ],
)
def test_what_is_fixed_at_creation_cannot_change(change: dict[str, bool], text: str) -> None:
    with pytest.raises(WrongProperty) as caught:
        check_update("q", QueueSettings(), replace(QueueSettings(), **change))  # type: ignore[arg-type]
    assert caught.value.description.startswith(text)


def test_everything_else_can() -> None:
    changed = QueueSettings(
        lock_duration_ms=5_000, max_delivery_count=2, default_time_to_live_ms=1_000, user_metadata="x"
    )
    assert check_update("q", QueueSettings(), changed) == changed
