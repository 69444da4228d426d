"""The tiers of a namespace: what each permits its entities (HTTP contract 3.2, 3.4 and 3.6). Pure.

A tier is checked when an entity is created, and when a setting changes. What an entity has from another tier
stays: it keeps working, and an update may send it back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from broker.base.durations import format_duration
from broker.entities.descriptions import EntitySettings
from broker.entities.topics import TopicSettings
from broker.entities.validation import refuse

TierName = Literal["basic", "standard", "premium", "unlimited"]

STANDARD_PARTITIONS = 16
BASIC_TIME_TO_LIVE_MS = 14 * 24 * 3_600_000


@dataclass(slots=True, frozen=True)
class Tier:
    """What the entities of a namespace may be."""

    name: TierName
    sku: str
    """`MessagingSKU` in the namespace's information."""
    partitions: int | None = None
    """How many partitions each partitioned entity has; None if its creator chooses."""
    partitioned: bool | None = None
    """Whether all entities are partitioned or none is; None if each one's creator chooses."""
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


def tier_of(name: TierName, *, partitioned: bool, partitions: int) -> Tier:
    """The tier of this name. In the premium tier, `partitioned` says whether the namespace's entities are
    partitioned, and `partitions` into how many."""
    match name:
        case "basic":
            return Tier(name, "Basic", STANDARD_PARTITIONS, is_basic=True)
        case "standard":
            return Tier(name, "Standard", STANDARD_PARTITIONS)
        case "premium":
            return Tier(name, "Premium", partitions, partitioned)
        case "unlimited":
            return UNLIMITED


UNLIMITED = Tier("unlimited", "Premium")


_NOT_IN_BASIC: tuple[tuple[str, Callable[[EntitySettings], object]], ...] = (
    ("RequiresSession", lambda settings: getattr(settings, "requires_session", False)),
    ("RequiresDuplicateDetection", lambda settings: settings.requires_duplicate_detection),
    ("AutoDeleteOnIdle", lambda settings: settings.auto_delete_on_idle_ms),
    ("EnableExpress", lambda settings: settings.enable_express),
    ("ForwardTo", lambda settings: settings.forwarding[0]),
    ("ForwardDeadLetteredMessagesTo", lambda settings: settings.forwarding[1]),
)
"""Elements that the basic tier does not have, and the value of each; nothing if it is not asked for."""


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
