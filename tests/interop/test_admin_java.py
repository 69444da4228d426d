"""The Java administration client, unchanged, over TLS with the generated certificate authority."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.interop.programs import JAVA, Report, run_java
from tests.support.broker_process import BrokerProcess

SCENARIOS = ("queues", "every-property", "topics-and-subscriptions", "rules", "errors", "namespace")
PASSWORD = "changeit"


@pytest.fixture(scope="module")
def report(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The program's report; it runs once."""
    trusted = tmp_path_factory.mktemp("java") / "trusted"
    _trust(broker.data_dir / "tls" / "ca.pem", trusted)
    addresses = broker.addresses
    trust = f"-Djavax.net.ssl.trustStore={trusted} -Djavax.net.ssl.trustStorePassword={PASSWORD}"
    extra = {
        "JAVA_TOOL_OPTIONS": trust,
        "PARTIBUS_CONNECTION_STRING": addresses.connection_string("localhost"),
        "PARTIBUS_CONNECTION_STRING_WRONG_KEY": addresses.connection_string("localhost", key="wrong"),
        "PARTIBUS_HTTP_PORT": str(addresses.http_port),
        "PARTIBUS_SCENARIOS": ",".join(SCENARIOS),
    }
    return run_java(JAVA, "interop.Administration", "256m", "java", addresses, extra)


def _trust(authority: Path, store: Path) -> None:
    """Make a store of trusted certificates for Java."""
    command = ["keytool", "-importcert", "-noprompt", "-alias", "partibus", "-file", str(authority)]
    command += ["-keystore", str(store), "-storepass", PASSWORD]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_java_administration_client(report: Report, scenario: str) -> None:
    report.check(scenario)
