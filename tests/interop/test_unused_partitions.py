"""A queue that nobody has used for long gives back what it holds open, and its clients notice nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from broker.hosting.local import LocalHost
from storage.disk import LocalDisk
from tests.crash.test_broker_disk_faults import health, wait_until
from tests.crash.test_hanging_disk import BACK_WITHIN_S, connection_string
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.faulty_disk import FaultyDisk

PARTITIONS = 16


def take_all(client: ServiceBusClient, count: int) -> Counter[str]:
    """Receive and complete this many messages."""
    found: Counter[str] = Counter()
    with client.get_queue_receiver("orders") as receiver:
        while found.total() < count:
            for message in receiver.receive_messages(count - found.total(), max_wait_time=BACK_WITHIN_S):
                receiver.complete_message(message)
                found[str(message)] += 1
    return found


def test_partitions_that_are_unused_are_closed_and_open_again_for_whoever_comes(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())  # any other than the usual one: the partitions run in this process
    with BrokerThread(tmp_path, [queue("orders")], disk) as broker:
        host = broker.broker.host
        assert isinstance(host, LocalHost)
        host._limits = replace(host._limits, rest_ms=100, close_ms=200)  # not a minute and ten
        with ServiceBusClient.from_connection_string(connection_string(broker)) as client:
            for _ in range(2):
                with client.get_queue_sender("orders") as sender:
                    for number in range(PARTITIONS):
                        sender.send_messages(ServiceBusMessage(f"{number}"))
                    assert set(health(broker.addresses)["partitions"]) == {"healthy"}
                    assert take_all(client, PARTITIONS) == Counter(map(str, range(PARTITIONS)))
                    wait_until(
                        lambda: health(broker.addresses)["partitions"] == ["closed"] * PARTITIONS,
                        "nobody uses the queue",
                        BACK_WITHIN_S,
                    )
                    assert health(broker.addresses)["availability"] == "Available"
