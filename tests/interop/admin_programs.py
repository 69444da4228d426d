"""Runs the administration clients of other languages, unchanged, over TLS with the generated certificate
authority.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.interop.programs import JAVA, Report, run_go, run_java, run_node
from tests.support.broker_process import KEY, KEY_NAME, BrokerProcess
from tests.support.broker_thread import BrokerThread

Running = BrokerProcess | BrokerThread
IN_JAVASCRIPT = (
    "create-and-get",
    "every-property",
    "update",
    "fixed-properties",
    "errors",
    "exists-and-delete",
    "lists",
    "runtime-properties",
    "namespace",
    "topics",
    "subscriptions",
    "rules",
    "rule-manager",
)
IN_GO = tuple(f"{each}-administration" for each in ("queue", "topic", "subscription", "rule"))
IN_JAVA = ("queues", "every-property", "topics-and-subscriptions", "rules", "errors", "namespace")
PASSWORD = "changeit"


def administer_in_javascript(
    broker: Running, scenarios: Sequence[str] = IN_JAVASCRIPT, extra: Mapping[str, str] | None = None
) -> Report:
    """Run these scenarios of `admin.mjs`."""
    trust = {"NODE_EXTRA_CA_CERTS": str(_authority(broker))}
    return run_node(
        "admin.mjs", "javascript", broker.addresses, _given(broker, scenarios) | trust | dict(extra or {})
    )


def administer_in_go(broker: Running, scenarios: Sequence[str] = IN_GO) -> Report:
    """Run these scenarios."""
    trust = {"SSL_CERT_FILE": str(_authority(broker))}
    return run_go(broker.addresses, _given(broker, scenarios) | trust)


def administer_in_java(broker: Running, folder: Path, scenarios: Sequence[str] = IN_JAVA) -> Report:
    """Run these scenarios. `folder` gets a store of trusted certificates."""
    trusted, addresses = folder / "trusted", broker.addresses
    _trust(_authority(broker), trusted)
    trust = f"-Djavax.net.ssl.trustStore={trusted} -Djavax.net.ssl.trustStorePassword={PASSWORD}"
    extra = {
        "JAVA_TOOL_OPTIONS": trust,
        "PARTIBUS_CONNECTION_STRING": addresses.connection_string("localhost"),
        "PARTIBUS_CONNECTION_STRING_WRONG_KEY": addresses.connection_string("localhost", key="wrong"),
        "PARTIBUS_HTTP_PORT": str(addresses.http_port),
        "PARTIBUS_SCENARIOS": ",".join(scenarios),
    }
    return run_java(JAVA, "interop.Administration", "256m", "java", addresses, extra)


def _authority(broker: Running) -> Path:
    return broker.data_dir / "tls" / "ca.pem"


def _given(broker: Running, scenarios: Sequence[str]) -> dict[str, str]:
    return {
        "PARTIBUS_ADMIN_CONNECTION_STRING": (
            f"Endpoint=sb://localhost:{broker.addresses.http_port};SharedAccessKeyName={KEY_NAME};"
            f"SharedAccessKey={KEY}"
        ),
        "PARTIBUS_SCENARIOS": ",".join(scenarios),
        "PARTIBUS_QUEUE_PREFIX": f"admin-{secrets.token_hex(4)}-",  # for entities that are not there yet
    }


def _trust(authority: Path, store: Path) -> None:
    """Make a store of trusted certificates for Java."""
    command = ["keytool", "-importcert", "-noprompt", "-alias", "partibus", "-file", str(authority)]
    command += ["-keystore", str(store), "-storepass", PASSWORD]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
