"""The quota of connections, as an application with the official Python client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError

from tests.support.azure_client import azure_client
from tests.support.broker_process import KEY, KEY_NAME, BrokerProcess, queue


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with as many connections as it may have."""
    folder: Path = tmp_path_factory.mktemp("full")
    with (
        BrokerProcess(folder, [queue("orders")], environment={"PARTIBUS_CONNECTIONS_MAX": "1"}) as broker,
        azure_client(broker.addresses.connection_string()) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("before"))
        yield broker
        sender.send_messages(ServiceBusMessage("after"))


@pytest.mark.parametrize("over_tls", [False, True], ids=["amqp", "amqps"])
def test_the_application_is_told_that_there_are_too_many_connections(
    full: BrokerProcess, over_tls: bool
) -> None:
    """The client has sent several frames more by the time that it reads the close."""
    given: dict[str, Any] = {}
    connection_string = full.addresses.connection_string()
    if over_tls:
        endpoint = f"sb://localhost:{full.addresses.amqps_port}"
        connection_string = f"Endpoint={endpoint};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"
        given["transport_type"], given["custom_endpoint_address"] = TransportType.Amqp, endpoint
        given["connection_verify"] = str(full.data_dir / "tls" / "ca.pem")
    with azure_client(connection_string, retry_total=0, **given) as client:
        for _ in range(3):
            with (
                pytest.raises(ServiceBusError, match="ConnectionsQuotaExceeded: there are 1 connections"),
                client.get_queue_sender("orders") as sender,
            ):
                sender.send_messages(ServiceBusMessage("too many"))
