"""Deleting and purging with the only Python release that supports them (AMQP contract 7.3.11). A separate
program, because it needs its own package path.

Reads its environment and prints its results as `programs.py` describes. Start it with that release's folder
first in PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import azure.servicebus
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError


def connect() -> ServiceBusClient:
    """Connect over a WebSocket with TLS: this release accepts a port only in a custom endpoint, which makes
    it use a WebSocket.
    """
    key = (
        f"SharedAccessKeyName={os.environ['PARTIBUS_KEY_NAME']};SharedAccessKey={os.environ['PARTIBUS_KEY']}"
    )
    return ServiceBusClient.from_connection_string(
        f"Endpoint=sb://localhost;{key}",
        custom_endpoint_address=f"sb://localhost:{os.environ['PARTIBUS_HTTP_PORT']}",
        connection_verify=os.environ["PARTIBUS_CA"],
    )


async def send(client: ServiceBusClient, queue: str, count: int, **options: Any) -> None:
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(f"{number}", **options) for number in range(count)])


async def delete_messages(client: ServiceBusClient, queue: str) -> None:
    """Deletes up to the given count, oldest in each partition first, but nothing locked or deferred; durable
    and exact.
    """
    await send(client, queue, 6, partition_key="together")
    receiver: Any = client.get_queue_receiver(queue)
    async with receiver:
        locked, deferred = await receiver.receive_messages(2, max_wait_time=5)
        await receiver.defer_message(deferred)
        assert await receiver.delete_messages(max_message_count=3) == 3
        assert [str(each) for each in await receiver.peek_messages(10, sequence_number=1)] == ["0", "1", "5"]
        assert (
            await receiver.delete_messages(max_message_count=3, before=datetime.now(UTC) - timedelta(hours=1))
            == 0
        )
        for number in range(8):  # spread over as many partitions
            await send(client, queue, 1, partition_key=f"key {number}")
        assert (
            await receiver.delete_messages(
                max_message_count=4, before=datetime.now(UTC) + timedelta(seconds=1)
            )
            == 4
        )
        await receiver.complete_message(locked)
        try:
            await receiver.delete_messages(max_message_count=4001)
        except ServiceBusError as refusal:
            assert "message-count is 4001" in str(refusal), refusal
        else:
            raise AssertionError("more than one request may ask for")


async def purge_messages(client: ServiceBusClient, queue: str) -> None:
    """Purges a queue with messages in all partitions, and its dead-letter queue, in as many requests as
    needed.
    """
    for _ in range(5):
        await send(client, queue, 1000)
    async with client.get_queue_receiver(queue) as receiver:
        for message in await receiver.receive_messages(5, max_wait_time=5):
            await receiver.dead_letter_message(message)
    dead_letters: Any = client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    async with dead_letters:
        dead = len(await dead_letters.peek_messages(10))
        assert (
            dead
            and await dead_letters.purge_messages(before=datetime.now(UTC) + timedelta(seconds=1)) == dead
        )
        assert await dead_letters.peek_messages(1, sequence_number=1) == []
    again: Any = client.get_queue_receiver(queue)
    async with again:
        assert await again.purge_messages(before=datetime.now(UTC) + timedelta(seconds=1)) == 5_000 - dead
        assert await again.peek_messages(1, sequence_number=1) == []


SCENARIOS: dict[str, Callable[[ServiceBusClient, str], Awaitable[None]]] = {
    "delete-messages": delete_messages,
    "purge-messages": purge_messages,
}


async def main() -> None:
    """Run all scenarios, after checking that this is the requested release."""
    version = azure.servicebus.__version__
    if version != sys.argv[1]:
        raise SystemExit(f"this is azure-servicebus {version}, not {sys.argv[1]}")
    for name in os.environ["PARTIBUS_SCENARIOS"].split(","):
        detail = ""
        try:
            async with connect() as client:
                await SCENARIOS[name](client, os.environ["PARTIBUS_QUEUE_PREFIX"] + name)
        except Exception:
            detail = traceback.format_exc(limit=-4)
        print(json.dumps({"scenario": name, "ok": not detail, "detail": detail}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
