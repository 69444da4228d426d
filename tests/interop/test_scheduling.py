"""Scheduled messages of the official Python client, over a time when the broker is down."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from tests.support.azure_client import aio_client
from tests.support.broker_process import BrokerProcess, queue
from tests.support.scrapes import by_entity, metrics

SOON_S = 3.0
WITHIN_S = 30.0


async def send(broker: BrokerProcess, soon: datetime) -> None:
    address = broker.addresses.connection_string()
    async with (
        aio_client(address) as client,
        client.get_queue_sender("orders") as sender,
    ):
        for number in range(4):
            await sender.send_messages(
                ServiceBusMessage(f"{number}", partition_key=f"{number}", scheduled_enqueue_time_utc=soon)
            )
        late = soon + timedelta(hours=1)
        await sender.send_messages(ServiceBusMessage("late", scheduled_enqueue_time_utc=late))


async def receive(broker: BrokerProcess, count: int) -> set[str]:
    address = broker.addresses.connection_string()
    found: set[str] = set()
    async with (
        aio_client(address) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        while len(found) < count:
            messages = await receiver.receive_messages(count - len(found), max_wait_time=WITHIN_S)
            assert messages, f"only {len(found)} of {count} messages came in {WITHIN_S} s"
            for message in messages:
                assert str(message) not in found
                found.add(str(message))
                await receiver.complete_message(message)
    return found


def gauges(broker: BrokerProcess) -> tuple[int, int]:
    """The queue's active and scheduled messages, from one scrape, which opens nothing."""
    text = metrics(broker.addresses, WITHIN_S)
    return by_entity(text, "active_messages")["orders"], by_entity(text, "scheduled_messages")["orders"]


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_messages_whose_time_comes_while_the_broker_is_down_become_active_at_the_start_although_nobody_asks(
    tmp_path: Path, is_killed: bool
) -> None:
    """Stopped in order, the partitions stay closed until their time; killed, in another process for
    partitions."""
    environment = {"PARTIBUS_PARTITION_PROCESS": "true"} if is_killed else {}
    queues = [queue("orders", PartitionCount=4)]
    with BrokerProcess(tmp_path, queues, environment=environment) as broker:
        soon = datetime.now(UTC) + timedelta(seconds=SOON_S)
        asyncio.run(send(broker, soon))
        if is_killed:
            broker.kill()
        else:
            assert broker.terminate() == 0
        time.sleep(max(0.0, (soon - datetime.now(UTC)).total_seconds()))
        broker.start()
        end = time.monotonic() + WITHIN_S
        while gauges(broker) != (4, 1):
            assert time.monotonic() < end, "the messages have not become active"
            time.sleep(0.1)
        broker.restart()
        assert asyncio.run(receive(broker, 4)) == {"0", "1", "2", "3"}
        assert gauges(broker) == (0, 1)
