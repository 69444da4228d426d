"""Converts a queue's description between XML and `QueueSettings` (HTTP contract 2.4, 2.6, 3.2)."""

from __future__ import annotations

from typing import Final

from broker.base.durations import format_duration
from broker.entities.descriptions import QueueDescription, QueueSettings
from broker.http.atom import INSTANCE, SERVICE_BUS, Description, Element, timestamp, top
from broker.http.description_xml import (
    DELIVERY_ELEMENTS,
    ENTITY_ELEMENTS,
    EntityDefaults,
    Values,
    address_of,
    check_not_of_the_file,
    delivery_fields,
    entity_fields,
    put,
    write_authorization_rules,
    write_counts,
)
from broker.namespace.runtime import EntityRuntime

SETTINGS: Final = ENTITY_ELEMENTS | DELIVERY_ELEMENTS


def read_queue(
    description: Description, defaults: EntityDefaults, previous: QueueSettings | None, now_ms: int
) -> QueueSettings:
    """Read the settings that a request asks for; `previous` are the queue's settings when this is an update.
    Raises WrongProperty for an invalid value."""
    values = Values(description)
    check_not_of_the_file(values)
    fixed = previous or QueueSettings(enable_partitioning=defaults.partitioned)
    return QueueSettings(
        **entity_fields(values, defaults, fixed, now_ms),
        **delivery_fields(values, requires_session=fixed.requires_session),
    )


def write_queue(queue: QueueDescription, runtime: EntityRuntime, host: str) -> Element:
    """Write a queue's complete description, in the service's order. `host` is the host name in forwarding
    targets."""
    settings = queue.settings
    root = top("QueueDescription", SERVICE_BUS, i=INSTANCE)

    put(root, "LockDuration", format_duration(settings.lock_duration_ms))
    put(root, "MaxSizeInMegabytes", settings.max_size_mb)
    put(root, "RequiresDuplicateDetection", settings.requires_duplicate_detection)
    put(root, "RequiresSession", settings.requires_session)
    put(root, "DefaultMessageTimeToLive", format_duration(settings.default_time_to_live_ms))
    put(root, "DeadLetteringOnMessageExpiration", settings.dead_lettering_on_expiration)
    put(root, "DuplicateDetectionHistoryTimeWindow", format_duration(settings.duplicate_detection_window_ms))
    put(root, "MaxDeliveryCount", settings.max_delivery_count)
    put(root, "EnableBatchedOperations", settings.enable_batched_operations)
    put(root, "SizeInBytes", runtime.size_bytes)
    put(root, "MessageCount", runtime.message_count)
    put(root, "IsAnonymousAccessible", settings.anonymous_accessible)
    write_authorization_rules(root, settings.authorization_rules)
    put(root, "Status", settings.status.value)
    if settings.forward_to is not None:
        put(root, "ForwardTo", address_of(settings.forward_to, host))
    if settings.user_metadata is not None:
        put(root, "UserMetadata", settings.user_metadata)
    put(root, "CreatedAt", timestamp(queue.created_at_ms))
    put(root, "UpdatedAt", timestamp(queue.updated_at_ms))
    put(root, "AccessedAt", timestamp(runtime.accessed_at_ms))
    put(root, "SupportOrdering", settings.support_ordering)
    write_counts(root, runtime)
    put(root, "AutoDeleteOnIdle", format_duration(settings.auto_delete_on_idle_ms))
    put(root, "EnablePartitioning", settings.enable_partitioning)
    put(root, "EntityAvailabilityStatus", runtime.availability)
    if settings.forward_dead_lettered_to is not None:
        put(root, "ForwardDeadLetteredMessagesTo", address_of(settings.forward_dead_lettered_to, host))
    put(root, "EnableExpress", settings.enable_express)
    put(root, "MaxMessageSizeInKilobytes", settings.max_message_size_kb)
    return root
