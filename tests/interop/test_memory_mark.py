"""A broker that is filled beyond its memory mark and drained again, by the official Python client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusServerBusyError

from tests.support.broker_process import BrokerProcess, queue

MIB = 1 << 20
ROOM = 28 * MIB
"""From a broker that has just started to the mark: some 90,000 messages of one byte. Of the room, what its threads and connections take
stays taken when the messages are gone."""
BEYOND = 24 * MIB
"""What the process may grow after that: a batch under way, and what receiving takes."""
BATCH = 4_000
WITHIN_S = 300


def resident(broker: BrokerProcess) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def events(broker: BrokerProcess) -> list[str]:
    """Names of the log lines about the mark, in their order."""
    found = [json.loads(line)["event"] for line in broker.log.splitlines() if '"event": "memory.' in line]
    return [event for event in found if event != "memory.mark"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "first", [queue("tiny")]) as process:
        mark = resident(process) + ROOM
    with BrokerProcess(tmp_path / "second", [queue("tiny")], environment={"PARTIBUS_MEMORY_BYTES_MAX": str(mark)}) as process:
        yield process
        process.check_alive()


async def health(broker: BrokerProcess) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{broker.addresses.http_url}/health") as response:
        assert response.status == 200
        memory: dict[str, Any] = (await response.json())["memory"]
        return memory


async def stays_limited(broker: BrokerProcess) -> bool:
    """Whether messages are refused, and still are after free pages have been given back to the system."""
    for _ in range(30):
        if (await health(broker))["state"] != "limited":
            return False
        await asyncio.sleep(0.1)
    return True


async def metric(broker: BrokerProcess, name: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{broker.addresses.http_url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def test_tiny_messages_fill_the_broker_up_to_its_mark_and_receiving_makes_room(broker: BrokerProcess) -> None:
    address = broker.addresses.connection_string()
    async with ServiceBusClient.from_connection_string(address, retry_total=0) as client, asyncio.timeout(WITHIN_S):
        mark = (await health(broker))["mark_bytes"]
        async with client.get_queue_sender("tiny") as sender:
            batch = await sender.create_message_batch()
            for _ in range(BATCH):
                batch.add_message(ServiceBusMessage(b"x"))
            sent = 0
            while not await stays_limited(broker):  # free pages go back to the system meanwhile, and may make room once more
                with pytest.raises(ServiceBusServerBusyError, match="memory"):
                    while True:
                        await sender.send_messages(batch)
                        sent += BATCH
                        assert sent * 100 < ROOM, "a message takes more than 100 bytes"
            assert resident(broker) < mark + BEYOND
            assert (await health(broker))["state"] == "limited" and await metric(broker, "partibus_memory_limited") == 1

            async with client.get_queue_receiver("tiny", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
                assert await receiver.peek_messages(max_message_count=10), "looking works above the mark"
                received = 0
                while (await health(broker))["state"] == "limited":
                    received += len(await receiver.receive_messages(max_message_count=2_000, max_wait_time=20))
                assert 0 < received <= sent
            await sender.send_messages(ServiceBusMessage(b"again"))
        assert await metric(broker, "partibus_memory_limited") == 0
    found = events(broker)
    assert found == ["memory.limited", "memory.accepting"] * (len(found) // 2), "each change is told once"
