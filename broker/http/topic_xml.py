"""Converts a topic's description between XML and `TopicSettings` (HTTP contract 2.4, 2.6, 3.2)."""

from __future__ import annotations

from typing import Final

from broker.base.durations import format_duration
from broker.entities.subscription_validation import filter_counts
from broker.entities.topics import TopicDescription, TopicSettings
from broker.entities.validation import WrongProperty
from broker.http.atom import INSTANCE, SERVICE_BUS, Description, Element, timestamp, top
from broker.http.description_xml import (
    ENTITY_ELEMENTS,
    EntityDefaults,
    Values,
    check_not_of_the_file,
    entity_fields,
    put,
    write_authorization_rules,
    write_counts,
)
from broker.namespace.runtime import EntityRuntime

_READ_ONLY: Final = frozenset(["SubscriptionCount", "SqlFilterCount", "CorrelationFilterCount"])
SETTINGS: Final = (
    ENTITY_ELEMENTS
    | _READ_ONLY
    | {
        "FilteringMessagesBeforePublishing",
        "EnableSubscriptionPartitioning",
        "ForwardTo",
    }
)
"""The elements that a request may have."""


def read_topic(
    description: Description, defaults: EntityDefaults, previous: TopicSettings | None, now_ms: int
) -> TopicSettings:
    """Read the settings that a request asks for; `previous` are the topic's settings when this is an update.
    Raises WrongProperty for an invalid value."""
    values = Values(description)
    check_not_of_the_file(values)
    if values.text("ForwardTo") is not None:
        raise WrongProperty("ForwardTo", "A topic cannot forward its messages: its subscriptions can.")
    service = TopicSettings()
    fixed = previous or TopicSettings(enable_partitioning=defaults.partitioned)
    return TopicSettings(
        **entity_fields(values, defaults, fixed, now_ms),
        filtering_messages_before_publishing=values.boolean(
            "FilteringMessagesBeforePublishing", service.filtering_messages_before_publishing
        ),
        enable_subscription_partitioning=values.boolean(
            "EnableSubscriptionPartitioning", service.enable_subscription_partitioning
        ),
    )


def write_topic(topic: TopicDescription, runtime: EntityRuntime) -> Element:
    """Write a topic's complete description, in the service's order."""
    settings = topic.settings
    sql_filters, correlation_filters = filter_counts(topic)
    root = top("TopicDescription", SERVICE_BUS, i=INSTANCE)
    put(root, "DefaultMessageTimeToLive", format_duration(settings.default_time_to_live_ms))
    put(root, "MaxSizeInMegabytes", settings.max_size_mb)
    put(root, "RequiresDuplicateDetection", settings.requires_duplicate_detection)
    window = format_duration(settings.duplicate_detection_window_ms)
    put(root, "DuplicateDetectionHistoryTimeWindow", window)
    put(root, "EnableBatchedOperations", settings.enable_batched_operations)
    put(root, "SizeInBytes", runtime.size_bytes)
    put(root, "FilteringMessagesBeforePublishing", settings.filtering_messages_before_publishing)
    put(root, "IsAnonymousAccessible", settings.anonymous_accessible)
    write_authorization_rules(root, settings.authorization_rules)
    put(root, "Status", settings.status.value)
    if settings.user_metadata is not None:
        put(root, "UserMetadata", settings.user_metadata)
    put(root, "CreatedAt", timestamp(topic.created_at_ms))
    put(root, "UpdatedAt", timestamp(topic.updated_at_ms))
    put(root, "AccessedAt", timestamp(runtime.accessed_at_ms))
    put(root, "SupportOrdering", settings.support_ordering)
    write_counts(root, runtime)
    put(root, "SubscriptionCount", len(topic.subscriptions))
    put(root, "AutoDeleteOnIdle", format_duration(settings.auto_delete_on_idle_ms))
    put(root, "EnablePartitioning", settings.enable_partitioning)
    put(root, "EntityAvailabilityStatus", runtime.availability)
    put(root, "EnableSubscriptionPartitioning", settings.enable_subscription_partitioning)
    put(root, "EnableExpress", settings.enable_express)
    put(root, "MaxMessageSizeInKilobytes", settings.max_message_size_kb)
    put(root, "SqlFilterCount", sql_filters)
    put(root, "CorrelationFilterCount", correlation_filters)
    return root
