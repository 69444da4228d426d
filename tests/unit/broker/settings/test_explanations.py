"""broker/settings/explanations.py: a refusal shows the value, unless it may be a key."""

from __future__ import annotations

import pytest

from broker.settings.settings import WrongSettings, load_settings


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"fsync_interval_ms": 4711}, "PARTIBUS_FSYNC_INTERVAL_MS is 4711,"),
        ({"memory_bytes_max": 1 << 30, "memory_percent_max": 47}, "is 47, .* is 1073741824:"),
        ({"messaging_units": 3, "tier": "premium"}, "PARTIBUS_MESSAGING_UNITS is 3,"),
        ({"throttle_cpu_percent": 47}, "PARTIBUS_THROTTLE_CPU_PERCENT is 47, .* `unlimited`"),
        ({"throttle_filter_credits": 47}, "PARTIBUS_THROTTLE_FILTER_CREDITS is 47,"),
        ({"throttle_credits": 47, "tier": "premium"}, "PARTIBUS_THROTTLE_CREDITS is 47,"),
        (
            {"partitions_default": 47, "partitioned_by_default": False, "tier": "premium"},
            "PARTIBUS_PARTITIONS_DEFAULT is 47,",
        ),
        ({"tls_key": "key.pem"}, "got only key.pem"),
        (
            {"tls_key": "key.pem", "tls_certificate": "a.pem", "certificate_names": "bus,quay"},
            r"PARTIBUS_CERTIFICATE_NAMES \(bus,quay\)",
        ),
        ({"sas_key_name": 257 * "n"}, r"PARTIBUS_SAS_KEY_NAME: .*\(got 'nnn"),
        ({"memory_percent_max": None}, r"PARTIBUS_MEMORY_PERCENT_MAX: .*\(got 'none'\)"),
        ({"checkpoint_bytes": 4096 * 1024 * 1024 + 1}, r"equal to 4294967296 \(got 4294967297\)"),
    ],
)
def test_every_refusal_shows_the_value(given: dict[str, object], value: str) -> None:
    with pytest.raises(WrongSettings, match=value):
        load_settings(**given)


def test_a_value_that_is_not_json_is_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("partibus_more_data_dirs", "/disk2")
    why = r"^PARTIBUS_MORE_DATA_DIRS: a JSON value is expected \(got '/disk2'\)$"
    with pytest.raises(WrongSettings, match=why):
        load_settings()


@pytest.mark.parametrize("field", ["primarykye", "secret"])
def test_a_key_under_a_misspelt_name_is_not_shown(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    given = f'[{{"key_name": "a", "{field}": "hidden", "rights": ["Send"]}}]'
    monkeypatch.setenv("PARTIBUS_SAS_RULES", given)
    with pytest.raises(WrongSettings, match=f"PARTIBUS_SAS_RULES.0.{field}: ") as caught:
        load_settings()
    assert "hidden" not in str(caught.value)
