"""Refuses settings that would have no effect beside others. Pure. `tier_checks.py` does the same for what
depends on the tier.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from broker.settings.setting_types import variable_of

_PARTS = {"property_kb_max": "properties_kb_max", "partitioned_entities_max": "entities_max"}
"""Settings that bound a part of what another one bounds."""


class GivenSettings(Protocol):
    """What `Settings` tells this file."""

    @property
    def model_fields_set(self) -> Collection[str]: ...

    @property
    def tls_certificate(self) -> Path | None: ...

    @property
    def tls_key(self) -> Path | None: ...

    @property
    def certificate_names(self) -> tuple[str, ...]: ...

    @property
    def fsync(self) -> str: ...

    @property
    def fsync_interval_ms(self) -> int: ...

    @property
    def memory_percent_max(self) -> int: ...

    @property
    def memory_bytes_max(self) -> int | None: ...


def _check_certificate(given: GivenSettings) -> None:
    certificate, key = variable_of("tls_certificate"), variable_of("tls_key")
    if (given.tls_certificate is None) != (given.tls_key is None):
        raise ValueError(
            f"{certificate} and {key} are given together, or neither of them (got only "
            f"{given.tls_certificate or given.tls_key})"
        )
    if given.tls_certificate is not None and given.certificate_names:
        raise ValueError(
            f"{variable_of('certificate_names')} ({','.join(given.certificate_names)}) has no effect on the "
            f"certificate that {certificate} names: leave it out, and give names that the HTTP port is to "
            f"answer to in {variable_of('hostnames')}"
        )


def check_effects(given: GivenSettings) -> None:
    """Raise ValueError for a setting that was given and would do nothing."""
    _check_certificate(given)
    if "fsync_interval_ms" in given.model_fields_set and given.fsync != "interval":
        raise ValueError(
            f"{variable_of('fsync_interval_ms')} is {given.fsync_interval_ms}, which has no effect while "
            f"{variable_of('fsync')} is `{given.fsync}`: set {variable_of('fsync')} to `interval`, or leave "
            "the interval out"
        )
    if "memory_percent_max" in given.model_fields_set and given.memory_bytes_max is not None:
        percent, size = variable_of("memory_percent_max"), variable_of("memory_bytes_max")
        raise ValueError(
            f"{percent} is {given.memory_percent_max}, which has no effect beside {size}, which is "
            f"{given.memory_bytes_max}: leave one of them out"
        )
    for part, whole in _PARTS.items():
        if part in given.model_fields_set and (getattr(given, part) or 0) > getattr(given, whole):
            raise ValueError(
                f"{variable_of(part)} is {getattr(given, part)}, which has no effect while "
                f"{variable_of(whole)} is {getattr(given, whole)}: lower the one, or raise the other"
            )
