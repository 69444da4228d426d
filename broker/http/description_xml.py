"""What the descriptions of all kinds of entities have in common in XML (HTTP contract 2.4, 2.6, 3.2).

A request may leave out any element, use any order, and send read-only elements back; those are ignored. A
response has every element, in the service's order, including those at their default: JavaScript fails on the
first missing one.

The broker differs from the service in two ways. An entity created without `EnablePartitioning` gets the
broker's default (`partitioned_by_default`), where the service's is false. And settings that are fixed at
creation stay as they were when an update leaves them out. An explicit value always counts.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

import structlog
from lxml import etree

from broker.access.addresses import address_host
from broker.base.durations import parse_duration
from broker.entities.descriptions import AuthorizationRule, EntitySettings, EntityStatus
from broker.entities.topics import SubscriptionSettings
from broker.entities.validation import WrongProperty
from broker.http.atom import (
    COUNTERS,
    INSTANCE,
    SERVICE_BUS,
    Description,
    Element,
    child,
    child_values,
    timestamp,
)
from broker.namespace.runtime import EntityRuntime

log = structlog.get_logger("administration")

ENTITY_ELEMENTS: Final = frozenset(
    [
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "DuplicateDetectionHistoryTimeWindow",
        "DefaultMessageTimeToLive",
        "EnableBatchedOperations",
        "Status",
        "UserMetadata",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "EnableExpress",
        "SupportOrdering",
        "IsAnonymousAccessible",
        "MaxMessageSizeInKilobytes",
        "AuthorizationRules",
    ]
)
"""The settings of every kind of entity."""
DELIVERY_ELEMENTS: Final = frozenset(
    [
        "LockDuration",
        "RequiresSession",
        "DeadLetteringOnMessageExpiration",
        "MaxDeliveryCount",
        "ForwardTo",
        "ForwardDeadLetteredMessagesTo",
    ]
)
"""The settings of queues and subscriptions, which clients receive from."""
READ_ONLY: Final = frozenset(
    [
        "SizeInBytes",
        "MessageCount",
        "CountDetails",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "EntityAvailabilityStatus",
    ]
)
"""Read-only elements, which clients send back unchanged (HTTP contract 2.2)."""
Elsewhere = Callable[[str], str | None]
"""The name of the namespace that a host means, if it means another one than the one that is administered."""
_OF_THE_FILE = ("PartitionCount", "Partitioned")
"""Fields of the configuration file that no client of the service knows. A request that has one was written by
hand."""


@dataclass(slots=True, frozen=True)
class EntityDefaults:
    """The broker's own defaults for an entity whose description leaves these settings out."""

    partitioned: bool
    max_message_size_kb: int


