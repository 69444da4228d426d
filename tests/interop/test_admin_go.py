"""The Go administration client, unchanged, over TLS with the generated certificate authority."""

from __future__ import annotations

from tests.interop.programs import run_go
from tests.support.broker_process import KEY, KEY_NAME, BrokerProcess

SCENARIOS = ("queue", "topic", "subscription", "rule")


def test_the_go_client_administers_queues_topics_subscriptions_and_rules(broker: BrokerProcess) -> None:
    names = [f"{each}-administration" for each in SCENARIOS]
    report = run_go(
        broker.addresses,
        {
            "SSL_CERT_FILE": str(broker.data_dir / "tls" / "ca.pem"),
            "PARTIBUS_ADMIN_CONNECTION_STRING": (
                f"Endpoint=sb://localhost:{broker.addresses.http_port};SharedAccessKeyName={KEY_NAME};"
                f"SharedAccessKey={KEY}"
            ),
            "PARTIBUS_SCENARIOS": ",".join(names),
        },
    )
    for name in names:
        report.check(name)
