"""Refuses settings that would have no effect beside others. Pure. `tier_checks.py` does the same for what
depends on the tier.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from broker.settings.setting_types import variable_of

_PARTS = {"property_kb_max": "properties_kb_max", "partitioned_entities_max": "entities_max"}
"""Settings that bound a part of what another one bounds."""


class GivenSettings(Protocol):
    """What `Settings` tells this file."""

    @property
    def model_fields_set(self) -> Collection[str]: ...

    @property
    def fsync(self) -> str: ...

    @property
    def memory_bytes_max(self) -> int | None: ...


def check_effects(given: GivenSettings) -> None:
    """Raise ValueError for a setting that was given and would do nothing."""
    if "fsync_interval_ms" in given.model_fields_set and given.fsync != "interval":
        raise ValueError(
            f"{variable_of('fsync_interval_ms')} has no effect while {variable_of('fsync')} is "
            f"`{given.fsync}`: set {variable_of('fsync')} to `interval`, or leave the interval out"
        )
    if "memory_percent_max" in given.model_fields_set and given.memory_bytes_max is not None:
        percent, size = variable_of("memory_percent_max"), variable_of("memory_bytes_max")
        raise ValueError(f"{percent} has no effect beside {size}: leave one of them out")
    for part, whole in _PARTS.items():
        if part in given.model_fields_set and (getattr(given, part) or 0) > getattr(given, whole):
            raise ValueError(
                f"{variable_of(part)} is {getattr(given, part)}, which has no effect while "
                f"{variable_of(whole)} is {getattr(given, whole)}: lower the one, or raise the other"
            )
