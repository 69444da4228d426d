"""The settings of a namespace beside the first one, which the configuration file gives.

Those of the first namespace are the broker's. Another one has its own for everything in NAMESPACE_SETTINGS,
with the same defaults and the same checks, and shares the others. It inherits neither keys nor quotas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_pascal
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from broker.settings.settings import Settings

NAMESPACE_SETTINGS = frozenset(
    {
        "tier",
        "throttle_credits",
        "sas_key_name",
        "sas_key",
        "sas_key_file",
        "sas_secondary_key",
        "sas_secondary_key_file",
        "sas_rules_file",
        "partitions_default",
        "partitioned_by_default",
        "entities_max",
        "subscriptions_max",
        "rules_max",
        "partitioned_entities_max",
        "entity_mb_max",
        "message_kb_max",
        "peek_kb_max",
        "connections_max",
        "receivers_per_entity_max",
    }
)
_NAMES = {to_pascal(name): name for name in NAMESPACE_SETTINGS}
_OF_THE_FIRST = (
    "sas_rules",  # keys; another namespace has them in `AuthorizationRules` or SasRulesFile
    "messaging_units",
    "throttle_cpu_percent",
    "throttle_memory_percent",
    "throttle_pending_max",
)
"""Neither inherited nor possible in another namespace."""


class WrongNamespaceSettings(ValueError):
    """Settings of a namespace cannot be used: one line for each, with its name and the reason."""


class _OtherSettings(Settings):
    """Settings that do not come from the environment."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def namespace_settings(name: str, given: Mapping[str, Any], broker: Settings) -> Settings:
    """The settings of a namespace: its own as the file spells them (`SasKey`), and those of the broker.
    Raises WrongNamespaceSettings."""
    if unknown := [each for each in given if each not in _NAMES]:
        raise WrongNamespaceSettings(
            "\n".join(f"{each}: is no setting of a namespace; these are: {_listed()}" for each in unknown)
        )
    if not (given.get("SasKey") or given.get("SasKeyFile")):
        raise WrongNamespaceSettings(
            "SasKey: a namespace beside the first one needs a root key of its own: SasKey or SasKeyFile"
        )
    if given.get("Tier") == "premium":
        raise WrongNamespaceSettings(
            "Tier: only the first namespace can be premium: that tier is throttled by what the whole broker "
            "uses"
        )
    excluded = {*NAMESPACE_SETTINGS, *_OF_THE_FIRST}
    shared = {each: getattr(broker, each) for each in broker.model_fields_set - excluded}
    own = {_NAMES[each]: value for each, value in given.items()}
    try:
        return _OtherSettings(**{**shared, **own, "namespace": name})
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_url=False, include_input=False):
            field, *rest = [str(part) for part in problem["loc"]] or [""]
            place = ".".join(filter(None, (to_pascal(field), *rest)))
            reason = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{place}: {reason}" if place else reason)
        raise WrongNamespaceSettings("\n".join(lines)) from None


def _listed() -> str:
    return ", ".join(sorted(_NAMES))
