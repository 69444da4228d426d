"""The official Python client fills a broker beyond its memory mark and drains it again."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import ServiceBusServerBusyError

from tests.bench.load.machine import resident_mib
from tests.support.azure_client import aio_client
from tests.support.broker_process import BrokerProcess, queue, topic

MIB = 1 << 20
PROCESSES = 2 if os.environ.get("PARTIBUS_PARTITION_PROCESS") else 1
"""How many processes serve the clients: the free pages of each count."""
ROOM = 10 * MIB * PROCESSES
"""Memory from a broker at rest to the mark: some 30,000 messages of one byte. The broker has served clients
by then, so its threads, its connections and the free pages they leave use none of it.
"""
BEYOND = 24 * MIB * PROCESSES
"""Permitted growth after that, for a batch under way and the cost of receiving. Each process has both."""
BATCH = 4_000
WITHIN_S = 120 * PROCESSES


def resident(broker: BrokerProcess) -> int:
    """Resident memory in bytes, with that of the partitions' process if they have one of their own."""
    return int(resident_mib(broker.pid) * MIB)


def events(broker: BrokerProcess) -> list[str]:
    """Names of the log lines about the mark, in order."""
    found = [json.loads(line)["event"] for line in broker.log.splitlines() if '"event": "memory.' in line]
    return [event for event in found if event != "memory.mark"]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    """A broker that has served clients; its mark is `ROOM` above the memory of another broker that had served
    the same clients.
    """
    with BrokerProcess(tmp_path / "first", [queue("tiny")]) as process:
        await warm_up(process)
        mark = resident(process) + ROOM
    with BrokerProcess(
        tmp_path / "second", [queue("tiny")], environment={"PARTIBUS_MEMORY_BYTES_MAX": str(mark)}
    ) as process:
        await warm_up(process)
        yield process
        process.check_alive()


async def warm_up(broker: BrokerProcess) -> None:
    """Do everything the test does once, with few messages."""
    address = broker.addresses.connection_string()
    async with (
        aio_client(address, retry_total=0) as client,
        asyncio.timeout(WITHIN_S),
    ):
        async with client.get_queue_sender("tiny") as sender:
            batch = await tiny_messages(sender)
            for _ in range(2):
                await sender.send_messages(batch)
        async with client.get_queue_receiver(
            "tiny", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        ) as receiver:
            received = 0
            while received < 2 * BATCH:
                received += len(await receiver.receive_messages(max_message_count=2_000, max_wait_time=20))
    await health(broker)


async def tiny_messages(sender: ServiceBusSender) -> ServiceBusMessageBatch:
    batch = await sender.create_message_batch()
    for _ in range(BATCH):
        batch.add_message(ServiceBusMessage(b"x"))
    return batch


async def health(broker: BrokerProcess) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{broker.addresses.http_url}/health") as response,
    ):
        assert response.status == 200
        memory: dict[str, Any] = (await response.json())["memory"]
        return memory


async def metric(broker: BrokerProcess, name: str) -> float:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{broker.addresses.http_url}/metrics") as response,
    ):
        lines = (await response.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def test_tiny_messages_fill_the_broker_up_to_its_mark_and_receiving_makes_room(
    broker: BrokerProcess,
) -> None:
    address = broker.addresses.connection_string()
    async with (
        aio_client(address, retry_total=0) as client,
        asyncio.timeout(WITHIN_S),
    ):
        mark = (await health(broker))["mark_bytes"]
        async with client.get_queue_sender("tiny") as sender:
            batch = await tiny_messages(sender)
            sent = 0
            with pytest.raises(ServiceBusServerBusyError, match="memory"):
                while True:
                    await sender.send_messages(batch)
                    sent += BATCH
                    assert sent * 100 < ROOM, "a message takes more than 100 bytes"
            assert resident(broker) < mark + BEYOND
            assert (await health(broker))["state"] == "limited" and await metric(
                broker, "partibus_memory_limited"
            ) == 1

            async with client.get_queue_receiver(
                "tiny", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
            ) as receiver:
                assert await receiver.peek_messages(max_message_count=10), "looking works above the mark"
                received = 0
                while (await health(broker))["state"] == "limited":
                    received += len(
                        await receiver.receive_messages(max_message_count=2_000, max_wait_time=20)
                    )
                assert 0 < received < sent
            await sender.send_messages(ServiceBusMessage(b"again"))
        assert await metric(broker, "partibus_memory_limited") == 0
    assert events(broker) == ["memory.limited", "memory.accepting"]


async def test_a_batch_for_many_subscriptions_does_not_take_the_broker_beyond_its_mark(
    tmp_path: Path,
) -> None:
    """800,000 references, which take 150 MiB, for a batch of some 100 KB."""
    many = topic("many", [f"subscription-{number}" for number in range(500)])
    many["Properties"] = {"PartitionCount": 1, "MaxSizeInMegabytes": 5120}
    environment = {"PARTIBUS_MEMORY_BYTES_MAX": str(160 * MIB * PROCESSES)}
    with BrokerProcess(tmp_path, [], topics=[many], environment=environment) as broker:
        address = broker.addresses.connection_string()
        async with aio_client(address, retry_total=0) as client, asyncio.timeout(WITHIN_S):
            async with client.get_topic_sender("many") as sender:
                with pytest.raises(ServiceBusServerBusyError, match="all subscriptions"):
                    await sender.send_messages([ServiceBusMessage(b"x") for _ in range(1_600)])
                await sender.send_messages(ServiceBusMessage(b"alone"))
            async with client.get_subscription_receiver("many", "subscription-499") as receiver:
                got = await receiver.receive_messages(max_message_count=10, max_wait_time=20)
                assert list(map(str, got)) == ["alone"]
        assert resident(broker) < 160 * MIB * PROCESSES
        assert (await health(broker))["state"] == "ok"
        broker.check_alive()
