"""The settings of a namespace beside the first one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.settings.key_files import namespace_rules
from broker.settings.namespace_settings import (
    NAMESPACE_SETTINGS,
    WrongNamespaceSettings,
    namespace_settings,
)
from broker.settings.settings import Settings, load_settings


def test_it_has_its_own_settings_the_defaults_and_those_of_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARTIBUS_THROTTLE_CREDITS", "77")
    monkeypatch.setenv("PARTIBUS_SAS_SECONDARY_KEY", "second")
    broker = load_settings(entities_max=5, sas_key="first", sas_grace_ms=1_234, message_kb_max=2_000)
    given = {"SasKey": "own", "Tier": "standard", "PartitionedEntitiesMax": 7}
    own = namespace_settings("orders", given, broker)
    assert (own.namespace, own.sas_key, own.sas_secondary_key) == ("orders", "own", "")
    assert (own.tier, own.credits_per_second, own.message_kb_max) == ("standard", 1_000, 256)
    assert (own.entities_max, own.partitioned_entities_max) == (10_000, 7)
    assert own.sas_grace_ms == 1_234, "it is the broker's"
    assert namespace_settings("bills", {"SasKey": "own"}, broker).credits_per_second == 0


def test_it_inherits_no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the broker's settings call a key or a file with keys, it opens the first namespace only."""
    (tmp_path / "rules").write_text('[{"key_name": "filed", "primary_key": "own too", "rights": ["Send"]}]')
    monkeypatch.setenv(
        "PARTIBUS_SAS_RULES", '[{"key_name": "extra", "primary_key": "k", "rights": ["Send"]}]'
    )
    broker = load_settings(sas_key_name="first", sas_key="first", sas_secondary_key="second")
    own = namespace_settings("orders", {"SasKey": "own"}, broker)
    assert [(rule.key_name, rule.primary_key, rule.secondary_key) for rule in namespace_rules(own)] == [
        ("RootManageSharedAccessKey", "own", "")
    ]
    filed = namespace_settings("orders", {"SasKey": "own", "SasRulesFile": str(tmp_path / "rules")}, broker)
    assert [rule.key_name for rule in namespace_rules(filed)][1:] == ["filed"]
    of_keys = {name for name in Settings.model_fields if name.startswith("sas_")} - {"sas_grace_ms"}
    assert of_keys - NAMESPACE_SETTINGS == {"sas_rules"}, "a new key setting must not be inherited"


def test_a_premium_broker_has_other_namespaces_too() -> None:
    broker = load_settings(tier="premium", messaging_units=4, throttle_cpu_percent=50)
    assert namespace_settings("orders", {"SasKey": "own"}, broker).tier == "unlimited"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ".SasKey: a namespace beside the first one needs a root key of its own"),
        ({"SasKey": ""}, ".SasKey: a namespace beside the first one needs a root key of its own"),
        ({"SasKeyFile": None}, ".SasKey: a namespace beside the first one needs a root key of its own"),
        (
            {"SasKey": "own", "Host": "0.0.0.0"},
            ".Host: is not a setting of a namespace; these are: ConnectionsMax, ",
        ),
        ({"SasKey": "own", "ThrottleCpuPercent": 50}, ".ThrottleCpuPercent: is not a setting of a namespace"),
        ({"SasKey": "own", "sas_key": "own"}, ".sas_key: is not a setting of a namespace"),
        ({"SasKey": "own", "Tier": "premium"}, ".Tier: only the first namespace can be premium"),
        ({"SasKey": "own", "Tier": "gold"}, ".Tier: Input should be "),
        (
            {"SasKey": "own", "EntitiesMax": 0},
            ".EntitiesMax: Input should be greater than or equal to 1 (got 0)",
        ),
        ({"SasKey": "own", "SasKeyFile": "/key"}, ": give SasKey or SasKeyFile, not both of them"),
        (
            {"SasKey": "own", "SasRules": [{"key_name": "secret"}]},
            ".SasRules: is not a setting of a namespace",
        ),
        ({"SasKey": "own", "EntitiesMax": "100"}, ".EntitiesMax: must be a whole number (got '100')"),
        ({"SasKey": "own", "ThrottleCredits": True}, ".ThrottleCredits: must be a whole number"),
        (
            {"SasKey": "own", "ThrottleFilterCredits": 1},
            ": ThrottleFilterCredits is 1, but needs a namespace that is throttled by credits: set ",
        ),
        (
            {"SasKey": "own", "PropertiesKbMax": 65},
            ".PropertiesKbMax: Input should be less than or equal to 64 ",
        ),
        ({"SasKey": "own", "PartitionedByDefault": 1}, ".PartitionedByDefault: must be true or false"),
        (
            {"SasKey": "own", "Tier": "standard", "PartitionsDefault": 5},
            ": PartitionsDefault is 5, but partitioned entities",
        ),
    ],
)
def test_what_is_wrong_is_named_without_keys(given: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongNamespaceSettings) as caught:
        namespace_settings("orders", given, load_settings())
    assert str(caught.value).startswith(f"Settings{words}")
    assert "own" not in str(caught.value).replace("its own", "") and "secret" not in str(caught.value)


def test_every_setting_of_a_namespace_is_one_of_the_brokers() -> None:
    assert Settings.model_fields.keys() > NAMESPACE_SETTINGS
