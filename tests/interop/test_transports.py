"""The same queue over every transport: AMQP, AMQP over TLS, and AMQP over WebSocket, plain and TLS; with the
official Python clients, unchanged.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from tests.support.broker_process import KEY, KEY_NAME, BrokerProcess

LARGE = b"x" * 700_000
"""Spans many frames, whatever their size."""
IN_ONE_FRAME = b"y" * 40_000
"""Large, and yet in one frame."""


def connection_string(port: int, emulator: bool) -> str:
    flag = ";UseDevelopmentEmulator=true" if emulator else ""
    return f"Endpoint=sb://localhost:{port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}{flag}"


@pytest.fixture
async def queue(broker: BrokerProcess) -> AsyncIterator[str]:
    name = f"transports-{uuid.uuid4().hex}"
    async with ServiceBusAdministrationClient.from_connection_string(
        connection_string(broker.addresses.http_port, False),
        connection_verify=str(broker.data_dir / "tls" / "ca.pem"),
    ) as admin:
        await admin.create_queue(name)
        yield name
        await admin.delete_queue(name)


@pytest.mark.parametrize(
    ("port", "transport", "emulator"),
    [
        ("amqp_port", TransportType.Amqp, True),
        ("amqps_port", TransportType.Amqp, False),
        ("http_port", TransportType.AmqpOverWebsocket, True),
        ("http_port", TransportType.AmqpOverWebsocket, False),
    ],
    ids=["amqp", "amqps", "websocket", "websocket over TLS"],
)
@pytest.mark.filterwarnings(
    "ignore:ssl=None is deprecated:DeprecationWarning"
)  # the client's own warning, over a plain WebSocket
async def test_messages_small_and_large_go_in_and_out(
    broker: BrokerProcess, queue: str, port: str, transport: TransportType, emulator: bool
) -> None:
    number = getattr(broker.addresses, port)
    # Except for plain AMQP with the emulator's flag, the client accepts a port only in a custom endpoint.
    endpoint: dict[str, Any] = (
        {} if port == "amqp_port" else {"custom_endpoint_address": f"sb://localhost:{number}"}
    )
    client = ServiceBusClient.from_connection_string(
        connection_string(number, emulator),
        transport_type=transport,
        connection_verify=str(broker.data_dir / "tls" / "ca.pem"),
        retry_total=0,
        **endpoint,
    )
    async with client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages(
                [ServiceBusMessage(f"small {number}", partition_key="one") for number in range(20)]
            )
            await sender.send_messages(ServiceBusMessage(LARGE, partition_key="one"))
            await sender.send_messages(ServiceBusMessage(IN_ONE_FRAME, partition_key="one"))
        received: list[bytes] = []
        async with client.get_queue_receiver(queue) as receiver:
            while len(received) < 22:
                messages = await receiver.receive_messages(max_message_count=22, max_wait_time=10)
                assert messages, f"only {len(received)} of 22 messages came"
                for message in messages:
                    received.append(b"".join(message.body))
                    await receiver.complete_message(message)
    assert received == [*(f"small {number}".encode() for number in range(20)), LARGE, IN_ONE_FRAME]
