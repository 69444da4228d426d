"""The JavaScript administration client, unchanged, over TLS with the generated certificate authority, against
the running broker.
"""

from __future__ import annotations

import pytest

from tests.interop.programs import Report, run_node
from tests.support.broker_process import KEY, KEY_NAME, BrokerProcess

SCENARIOS = (
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


@pytest.fixture(scope="session")
def administration(broker: BrokerProcess) -> Report:
    """The program's report; it runs once."""
    extra = {
        "NODE_EXTRA_CA_CERTS": str(broker.data_dir / "tls" / "ca.pem"),
        "PARTIBUS_ADMIN_CONNECTION_STRING": (
            f"Endpoint=sb://localhost:{broker.addresses.http_port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"
        ),
        "PARTIBUS_SCENARIOS": ",".join(SCENARIOS),
    }
    return run_node("admin.mjs", "javascript", broker.addresses, extra)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_javascript_administration_client(administration: Report, scenario: str) -> None:
    administration.check(scenario)
