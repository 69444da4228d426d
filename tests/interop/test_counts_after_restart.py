"""What a broker reports about its queues right after a restart, and what falls due in them unasked; with an
official client, unchanged.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from storage.disk import LocalDisk
from storage.partition_index import COPY_NAME, INDEX_NAME, PartitionIndex
from tests.support.azure_client import aio_client
from tests.support.broker_process import BrokerProcess, queue
from tests.support.scrapes import by_entity, health, metrics

MESSAGES = 20
LIVES = timedelta(seconds=6)
WITHIN_S = 60


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    queues = [queue("kept"), queue("expiring", DeadLetteringOnMessageExpiration=True), queue("unused")]
    with BrokerProcess(tmp_path, queues) as process:
        yield process
        process.check_alive()


async def send(broker: BrokerProcess, name: str, time_to_live: timedelta | None = None) -> None:
    address = broker.addresses.connection_string()
    async with (
        aio_client(address) as client,
        client.get_queue_sender(name) as sender,
    ):
        for number in range(MESSAGES):  # messages without a key take turns among the partitions
            await sender.send_messages(ServiceBusMessage(f"{number}", time_to_live=time_to_live))


def gauge(broker: BrokerProcess, gauge_name: str) -> dict[str, int]:
    """A gauge's value by queue, from one scrape."""
    return by_entity(metrics(broker.addresses, WITHIN_S), gauge_name)


def opened(broker: BrokerProcess, name: str) -> int:
    """Number of partitions that are not closed."""
    partitions = health(broker.addresses, WITHIN_S)["entities"][name]["partitions"]
    return sum(state != "closed" for state in partitions)


def test_the_first_scrape_after_a_restart_is_right_and_messages_expire_although_nobody_asks(
    broker: BrokerProcess,
) -> None:
    asyncio.run(send(broker, "kept"))
    expected = {"kept": MESSAGES, "expiring": 0, "unused": 0}
    sizes = gauge(broker, "size_bytes")
    assert gauge(broker, "messages") == expected and sizes["kept"] > 0

    assert broker.terminate() == 0
    broker.start()
    assert gauge(broker, "messages") == expected and gauge(broker, "size_bytes") == sizes
    assert opened(broker, "kept") == opened(broker, "unused") == 0, "no log is opened to be counted"

    asyncio.run(send(broker, "expiring", LIVES))
    expected["expiring"] = MESSAGES
    broker.kill()
    broker.start()
    assert gauge(broker, "messages") == expected, "what was open is counted before it is shown"
    assert opened(broker, "kept") == 0, "what was not open stays closed"

    assert broker.terminate() == 0
    broker.start()
    end = time.monotonic() + WITHIN_S
    while gauge(broker, "dead_letter_messages")["expiring"] < MESSAGES:
        assert time.monotonic() < end, "the messages have not expired"
        time.sleep(0.2)
    assert gauge(broker, "active_messages") == {"kept": MESSAGES, "expiring": 0, "unused": 0}

    assert broker.terminate() == 0
    for name in (INDEX_NAME, COPY_NAME):
        (broker.data_dir / "catalogue" / name).unlink()
    broker.start()
    assert gauge(broker, "messages") == expected and "index.made_anew" in broker.log


def open_in_the_index(broker: BrokerProcess, copy: Path) -> int:
    """Number of partitions whose content would be unknown after a crash."""
    copy.mkdir(exist_ok=True)
    shutil.copy(broker.data_dir / "catalogue" / INDEX_NAME, copy)
    index = PartitionIndex(copy, LocalDisk())
    assert asyncio.run(index.load())
    return sum(is_open for entity in index.entities() for _, is_open, _ in index.partitions(entity))


def test_a_partition_that_was_quiet_for_a_while_is_known_after_a_kill_without_being_opened(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path, [queue("kept")], environment={"PARTIBUS_LOG_IDLE_MS": "300"}) as broker:
        for sent in (MESSAGES, 2 * MESSAGES):  # the second time, partitions at rest change again
            asyncio.run(send(broker, "kept"))
            end = time.monotonic() + WITHIN_S
            while open_in_the_index(broker, tmp_path / "copy"):
                assert time.monotonic() < end, "partitions do not come to rest"
                time.sleep(0.2)
            assert gauge(broker, "messages") == {"kept": sent}
        broker.kill()
        broker.start()
        assert gauge(broker, "messages") == {"kept": 2 * MESSAGES} and opened(broker, "kept") == 0
        asyncio.run(send(broker, "kept"))
        broker.kill()
        broker.start()
        assert gauge(broker, "messages") == {"kept": 3 * MESSAGES}
