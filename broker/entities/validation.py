"""Which names and settings an entity may have; used by both the API and the configuration file.

Pure. Raises `WrongProperty` (a `Refused` with `Reason.ARGUMENT`) with the element, the limit and the actual
value, worded for the person who set it. Ranges are the service's (HTTP contract 3.1 to 3.4) unless a comment
says that ours are wider. This module does not check whether other entities exist: only the namespace knows
that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from broker.base.durations import format_duration
from broker.base.errors import Reason, Refused
from broker.entities.descriptions import (
    AuthorizationRule,
    EntitySettings,
    EntityStatus,
    QueueSettings,
    key_of,
)
from broker.entities.topics import SubscriptionSettings, TopicSettings

NAME_LENGTH_MAX = 260
USER_METADATA_LENGTH_MAX = 1024
AUTHORIZATION_RULES_MAX = 12
LOCK_DURATION_MS_MAX = 300_000
AUTO_DELETE_ON_IDLE_MS_MIN = 300_000
DUPLICATE_WINDOW_MS = (5_000, 604_800_000)
"""Wider than the service's 20 s to 7 d, because the emulator's files may say 5 s."""
MAX_SIZE_MB_MAX = 81_920
"""The service accepts only 1,024 and some multiples of it. We accept any number, so that a small disk's size
can be given."""
MAX_DELIVERY_COUNT_MAX = 2_147_483_647
MAX_MESSAGE_SIZE_KB = (1, 102_400)
"""Wider than the service's, which begins at 1,024: a user may want small messages only."""

# Starts and ends with a letter or a digit. The documentation does not mention `~`, but the service accepts it
# and MassTransit creates such names.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._~/-]*[A-Za-z0-9])?")
# `{topic}/subscriptions/{name}` addresses a subscription, in AMQP as over HTTP.
_SUBSCRIPTION = re.compile(r"/subscriptions(?:/|$)", re.IGNORECASE)
_RIGHTS = frozenset({"Manage", "Send", "Listen"})


_NOT_YET: tuple[tuple[str, Callable[[EntitySettings], object], str], ...] = (
    (
        "IsAnonymousAccessible",
        lambda settings: settings.anonymous_accessible or None,
        "no entity is open without a key",
    ),
    (
        "EnableExpress",
        lambda settings: settings.enable_express or None,
        "no entity keeps messages in memory before it writes them",
    ),
    (
        "FilteringMessagesBeforePublishing",
        lambda settings: getattr(settings, "filtering_messages_before_publishing", None) or None,
        "no topic refuses messages that no subscription gets",
    ),
    (
        "EnableSubscriptionPartitioning",
        lambda settings: getattr(settings, "enable_subscription_partitioning", None) or None,
        "subscriptions are partitioned as their topic is, with EnablePartitioning, and in no other way",
    ),
)
"""Settings that this version keeps but does not carry out: the element, its value (None if it asks for
nothing), and what is missing.

EnableBatchedOperations is a hint to the service's own storage, and SupportOrdering changes nothing for queues
in the service either (HTTP contract 3.2), so both values of each are honoured by keeping them."""


class WrongProperty(Refused):
    """An invalid setting. `element` is its name in the administration API and in the configuration file."""

    def __init__(self, element: str, description: str) -> None:
        super().__init__(Reason.ARGUMENT, description)
        self.element = element


def refuse(element: str, description: str) -> NoReturn:
    """Refuse an invalid setting."""
    raise WrongProperty(element, description)


def check_entity_name(name: str) -> None:
    """Check a queue's or topic's name: 1 to 260 characters, and not the address of a subscription."""
    if not 1 <= len(name) <= NAME_LENGTH_MAX:
        refuse("Name", f"The entity name has {len(name)} characters; 1 to {NAME_LENGTH_MAX} are allowed.")
    if not _NAME.fullmatch(name) or "//" in name:
        refuse(
            "Name",
            f"'{name}' contains character(s) that is not allowed by Service Bus. Entity segments can "
            "contain only letters, numbers, "
            "periods (.), hyphens (-), and underscores (_).",
        )
    if any(segment in (".", "..") for segment in name.split("/")):
        refuse(
            "Name",
            (
                f"'{name}' contains the segment '.' or '..', which HTTP clients and proxies resolve, so no "
                "request could reach it."
            ),
        )
    if _SUBSCRIPTION.search(name):
        refuse(
            "Name",
            (
                f"'{name}' contains the segment 'subscriptions', which is reserved for the subscriptions "
                "of a topic."
            ),
        )


