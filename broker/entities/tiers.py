"""The tiers of a namespace: what each permits its entities (HTTP contract 3.2, 3.4 and 3.6). Pure.

A tier is checked when an entity is created, and when a setting changes. What an entity has from another tier
stays: it keeps working, and an update may send it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from broker.base.durations import format_duration
from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntitySettings
from broker.entities.topics import TopicSettings
from broker.entities.validation import refuse

TierName = Literal["basic", "standard", "premium", "unlimited"]

STANDARD_PARTITIONS = 16
STANDARD_PARTITIONED_ENTITIES = 100
STANDARD_MESSAGE_KB = 256
PAGE_KB = 256
"""A page of a peek in the basic and standard tiers, at most."""
CONNECTIONS = RECEIVERS = 5_000
"""AMQP connections of a namespace, and receivers of an entity, in the tiers of the service (HTTP contract
6.1)."""
STANDARD_SIZES_MB = tuple(1_024 * size for size in (1, 2, 3, 4, 5))
PREMIUM_SIZES_MB = tuple(1_024 * size for size in (1, 2, 3, 4, 5, 10, 20, 40, 80))
PREMIUM_MESSAGE_KB_MIN = 1_024
MESSAGING_UNITS = (1, 2, 4, 8, 16)
"""How many messaging units a namespace of the premium tier may have."""
MESSAGING_UNITS_TEXT = f"{', '.join(map(str, MESSAGING_UNITS[:-1]))} or {MESSAGING_UNITS[-1]}"
"""The same as people read it."""
BASIC_TIME_TO_LIVE_MS = 14 * 24 * 3_600_000

_OF_THE_SERVICE: Mapping[str, int] = {"connections_max": CONNECTIONS, "receivers_per_entity_max": RECEIVERS}
_OF_STANDARD = {**_OF_THE_SERVICE, "message_kb_max": STANDARD_MESSAGE_KB, "peek_kb_max": PAGE_KB}
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "basic": _OF_STANDARD,
    "standard": _OF_STANDARD,
    "premium": _OF_THE_SERVICE,
    "unlimited": {},
}
"""What settings are in a tier if they are not given (HTTP contract 6.1 and 6.2)."""


@dataclass(slots=True, frozen=True)
class Tier:
    """What a tier permits the entities of a namespace."""

    name: TierName
    sku: str
    """`MessagingSKU` in the namespace's information."""
    partitions: int | None = None
    """How many partitions each partitioned entity has; None if its creator chooses."""
    partitioned: bool | None = None
    """Whether all entities are partitioned or none is; None if each one's creator chooses."""
    sizes_mb: tuple[int, ...] | None = None
    """The values that MaxSizeInMegabytes may have; None for any."""
    message_kb: tuple[int, int | None] | None = None
    """The least and the largest MaxMessageSizeInKilobytes; None for what all tiers permit."""
    partitioned_entities: int | None = None
    """How many partitioned entities there may be; None for as many as there may be entities."""
    is_basic: bool = False
    """Queues only, and without the features of `_NOT_IN_BASIC`. No transactions."""

    def admit(
        self,
        namespace: str,
        settings: EntitySettings,
        partitions: int | None = None,
        previous: EntitySettings | None = None,
    ) -> EntitySettings:
        """Check the settings of a new entity, or the changed settings of one that had `previous`. Returns
        them as they take effect. `partitions`: how many were asked for.

        Raises WrongProperty with the element that the tier does not permit.
        """
        if previous is None:
            self._check_partitioning(namespace, settings, partitions)
        self._check_sizes(settings, previous)
        return _admit_to_basic(namespace, settings, previous) if self.is_basic else settings

    def _check_partitioning(self, namespace: str, settings: EntitySettings, partitions: int | None) -> None:
        if self.partitioned is not None and settings.enable_partitioning is not self.partitioned:
            refuse(
                "EnablePartitioning",
                "Non-partitioned entities are not allowed in partitioned namespace. The property "
                "EnablePartitioning must be set to true."
                if self.partitioned
                else "Partitioned entities are not allowed in non-partitioned namespace. The property "
                "EnablePartitioning must be set to false.",
            )
        if settings.enable_partitioning and self.partitions and partitions not in (None, self.partitions):
            refuse(
                "PartitionCount",
                f"The specified value {partitions} is invalid. Partitioned entities have {self.partitions} "
                f"partitions because the namespace '{namespace}' is using the '{self.name.capitalize()}' "
                "Tier.",
            )

    def _check_sizes(self, settings: EntitySettings, previous: EntitySettings | None) -> None:
        size_mb, message_kb = settings.max_size_mb, settings.max_message_size_kb
        is_new_size = previous is None or size_mb != previous.max_size_mb
        if is_new_size and self.sizes_mb is not None and size_mb not in self.sizes_mb:
            refuse(
                "MaxSizeInMegabytes",
                f"The specified value {size_mb} is invalid. The property 'MaxSizeInMegabytes' must be one of "
                f"{', '.join(map(str, self.sizes_mb))} in the '{self.name.capitalize()}' Tier.",
            )
        if self.message_kb is None or (previous is not None and message_kb == previous.max_message_size_kb):
            return
        least, largest = self.message_kb
        if message_kb < least or (largest is not None and message_kb > largest):
            allowed = f"at least {least}" if largest is None else f"from {least} to {largest}"
            allowed = f"{least}" if least == largest else allowed
            refuse(
                "MaxMessageSizeInKilobytes",
                f"The specified value {message_kb} is invalid. The property 'MaxMessageSizeInKilobytes' must "
                f"be {allowed} in the '{self.name.capitalize()}' Tier.",
            )

    def check_count(self, settings: EntitySettings, others: Iterable[EntitySettings]) -> None:
        """Check that there may be one more entity with these settings, beside `others`. Raises
        Refused(QUOTA_EXCEEDED)."""
        if self.partitioned_entities is None or not settings.enable_partitioning:
            return
        count = sum(other.enable_partitioning for other in others)
        if count >= self.partitioned_entities:
            raise Refused(
                Reason.QUOTA_EXCEEDED,
                f"The namespace holds {count} partitioned entities; the limit is "
                f"{self.partitioned_entities}.",
            )


