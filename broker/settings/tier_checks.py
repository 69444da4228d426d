"""Refuses settings that do not go with the tier: those it does not permit, and those that would have no
effect. Pure.
"""

from __future__ import annotations

from typing import Protocol

from broker.entities.tiers import (
    MESSAGING_UNITS,
    MESSAGING_UNITS_TEXT,
    PREMIUM_MESSAGE_KB_MIN,
    STANDARD_PARTITIONS,
    TierName,
)
from broker.settings.setting_types import variable_of

OF_PREMIUM = ("messaging_units", "throttle_cpu_percent", "throttle_memory_percent", "throttle_pending_max")
"""Settings without effect in the other tiers."""
_OF_PARTITIONED = ("partitions_default", "partitioned_entities_max")


class GivenSettings(Protocol):
    """What `Settings` tells this file."""

    @property
    def tier(self) -> TierName: ...

    @property
    def throttle_credits(self) -> int | None: ...

    @property
    def throttle_filter_credits(self) -> int: ...

    @property
    def credits_per_second(self) -> int: ...

    @property
    def messaging_units(self) -> int: ...

    @property
    def message_kb_max(self) -> int: ...

    @property
    def partitions_default(self) -> int: ...

    @property
    def partitioned_by_default(self) -> bool: ...

    @property
    def model_fields_set(self) -> set[str]: ...


def check_tier(settings: GivenSettings) -> None:
    """Raises ValueError with the first setting that does not go with the tier."""
    if settings.messaging_units not in MESSAGING_UNITS:
        raise ValueError(
            f"{variable_of('messaging_units')} is {settings.messaging_units}, but must be "
            f"{MESSAGING_UNITS_TEXT}"
        )
    if settings.tier == "premium":
        _check_premium(settings)
    elif given := [each for each in OF_PREMIUM if each in settings.model_fields_set]:
        raise ValueError(
            f"{variable_of(given[0])} is {getattr(settings, given[0])}, but needs the `premium` tier; "
            f"{variable_of('tier')} is `{settings.tier}`"
        )
    if settings.throttle_filter_credits and not settings.credits_per_second:
        raise ValueError(
            f"{variable_of('throttle_filter_credits')} is {settings.throttle_filter_credits}, but needs a "
            f"namespace that is throttled by credits: set {variable_of('throttle_credits')}, or choose the "
            "`standard` tier"
        )
    if settings.tier in ("basic", "standard") and settings.partitions_default != STANDARD_PARTITIONS:
        raise ValueError(
            f"{variable_of('partitions_default')} is {settings.partitions_default}, but partitioned entities "
            f"of the `{settings.tier}` tier have {STANDARD_PARTITIONS} partitions: leave it out, or choose "
            f"another {variable_of('tier')}"
        )


def _check_premium(settings: GivenSettings) -> None:
    if settings.throttle_credits is not None:
        raise ValueError(
            f"{variable_of('throttle_credits')} is {settings.throttle_credits}, but has no place in the "
            "`premium` tier, which is throttled by "
            f"CPU, memory and disk: leave it out, or choose another {variable_of('tier')}"
        )
    if settings.message_kb_max < PREMIUM_MESSAGE_KB_MIN:
        raise ValueError(
            f"{variable_of('message_kb_max')} is {settings.message_kb_max}, but entities of the `premium` "
            f"tier accept messages of at least {PREMIUM_MESSAGE_KB_MIN} KiB"
        )
    given = [each for each in _OF_PARTITIONED if each in settings.model_fields_set]
    if given and not settings.partitioned_by_default:
        raise ValueError(
            f"{variable_of(given[0])} is {getattr(settings, given[0])}, which has no effect while "
            f"{variable_of('partitioned_by_default')} is false in the `premium` tier, where no new entity is "
            "partitioned then: leave it out"
        )