class Values:
    """Reads the plain elements of a description by type. An empty element counts as missing. Raises
    WrongProperty for a value that its type cannot have."""

    def __init__(self, description: Description) -> None:
        self._values = description.values
        self.element = description.element

    def text(self, name: str) -> str | None:
        """The text of an element; None if it is missing."""
        return self._values.get(name) or None

    def boolean(self, name: str, default: bool) -> bool:
        """The value of an element; the default if it is missing."""
        text = (self.text(name) or "").strip().lower()
        if not text:
            return default
        if text not in ("true", "false", "1", "0"):
            raise WrongProperty(
                name, f"The value '{text}' of the property '{name}' is neither true nor false."
            )
        return text in ("true", "1")

    def integer(self, name: str, default: int) -> int:
        """The value of an element; the default if it is missing."""
        text = (self.text(name) or "").strip()
        if not text:
            return default
        if not text.removeprefix("-").isdecimal() or len(text) > 19:
            raise WrongProperty(
                name, f"The value '{text[:40]}' of the property '{name}' is not a whole number."
            )
        return int(text)

    def duration(self, name: str) -> int | None:
        """A duration in milliseconds; None if it is missing, or without limit."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse_duration(text)
        except ValueError as error:
            raise WrongProperty(name, f"The property '{name}': {error}.") from error

    def limited(self, name: str, default: int) -> int:
        """A duration in milliseconds, which has a limit; the default if it is missing."""
        if self.text(name) is None:
            return default
        value = self.duration(name)
        if value is None:
            raise WrongProperty(name, f"The property '{name}' cannot be without limit.")
        return value

    def status(self) -> EntityStatus:
        """The status; ACTIVE if it is missing."""
        text = self.text("Status")
        if text is None:
            return EntityStatus.ACTIVE
        for status in EntityStatus:
            if status.value.casefold() == text.strip().casefold():
                return status
        raise WrongProperty(
            "Status",
            (
                f"The value '{text[:40]}' of the property 'Status' is none of Active, Disabled, "
                "SendDisabled, ReceiveDisabled."
            ),
        )


def entity_fields(
    values: Values, defaults: EntityDefaults, fixed: EntitySettings, now_ms: int
) -> dict[str, Any]:
    """Read the settings that every kind of entity has, as the fields of `EntitySettings`. `fixed` has those
    that are fixed at creation. Raises WrongProperty."""
    service = type(fixed)()
    return {
        "max_size_mb": values.integer("MaxSizeInMegabytes", service.max_size_mb),
        "requires_duplicate_detection": values.boolean(
            "RequiresDuplicateDetection", fixed.requires_duplicate_detection
        ),
        "duplicate_detection_window_ms": values.limited(
            "DuplicateDetectionHistoryTimeWindow", service.duplicate_detection_window_ms
        ),
        "default_time_to_live_ms": values.duration("DefaultMessageTimeToLive"),
        "enable_batched_operations": values.boolean(
            "EnableBatchedOperations", service.enable_batched_operations
        ),
        "status": values.status(),
        "user_metadata": values.text("UserMetadata"),
        "auto_delete_on_idle_ms": values.duration("AutoDeleteOnIdle"),
        "enable_partitioning": values.boolean("EnablePartitioning", fixed.enable_partitioning),
        "enable_express": values.boolean("EnableExpress", service.enable_express),
        "support_ordering": values.boolean("SupportOrdering", service.support_ordering),
        "anonymous_accessible": values.boolean("IsAnonymousAccessible", service.anonymous_accessible),
        "max_message_size_kb": values.integer("MaxMessageSizeInKilobytes", defaults.max_message_size_kb),
        "authorization_rules": _read_authorization_rules(values.element, now_ms),
    }


def delivery_fields(values: Values, *, requires_session: bool) -> dict[str, Any]:
    """Read the settings that queues and subscriptions have, as their fields. `requires_session` is fixed at
    creation. Raises WrongProperty."""
    service = SubscriptionSettings()
    return {
        "lock_duration_ms": values.limited("LockDuration", service.lock_duration_ms),
        "requires_session": values.boolean("RequiresSession", requires_session),
        "dead_lettering_on_expiration": values.boolean(
            "DeadLetteringOnMessageExpiration", service.dead_lettering_on_expiration
        ),
        "max_delivery_count": values.integer("MaxDeliveryCount", service.max_delivery_count),
        "forward_to": entity_of(values.text("ForwardTo")),
        "forward_dead_lettered_to": entity_of(values.text("ForwardDeadLetteredMessagesTo")),
    }


def check_targets(description: Description, elsewhere: Elsewhere) -> None:
    """Refuse to forward to another namespace, which the host of a target names (HTTP contract 1.5). Raises
    WrongProperty."""
    for name in ("ForwardTo", "ForwardDeadLetteredMessagesTo"):
        target = _innermost(description.values.get(name, ""))
        other = elsewhere(address_host(target))
        if other is not None:
            raise WrongProperty(
                name,
                f"The property '{name}': '{target:.300}' is in the namespace '{other}', and messages are "
                "forwarded within a namespace only.",
            )


def check_not_of_the_file(values: Values) -> None:
    """Refuse fields of the configuration file. Raises WrongProperty."""
    for name in _OF_THE_FILE:
        if values.text(name) is not None:
            raise WrongProperty(
                name,
                f"'{name}' is a field of the configuration file alone. Over HTTP, EnablePartitioning "
                "says whether an entity is partitioned; "
                "how many partitions it then has is PARTIBUS_PARTITIONS_DEFAULT.",
            )


def unknown_elements(description: Description, known: Set[str]) -> list[str]:
    """The names of elements that no description of this kind has, as the client spelled them: misspelt, or
    from a later version.

    They are ignored, as in the service (HTTP contract 7.12).
    """
    return sorted(description.values.keys() - known - READ_ONLY)


def note_ignored(description: Description, known: Set[str], path: str) -> None:
    """Warn of elements that have no effect on the entity or subscription with this path. `known` are those of
    its kind."""
    if unknown := unknown_elements(description, known):
        warn_of_ignored(path, unknown, "No setting of this kind of entity has these names.")


def warn_of_ignored(path: str, elements: Sequence[str], advice: str) -> None:
    """Warn that these elements of a request have no effect on the entity or subscription with this path."""
    log.warning(
        "entity.elements_ignored",
        entity=path,
        elements=[element[:60] for element in elements[:10]],
        advice=advice,
    )


def put(parent: Element, name: str, value: str | int | bool) -> None:
    """Append an element with a plain value."""
    child(parent, name, str(value).lower() if isinstance(value, bool) else str(value))


def entity_of(target: str | None) -> str | None:
    """Find the entity path in a forwarding target: `sb://host:port/name`, `https://host/name` or `name` (HTTP
    contract 1.5)."""
    if not target or not target.strip():
        return None
    target = _innermost(target)
    _, scheme, rest = target.partition("://")
    path = rest.partition("/")[2] if scheme else target
    return urllib.parse.unquote(path.partition("?")[0]).strip("/") or None


def _innermost(target: str) -> str:
    """A target without the address that Java puts in front of the absolute one that it was shown, since that
    begins with `sb:`."""
    target = target.strip()
    while "://" in (inner := target.partition("://")[2].partition("/")[2]):
        target = inner
    return target


def address_of(entity: str, host: str) -> str:
    """The absolute form of a forwarding target. Clients send it back on the next update."""
    return f"sb://{host}/{urllib.parse.quote(entity)}"


def _read_authorization_rules(description: Element, now_ms: int) -> tuple[AuthorizationRule, ...]:
    rules = []
    for element in description.findall(
        f"{{{SERVICE_BUS}}}AuthorizationRules/{{{SERVICE_BUS}}}AuthorizationRule"
    ):
        values = child_values(element)
        rights = {
            right.text
            for right in element.findall(f"{{{SERVICE_BUS}}}Rights/{{{SERVICE_BUS}}}AccessRights")
            if right.text
        }
        rules.append(
            AuthorizationRule(
                key_name=values.get("KeyName", ""),
                primary_key=values.get("PrimaryKey", ""),
                secondary_key=values.get("SecondaryKey", ""),
                rights=frozenset(rights),
                created_at_ms=now_ms,
                modified_at_ms=now_ms,
            )
        )
    return tuple(rules)


def write_authorization_rules(root: Element, rules: tuple[AuthorizationRule, ...]) -> None:
    """Append the authorization rules of an entity, with their keys."""
    parent = child(root, "AuthorizationRules", "")
    for rule in rules:
        element = etree.SubElement(parent, f"{{{SERVICE_BUS}}}AuthorizationRule")
        element.set(f"{{{INSTANCE}}}type", "SharedAccessAuthorizationRule")
        child(element, "ClaimType", "SharedAccessKey")
        child(element, "ClaimValue", "None")
        rights = etree.SubElement(element, f"{{{SERVICE_BUS}}}Rights")
        for right in ("Manage", "Send", "Listen"):
            if right in rule.rights:
                child(rights, "AccessRights", right)
        child(element, "CreatedTime", timestamp(rule.created_at_ms))
        child(element, "ModifiedTime", timestamp(rule.modified_at_ms))
        child(element, "KeyName", rule.key_name)
        child(element, "PrimaryKey", rule.primary_key)
        child(element, "SecondaryKey", rule.secondary_key)


def write_counts(root: Element, runtime: EntityRuntime) -> None:
    """Append the numbers of messages in each state."""
    # The prefix is declared here as the only attribute, because JavaScript finds the counters no other way.
    counts = etree.SubElement(root, f"{{{SERVICE_BUS}}}CountDetails", nsmap={"d2p1": COUNTERS})
    for name, value in (
        ("ActiveMessageCount", runtime.active),
        ("DeadLetterMessageCount", runtime.dead_letter),
        ("ScheduledMessageCount", runtime.scheduled),
        ("TransferMessageCount", runtime.transfer),
        ("TransferDeadLetterMessageCount", runtime.transfer_dead_letter),
    ):
        child(counts, name, str(value), COUNTERS)