def check_queue(
    name: str, settings: QueueSettings, idle_ms_min: int = AUTO_DELETE_ON_IDLE_MS_MIN
) -> QueueSettings:
    """Check each setting of a queue, and how they combine. Returns the settings as they take effect.
    `idle_ms_min` is the shortest AutoDeleteOnIdle."""
    check_entity_name(name)
    check_common(settings, idle_ms_min)
    return check_delivery(name, settings)


def check_topic(
    name: str, settings: TopicSettings, idle_ms_min: int = AUTO_DELETE_ON_IDLE_MS_MIN
) -> TopicSettings:
    """Check each setting of a topic. `idle_ms_min` is the shortest AutoDeleteOnIdle."""
    check_entity_name(name)
    check_common(settings, idle_ms_min)
    if settings.status is EntityStatus.RECEIVE_DISABLED:
        refuse(
            "Status",
            "Nothing is received from a topic itself, so its status cannot be ReceiveDisabled: set that of "
            "its subscriptions.",
        )
    return settings


_Delivers = TypeVar("_Delivers", QueueSettings, SubscriptionSettings)


def check_delivery(name: str, settings: _Delivers) -> _Delivers:
    """Check how a queue or a subscription delivers and forwards. Returns the settings as they take effect.
    `name` is the path by which other entities could forward to this one."""
    if not 0 < settings.lock_duration_ms <= LOCK_DURATION_MS_MAX:
        refuse(
            "LockDuration",
            "The supplied lock time exceeds the allowed maximum of '5' minutes."
            if settings.lock_duration_ms > 0
            else "LockDuration must be positive.",
        )
    _check_range("MaxDeliveryCount", settings.max_delivery_count, 1, MAX_DELIVERY_COUNT_MAX)
    _check_combinations(name, settings)
    if settings.forward_to is not None and settings.auto_delete_on_idle_ms is not None:
        return replace(settings, auto_delete_on_idle_ms=None)  # forwarding counts as use (HTTP contract 3.5)
    return settings


def check_common(settings: EntitySettings, idle_ms_min: int) -> None:
    """Check the settings that every kind of entity has. `idle_ms_min` is the shortest AutoDeleteOnIdle."""
    _check_range("MaxSizeInMegabytes", settings.max_size_mb, 1, MAX_SIZE_MB_MAX)
    _check_range("MaxMessageSizeInKilobytes", settings.max_message_size_kb, *MAX_MESSAGE_SIZE_KB)
    _check_duration(
        "DuplicateDetectionHistoryTimeWindow", settings.duplicate_detection_window_ms, *DUPLICATE_WINDOW_MS
    )
    check_lifetimes(settings, idle_ms_min)
    check_authorization_rules(settings.authorization_rules)
    if settings.requires_duplicate_detection and settings.enable_express:
        refuse(
            "EnableExpress",
            (
                "Both DelayedPersistence property and RequiresDuplicateDetection property cannot be "
                "enabled together."
            ),
        )


def check_lifetimes(settings: EntitySettings | SubscriptionSettings, idle_ms_min: int) -> None:
    """Check what subscriptions have as well as entities. `idle_ms_min` is the shortest AutoDeleteOnIdle."""
    _check_duration("DefaultMessageTimeToLive", settings.default_time_to_live_ms, 1_000, None)
    _check_duration("AutoDeleteOnIdle", settings.auto_delete_on_idle_ms, idle_ms_min, None)
    if len(settings.user_metadata or "") > USER_METADATA_LENGTH_MAX:
        refuse(
            "UserMetadata",
            f"UserMetadata has {len(settings.user_metadata or '')} characters; the limit is "
            f"{USER_METADATA_LENGTH_MAX}.",
        )


CHECKS: Mapping[type[EntitySettings], Callable[[str, Any, int], EntitySettings]] = {
    QueueSettings: check_queue,
    TopicSettings: check_topic,
}
"""The check of each kind's settings. It takes the entity's name, its settings and the shortest
AutoDeleteOnIdle, and returns the settings as they take effect."""


def check_settings(
    name: str, settings: EntitySettings, idle_ms_min: int = AUTO_DELETE_ON_IDLE_MS_MIN
) -> EntitySettings:
    """Check the settings of a new entity of any kind. Returns them as they take effect."""
    return CHECKS[type(settings)](name, settings, idle_ms_min)