def tier_of(
    name: TierName,
    *,
    partitioned: bool,
    partitions: int,
    message_kb: int = STANDARD_MESSAGE_KB,
    partitioned_entities: int | None = None,
) -> Tier:
    """The tier of this name. `message_kb`: the largest message of the basic and standard tiers, and of
    partitioned entities in the premium tier. `partitioned_entities`: how many there may be; None for as many
    as the tier says. In the premium tier, `partitioned` says whether the namespace's entities are
    partitioned, and `partitions` into how many."""
    if name == "premium":
        largest_kb = max(message_kb, PREMIUM_MESSAGE_KB_MIN) if partitioned else None
        message_kbs = (PREMIUM_MESSAGE_KB_MIN, largest_kb)
        tier = Tier(name, "Premium", partitions, partitioned, PREMIUM_SIZES_MB, message_kbs)
    elif name == "unlimited":
        tier = UNLIMITED
    else:
        tier = Tier(
            name,
            name.capitalize(),
            STANDARD_PARTITIONS,
            None,
            STANDARD_SIZES_MB,
            (message_kb, message_kb),
            STANDARD_PARTITIONED_ENTITIES,
            is_basic=name == "basic",
        )
    return tier if partitioned_entities is None else replace(tier, partitioned_entities=partitioned_entities)


UNLIMITED = Tier("unlimited", "Premium")


_NOT_IN_BASIC: tuple[tuple[str, Callable[[EntitySettings], object]], ...] = (
    ("RequiresSession", lambda settings: getattr(settings, "requires_session", False)),
    ("RequiresDuplicateDetection", lambda settings: settings.requires_duplicate_detection),
    ("AutoDeleteOnIdle", lambda settings: settings.auto_delete_on_idle_ms),
    ("EnableExpress", lambda settings: settings.enable_express),
    ("ForwardTo", lambda settings: settings.forwarding[0]),
    ("ForwardDeadLetteredMessagesTo", lambda settings: settings.forwarding[1]),
)
"""Elements that the basic tier does not have, and what a description asks for with each, if anything."""


def _admit_to_basic(
    namespace: str, settings: EntitySettings, previous: EntitySettings | None
) -> EntitySettings:
    if previous is None and isinstance(settings, TopicSettings):
        refuse(
            "Topic",
            f"The namespace '{namespace}' is using the 'Basic' Tier, which has queues only: topics need the "
            "standard tier.",
        )
    for element, value_of in _NOT_IN_BASIC:
        value = value_of(settings)
        if value and (previous is None or value != value_of(previous)):
            refuse(
                element,
                f"The property '{element}' cannot be set when creating a Queue because the namespace "
                f"'{namespace}' is using the 'Basic' Tier.",
            )
    live_ms = settings.default_time_to_live_ms
    if live_ms is None:
        return replace(settings, default_time_to_live_ms=BASIC_TIME_TO_LIVE_MS)
    if live_ms > BASIC_TIME_TO_LIVE_MS and (previous is None or live_ms != previous.default_time_to_live_ms):
        refuse(
            "DefaultMessageTimeToLive",
            f"The specified value {format_duration(live_ms)} is invalid. The property "
            f"'DefaultMessageTimeToLive' must be at most {format_duration(BASIC_TIME_TO_LIVE_MS)} in the "
            "'Basic' Tier.",
        )
    return settings
