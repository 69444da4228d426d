"""A broker with far more partitions than file descriptors; an official client, unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient

from tests.support.azure_client import aio_client
from tests.support.broker_process import BrokerProcess, queue

FILES_MAX = 256
QUEUES = [f"queue-{number}" for number in range(32)]
PARTITIONS = 16
"""Per queue: all queues together have twice as many partitions as there are descriptors."""
AT_ONCE = 16
"""Queues in use at a time."""
IDLE_MS = 300
WITHIN_S = 120


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {"PARTIBUS_LOG_IDLE_MS": str(IDLE_MS)}
    with BrokerProcess(
        tmp_path, [queue(name) for name in QUEUES], environment=settings, files_max=FILES_MAX
    ) as process:
        yield process
        process.check_alive()


def open_segments(broker: BrokerProcess) -> Counter[Path]:
    """Segments that the process has open, and how often each is open."""
    found: Counter[Path] = Counter()
    for entry in Path(f"/proc/{broker.pid}/fd").iterdir():
        try:
            target = Path(os.readlink(entry))
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.suffix == ".segment":
            found[target] += 1
    return found


def open_files(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


async def send(client: ServiceBusClient, name: str, round_number: int) -> None:
    """Send one message to each partition: messages without a key take turns."""
    async with client.get_queue_sender(name) as sender:
        for number in range(PARTITIONS):
            await sender.send_messages(ServiceBusMessage(f"{round_number} {number}"))


async def receive(client: ServiceBusClient, name: str, count: int) -> list[str]:
    got: list[str] = []
    async with client.get_queue_receiver(
        name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
    ) as receiver:
        while len(got) < count:
            messages = await receiver.receive_messages(max_message_count=count, max_wait_time=20)
            assert messages, f"{name}: {len(got)} of {count} messages came"
            got += map(str, messages)
    return got


async def test_twice_as_many_partitions_as_descriptors_are_served(broker: BrokerProcess) -> None:
    address = broker.addresses.connection_string()
    async with (
        aio_client(address, retry_total=0) as client,
        asyncio.timeout(WITHIN_S),
    ):
        for round_number in range(2):
            for first in range(0, len(QUEUES), AT_ONCE):
                await asyncio.gather(
                    *(send(client, name, round_number) for name in QUEUES[first : first + AT_ONCE])
                )
        used = {path.parent for path in broker.data_dir.glob("logs/*/*/*.segment")}
        assert len(used) == len(QUEUES) * PARTITIONS, "every partition of every queue was written to"
        for first in range(0, len(QUEUES), AT_ONCE):
            got = await asyncio.gather(
                *(receive(client, name, 2 * PARTITIONS) for name in QUEUES[first : first + AT_ONCE])
            )
            expected = sorted(
                f"{round_number} {number}" for round_number in range(2) for number in range(PARTITIONS)
            )
            assert [sorted(each) for each in got] == [expected] * AT_ONCE
    assert "log.failed" not in broker.log and "partition.unavailable" not in broker.log


async def test_files_of_idle_partitions_are_closed(broker: BrokerProcess) -> None:
    address = broker.addresses.connection_string()
    async with (
        aio_client(address, retry_total=0) as client,
        asyncio.timeout(WITHIN_S),
    ):
        for round_number in range(2):
            await send(client, QUEUES[0], round_number)
            while open_segments(broker):  # noqa: ASYNC110 - another process
                await asyncio.sleep(IDLE_MS / 1_000)
        assert len(await receive(client, QUEUES[0], 2 * PARTITIONS)) == 2 * PARTITIONS


async def test_clients_leave_the_partitions_enough_descriptors(broker: BrokerProcess) -> None:
    """More clients than descriptors, on both ports: clients that connected earlier still reach idle
    partitions.
    """
    address = broker.addresses.connection_string()
    async with (
        aio_client(address, retry_total=0) as client,
        asyncio.timeout(WITHIN_S),
    ):
        async with client.get_queue_sender(QUEUES[0]) as sender:
            await sender.send_messages(ServiceBusMessage("first"))
            while open_segments(broker):  # noqa: ASYNC110 - another process
                await asyncio.sleep(IDLE_MS / 1_000)
            with contextlib.ExitStack() as crowd:
                for port in (broker.addresses.amqp_port, broker.addresses.http_port):
                    for _ in range(FILES_MAX):
                        crowd.enter_context(socket.create_connection(("127.0.0.1", port), 10))
                for number in range(2 * PARTITIONS):
                    await sender.send_messages(ServiceBusMessage(f"in the crowd {number}"))
                assert open_files(broker) < FILES_MAX
        assert len(await receive(client, QUEUES[0], 1 + 2 * PARTITIONS)) == 1 + 2 * PARTITIONS
    assert "partition.unavailable" not in broker.log and "accept_failed" not in broker.log
