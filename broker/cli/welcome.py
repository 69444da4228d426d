"""The text for people once the broker is ready: where it listens, and connection strings to copy.

Pure: takes the settings and the addresses in use, gives lines of text. A key is shown only if it is the
public development key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from broker.settings.setting_types import variable_of
from broker.settings.settings import DEVELOPMENT_KEY, Settings

EVERY_ADDRESS = ("0.0.0.0", "[::]")


def welcome(settings: Settings, addresses: Mapping[str, str], authority: Path | None) -> list[str]:
    """The lines to print. `addresses` holds the address of each service (amqp, amqps, http); `authority` is
    the file of the generated certificate authority, None if the settings name a certificate.
    """
    setting = "sas_key_file" if settings.sas_key_file else "sas_key"
    is_public = settings.sas_key == DEVELOPMENT_KEY and not settings.sas_key_file
    key = settings.sas_key if is_public else f"<{variable_of(setting)}>"
    keys = f"SharedAccessKeyName={settings.sas_key_name};SharedAccessKey={key}"
    http = _reachable(addresses["http"])
    lines = [
        f"AMQP                          Endpoint=sb://{_reachable(addresses['amqp'])};{keys};UseDevelopmentEmulator=true;",
        f"administration, plain HTTP    Endpoint=sb://{http};{keys};UseDevelopmentEmulator=true;",
        f"administration, TLS           Endpoint=sb://{http};{keys}",
    ]
    if "amqps" in addresses:
        lines.append(f"AMQP over TLS                 amqps://{_reachable(addresses['amqps'])}")
    if authority is not None:
        lines.append(f"certificate authority         {authority.absolute()}")
    lines.append(f"health, metrics               http://{http}/health  http://{http}/metrics")
    return ["Partibus is ready; Ctrl-C stops it.", *(f"  {line}" for line in lines)]


def _reachable(addresses: str) -> str:
    """`host:port` for a client on this machine; Go insists on the name `localhost` with the emulator's
    connection string."""
    host, _, port = addresses.partition(", ")[0].rpartition(":")
    return f"localhost:{port}" if host in (*EVERY_ADDRESS, "127.0.0.1", "[::1]") else f"{host}:{port}"
