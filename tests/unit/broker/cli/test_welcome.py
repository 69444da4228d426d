"""The text that the broker prints when it is ready."""

from __future__ import annotations

from pathlib import Path

from broker.cli.welcome import welcome
from broker.settings.settings import load_settings


def test_a_key_of_ones_own_is_not_printed() -> None:
    settings = load_settings(sas_key="mine alone", host="192.0.2.7")
    lines = welcome(settings, {"amqp": "192.0.2.7:1", "http": "0.0.0.0:2, [::]:2"}, None)
    assert not any("mine" in line for line in lines) and any(
        "sb://192.0.2.7:1;" in line and "<PARTIBUS_SAS_KEY>" in line for line in lines
    )
    assert any("sb://localhost:2;" in line for line in lines) and not any(
        "authority" in line or "amqps" in line for line in lines
    )


def test_the_public_development_key_is_shown_ready_to_copy(tmp_path: Path) -> None:
    settings = load_settings()
    addresses = {"amqp": "[::]:5672, 0.0.0.0:5672", "amqps": "127.0.0.1:5671", "http": "[::1]:5300"}
    lines = welcome(settings, addresses, tmp_path / "ca.pem")
    assert any(f"SharedAccessKey={settings.sas_key};UseDevelopmentEmulator=true;" in line for line in lines)
    shown = dict(line.strip().split("  ", 1) for line in lines[1:])
    assert shown["AMQP over TLS"].strip() == "amqps://localhost:5671"
    assert shown["certificate authority"].strip() == str(tmp_path / "ca.pem")
    assert shown["health, metrics"].split() == [
        "http://localhost:5300/health",
        "http://localhost:5300/metrics",
    ]
