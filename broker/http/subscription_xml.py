"""Converts a subscription between XML and `SubscriptionSettings` (HTTP contract 2.4, 2.6, 3.2)."""

from __future__ import annotations

from typing import Final

from broker.base.durations import format_duration
from broker.entities.rules import DEFAULT_RULE_NAME, RuleDescription
from broker.entities.topics import SubscriptionDescription, SubscriptionSettings
from broker.entities.validation import WrongProperty
from broker.http.atom import INSTANCE, SERVICE_BUS, Description, Element, timestamp, top
from broker.http.description_xml import (
    DELIVERY_ELEMENTS,
    Values,
    address_of,
    delivery_fields,
    put,
    write_counts,
)
from broker.http.rule_xml import read_rule_element
from broker.namespace.runtime import EntityRuntime

FIRST_RULE: Final = "DefaultRuleDescription"
SETTINGS: Final = DELIVERY_ELEMENTS | {
    "DefaultMessageTimeToLive",
    "DeadLetteringOnFilterEvaluationExceptions",
    FIRST_RULE,
    "EnableBatchedOperations",
    "Status",
    "UserMetadata",
    "AutoDeleteOnIdle",
}
"""The elements that a request may have."""


def read_subscription(
    description: Description, previous: SubscriptionSettings | None
) -> SubscriptionSettings:
    """Read the settings that a request asks for; `previous` are the subscription's settings when this is an
    update. Raises WrongProperty for an invalid value."""
    values = Values(description)
    service = SubscriptionSettings()
    return SubscriptionSettings(
        **delivery_fields(values, requires_session=(previous or service).requires_session),
        default_time_to_live_ms=values.duration("DefaultMessageTimeToLive"),
        dead_lettering_on_filter_errors=values.boolean(
            "DeadLetteringOnFilterEvaluationExceptions", service.dead_lettering_on_filter_errors
        ),
        enable_batched_operations=values.boolean(
            "EnableBatchedOperations", service.enable_batched_operations
        ),
        status=values.status(),
        user_metadata=values.text("UserMetadata"),
        auto_delete_on_idle_ms=values.duration("AutoDeleteOnIdle"),
    )


def read_first_rule(description: Description) -> RuleDescription:
    """The rule that a new subscription begins with: the one in its description, or the default rule. Raises
    WrongProperty."""
    return _given_rule(description) or RuleDescription(DEFAULT_RULE_NAME)


def ignores_first_rule(description: Description, subscription: SubscriptionDescription) -> bool:
    """Whether the description of an existing subscription has a first rule that is none of its rules. It has
    no effect then: rules are changed one by one. Raises WrongProperty."""
    given = _given_rule(description)
    if given is None:
        return False
    rule = subscription.rule(given.name)
    return rule is None or (rule.filter, rule.action) != (given.filter, given.action)


def _given_rule(description: Description) -> RuleDescription | None:
    elements = description.element.findall(f"{{{SERVICE_BUS}}}{FIRST_RULE}")
    if len(elements) > 1:
        raise WrongProperty(FIRST_RULE, f"The description has more than one element '{FIRST_RULE}'.")
    return read_rule_element(elements[0], DEFAULT_RULE_NAME) if elements else None


def write_subscription(subscription: SubscriptionDescription, runtime: EntityRuntime, host: str) -> Element:
    """Write a subscription's complete description, in the service's order. `host` is the host name in
    forwarding targets."""
    settings = subscription.settings
    root = top("SubscriptionDescription", SERVICE_BUS, i=INSTANCE)
    put(root, "LockDuration", format_duration(settings.lock_duration_ms))
    put(root, "RequiresSession", settings.requires_session)
    put(root, "DefaultMessageTimeToLive", format_duration(settings.default_time_to_live_ms))
    put(root, "DeadLetteringOnMessageExpiration", settings.dead_lettering_on_expiration)
    put(root, "DeadLetteringOnFilterEvaluationExceptions", settings.dead_lettering_on_filter_errors)
    put(root, "MessageCount", runtime.message_count)
    put(root, "MaxDeliveryCount", settings.max_delivery_count)
    put(root, "EnableBatchedOperations", settings.enable_batched_operations)
    put(root, "Status", settings.status.value)
    if settings.forward_to is not None:
        put(root, "ForwardTo", address_of(settings.forward_to, host))
    put(root, "CreatedAt", timestamp(subscription.created_at_ms))
    put(root, "UpdatedAt", timestamp(subscription.updated_at_ms))
    put(root, "AccessedAt", timestamp(runtime.accessed_at_ms))
    if settings.user_metadata is not None:
        put(root, "UserMetadata", settings.user_metadata)
    write_counts(root, runtime)
    if settings.forward_dead_lettered_to is not None:
        put(root, "ForwardDeadLetteredMessagesTo", address_of(settings.forward_dead_lettered_to, host))
    put(root, "AutoDeleteOnIdle", format_duration(settings.auto_delete_on_idle_ms))
    put(root, "EntityAvailabilityStatus", runtime.availability)
    return root
