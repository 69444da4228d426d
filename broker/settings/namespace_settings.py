"""The settings of a namespace beside the first one, which the configuration file gives.

Those of the first namespace are the broker's. Another one has its own for everything in NAMESPACE_SETTINGS,
with the same defaults and the same checks, and shares the others. It inherits neither keys nor quotas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_pascal
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from broker.settings.explanations import value_text
from broker.settings.setting_types import ENVIRONMENT_PREFIX
from broker.settings.settings import Settings
from broker.settings.tier_checks import OF_PREMIUM

NAMESPACE_SETTINGS = frozenset(
    {
        "tier",
        "throttle_credits",
        "throttle_filter_credits",
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
        "properties_kb_max",
        "property_kb_max",
        "peek_kb_max",
        "connections_max",
        "receivers_per_entity_max",
    }
)
_NAMES = {to_pascal(name): name for name in NAMESPACE_SETTINGS}
_VARIABLE = re.compile(rf"{ENVIRONMENT_PREFIX}([A-Z_]+)")
SETTINGS = "Settings"
"""The field of a namespace that has them."""
_OF_THE_FIRST = (
    "sas_rules",  # keys; another namespace has them in `AuthorizationRules` or SasRulesFile
    *OF_PREMIUM,
)
"""Neither inherited nor possible in another namespace."""


class WrongNamespaceSettings(ValueError):
    """Settings of a namespace cannot be used: one line for each, with its field in the namespace and the
    reason."""

    def __init__(self, *problems: tuple[str, str]) -> None:
        """`problems`: a setting as the file spells it, or "" if it is about several, and the reason."""
        super().__init__(
            "\n".join(f"{'.'.join(filter(None, (SETTINGS, name)))}: {reason}" for name, reason in problems)
        )


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
        reason = f"is not a setting of a namespace; these are: {', '.join(sorted(_NAMES))}"
        raise WrongNamespaceSettings(*((each, reason) for each in unknown))
    if not (given.get("SasKey") or given.get("SasKeyFile")):
        raise WrongNamespaceSettings(
            ("SasKey", "a namespace beside the first one needs a root key of its own: SasKey or SasKeyFile")
        )
    if given.get("Tier") == "premium":
        raise WrongNamespaceSettings(
            (
                "Tier",
                "only the first namespace can be premium: that tier is throttled by what the whole broker "
                "uses",
            )
        )
    excluded = {*NAMESPACE_SETTINGS, *_OF_THE_FIRST}
    shared = {each: getattr(broker, each) for each in broker.model_fields_set - excluded}
    own = {_NAMES[each]: value for each, value in given.items()}
    try:
        settings = _OtherSettings(**{**shared, **own, "namespace": name})
    except ValidationError as error:
        problems = []
        for problem in error.errors(include_url=False):
            field, *rest = [str(part) for part in problem["loc"]] or [""]
            place = ".".join(filter(None, (to_pascal(field), *rest)))
            reason = _VARIABLE.sub(_as_in_the_file, problem["msg"].removeprefix("Value error, "))
            path = [field, *rest] if field else []
            problems.append((place, reason + value_text(path, problem["input"])))
        raise WrongNamespaceSettings(*problems) from None
    _check_types(given, settings)
    return settings


def _as_in_the_file(variable: re.Match[str]) -> str:
    """A setting as the file spells it."""
    return to_pascal(variable[1].lower())


def _check_types(given: Mapping[str, Any], settings: Settings) -> None:
    """Check that numbers and booleans are these in JSON, as in the rest of the file. Raises
    WrongNamespaceSettings."""
    wrong = []
    for each, value in given.items():
        expected = type(getattr(settings, _NAMES[each]))
        if expected in (bool, int) and type(value) is not expected:
            wrong.append(
                (
                    each,
                    ("must be true or false" if expected is bool else "must be a whole number")
                    + value_text([_NAMES[each]], value),
                )
            )
    if wrong:
        raise WrongNamespaceSettings(*wrong)
