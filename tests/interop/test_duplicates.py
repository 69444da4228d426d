"""Duplicate detection of the official Python client over a kill, and what the administration API and the
metrics say of it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.support.azure_client import azure_client
from tests.support.broker_process import KEY, KEY_NAME, BrokerProcess
from tests.support.scrapes import by_entity, metrics

WITHIN_S = 30.0
MESSAGES = 30


def send_all(broker: BrokerProcess) -> None:
    """Send the same messages, in a batch, which goes to several partitions."""
    client = azure_client(broker.addresses.connection_string())
    with client, client.get_queue_sender("orders") as sender:
        batch = sender.create_message_batch()
        for number in range(MESSAGES):
            batch.add_message(ServiceBusMessage(f"{number}", message_id=f"id-{number}"))
        sender.send_messages(batch)


def series(broker: BrokerProcess, name: str) -> int:
    return by_entity(metrics(broker.addresses, WITHIN_S), name)["orders"]


@pytest.mark.parametrize("splits", [False, True], ids=["one-process", "two-processes"])
def test_a_killed_broker_still_knows_what_was_sent(tmp_path: Path, splits: bool) -> None:
    environment = {"PARTIBUS_PARTITION_PROCESS": "true"} if splits else {}
    with BrokerProcess(tmp_path, [], environment=environment) as broker:
        address = (
            f"Endpoint=sb://localhost:{broker.addresses.http_port};SharedAccessKeyName={KEY_NAME};"
            f"SharedAccessKey={KEY}"
        )
        ca = str(broker.data_dir / "tls" / "ca.pem")
        with ServiceBusAdministrationClient.from_connection_string(
            address, connection_verify=ca
        ) as administration:
            created = administration.create_queue(
                "orders",
                requires_duplicate_detection=True,
                duplicate_detection_history_time_window=timedelta(minutes=30),
            )
            assert created.requires_duplicate_detection
        send_all(broker)
        assert series(broker, "messages") == series(broker, "message_ids") == MESSAGES
        broker.kill()
        broker.start()
        send_all(broker)
        assert series(broker, "messages") == series(broker, "message_ids") == MESSAGES
        assert series(broker, "duplicate_messages_total") == MESSAGES