def check_update(
    name: str,
    old: EntitySettings,
    new: EntitySettings,
    idle_ms_min: int = AUTO_DELETE_ON_IDLE_MS_MIN,
) -> EntitySettings:
    """Check the settings of an existing entity: as `check_settings`, and nothing fixed at creation may
    change."""
    if type(old) is not type(new):
        raise Refused(Reason.ENTITY_EXISTS, f"Conflict. '{name}' is an entity of another kind.")
    if old.enable_partitioning != new.enable_partitioning:
        refuse("EnablePartitioning", "Partitioning cannot be changed for Queue/Topic.")
    for field in old.FIXED:
        if getattr(old, field) != getattr(new, field):
            first, *others = field.split("_")
            element = first + "".join(map(str.capitalize, others))
            refuse(
                element,
                f"The value for the '{element}' property of an existing Queue(or Topic) cannot be changed.",
            )
    return check_settings(name, new, idle_ms_min)


def without_effect(settings: EntitySettings) -> list[str]:
    """The elements of a description that ask for something this version does not carry out."""
    return [element for element, value_of, _ in _NOT_YET if value_of(settings) is not None]


def check_effect(settings: EntitySettings, stored: EntitySettings | None = None) -> None:
    """Refuse a setting that would have no effect. A value already stored may stay, because an update sends
    the whole description back.

    Raises Refused(NOT_IMPLEMENTED).
    """
    for element, value_of, missing in _NOT_YET:
        value = value_of(settings)
        if value is not None and (stored is None or value_of(stored) != value):
            raise Refused(
                Reason.NOT_IMPLEMENTED,
                (
                    f"{element} is not supported by this version of the broker: {missing} yet. Leave it "
                    "out, and the rest takes effect."
                ),
            )


def check_authorization_rules(rules: tuple[AuthorizationRule, ...]) -> None:
    """Check a list of rules: at most 12, each with a unique name, a key, and rights. Manage requires the
    other two."""
    if len(rules) > AUTHORIZATION_RULES_MAX:
        refuse(
            "AuthorizationRules",
            f"There are {len(rules)} authorization rules; the limit is {AUTHORIZATION_RULES_MAX}.",
        )
    names = [rule.key_name.casefold() for rule in rules]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        refuse("AuthorizationRules", f"Two authorization rules have the same KeyName '{twice}'.")
    for rule in rules:
        if not rule.key_name.strip() or len(rule.key_name) > 256:
            refuse(
                "AuthorizationRules",
                "The KeyName of an authorization rule must have 1 to 256 characters, and not only spaces.",
            )
        if not rule.primary_key.strip():
            refuse("AuthorizationRules", f"The authorization rule '{rule.key_name}' has no PrimaryKey.")
        if rule.secondary_key and not rule.secondary_key.strip():
            refuse(
                "AuthorizationRules",
                f"The SecondaryKey of the authorization rule '{rule.key_name}' is blank.",
            )
        if not rule.rights or not rule.rights <= _RIGHTS:
            refuse(
                "AuthorizationRules",
                f"The authorization rule '{rule.key_name}' must have one or more of the rights "
                "Manage, Send and Listen.",
            )
        if "Manage" in rule.rights and rule.rights != _RIGHTS:
            refuse(
                "AuthorizationRules",
                f"The authorization rule '{rule.key_name}': Manage requires Send and Listen.",
            )


def _check_combinations(name: str, settings: QueueSettings | SubscriptionSettings) -> None:
    if settings.requires_session and settings.forward_to is not None:
        refuse("ForwardTo", "Bad Request. ForwardTo cannot be set on an entity that requires sessions.")
    for element, target in (
        ("ForwardTo", settings.forward_to),
        ("ForwardDeadLetteredMessagesTo", settings.forward_dead_lettered_to),
    ):
        if target is not None and key_of(target) == key_of(name):
            refuse(element, f"'{name}' cannot forward to itself.")


def _check_range(element: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        refuse(
            element,
            (
                f"The specified value {value} is invalid. The property '{element}' must be between "
                f"{lowest} and {highest}."
            ),
        )


def _check_duration(element: str, value_ms: int | None, lowest_ms: int, highest_ms: int | None) -> None:
    if value_ms is None and highest_ms is None:
        return
    if value_ms is None or value_ms < lowest_ms or (highest_ms is not None and value_ms > highest_ms):
        allowed = f"at least {format_duration(lowest_ms)}" + (
            f" and at most {format_duration(highest_ms)}" if highest_ms else ""
        )
        refuse(
            element,
            (
                f"The specified value {format_duration(value_ms)} is invalid. The property '{element}' "
                f"must be {allowed}."
            ),
        )
