"""broker/http/topic_xml.py: topic descriptions, complete and in the service's order."""

from __future__ import annotations

import pytest
from lxml import etree

from broker.entities.descriptions import AuthorizationRule, EntityStatus
from broker.entities.rules import CorrelationFilter, RuleDescription
from broker.entities.topics import SubscriptionSettings, TopicDescription, TopicSettings
from broker.entities.validation import WrongProperty
from broker.http.atom import SERVICE_BUS, parse_entry
from broker.http.description_xml import EntityDefaults, unknown_elements
from broker.http.topic_xml import SETTINGS, read_topic, write_topic
from broker.namespace.runtime import EntityRuntime
from tests.unit.broker.http.test_queue_xml import NOW_MS, body

DEFAULTS = EntityDefaults(partitioned=True, max_message_size_kb=1024)
ORDER = [
    "DefaultMessageTimeToLive",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "DuplicateDetectionHistoryTimeWindow",
    "EnableBatchedOperations",
    "SizeInBytes",
    "FilteringMessagesBeforePublishing",
    "IsAnonymousAccessible",
    "AuthorizationRules",
    "Status",
    "UserMetadata",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "SupportOrdering",
    "CountDetails",
    "SubscriptionCount",
    "AutoDeleteOnIdle",
    "EnablePartitioning",
    "EntityAvailabilityStatus",
    "EnableSubscriptionPartitioning",
    "EnableExpress",
    "MaxMessageSizeInKilobytes",
    "SqlFilterCount",
    "CorrelationFilterCount",
]


def read(inner: str, previous: TopicSettings | None = None) -> TopicSettings:
    description = parse_entry(body(f'<TopicDescription xmlns="{SERVICE_BUS}">{inner}</TopicDescription>'))
    assert unknown_elements(description, SETTINGS) == []
    return read_topic(description, DEFAULTS, previous, NOW_MS)


def test_an_empty_description_has_the_services_defaults_but_for_partitioning() -> None:
    assert read("") == TopicSettings(enable_partitioning=True)


def test_what_is_written_is_complete_in_order_and_read_back_as_it_was() -> None:
    rule = AuthorizationRule("app", "primary", "", frozenset({"Send"}), NOW_MS, NOW_MS)
    settings = TopicSettings(
        max_size_mb=2_048,
        requires_duplicate_detection=True,
        duplicate_detection_window_ms=30_000,
        default_time_to_live_ms=60_000,
        status=EntityStatus.SEND_DISABLED,
        user_metadata="mine",
        auto_delete_on_idle_ms=400_000,
        enable_partitioning=False,
        filtering_messages_before_publishing=True,
        enable_subscription_partitioning=True,
        authorization_rules=(rule,),
    )
    topic = TopicDescription("events", "0" * 32, 2, settings, NOW_MS, NOW_MS).with_new(
        "one",
        SubscriptionSettings(),
        [RuleDescription("$Default"), RuleDescription("r", CorrelationFilter(label="x"))],
        NOW_MS,
    )
    runtime = EntityRuntime(0, 0, 3, 0, 0, 3, 99, "Limited", None)
    root = write_topic(topic, runtime)
    assert [etree.QName(each).localname for each in root] == ORDER
    values = {etree.QName(each).localname: each.text for each in root.iter()}
    assert (values["SubscriptionCount"], values["SqlFilterCount"], values["CorrelationFilterCount"]) == (
        "1",
        "1",
        "1",
    )
    assert (values["ScheduledMessageCount"], values["SizeInBytes"]) == ("3", "99")
    assert read_topic(parse_entry(body(etree.tostring(root).decode())), DEFAULTS, None, NOW_MS) == settings


def test_fixed_settings_stay_when_an_update_leaves_them_out() -> None:
    fixed = TopicSettings(requires_duplicate_detection=True, enable_partitioning=False)
    assert read("", fixed) == fixed


def test_a_topic_that_should_forward_is_refused() -> None:
    assert read("<ForwardTo/>") == TopicSettings()
    with pytest.raises(WrongProperty):
        read("<ForwardTo>sb://host/other</ForwardTo>")
