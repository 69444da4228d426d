"""Soon after the traffic ends, and without further traffic, the data folder is only as large as the messages
in the queues require.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from broker.namespace.router import partition_of_key
from tests.bench.load.client import Receiver, Sender, drive, encode_message
from tests.bench.load.endpoint import Endpoint
from tests.bench.load.traffic import Target
from tests.support.broker_process import KEY, KEY_NAME, BrokerProcess, queue
from tests.support.disk_use import wait_until_small

MIB = 1 << 20
PARTITIONS = 2
BODY_BYTES = 60_000
COUNT = 800
"""This many of these messages leave 24 MB behind in each partition."""
BYTES_MAX = 2 * MIB * PARTITIONS
WITHIN_S = 30.0
"""The promise is 10 s on a machine with time to spare."""
KEYS = {partition_of_key(f"key{number}", PARTITIONS): f"key{number}" for number in range(20)}
DEFERRED = [f"d{number:02}" for number in range(64)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, [queue("orders", PartitionCount=PARTITIONS)]) as process:
        yield process
        process.check_alive()


def flow(broker: BrokerProcess) -> None:
    """Send and consume many messages."""
    target = Target(
        "partibus",
        Endpoint("127.0.0.1", broker.addresses.amqp_port, KEY_NAME, KEY, "orders"),
        settles_first=False,
    )
    with target.connect() as connection:
        sender, receiver = (
            Sender(connection, encode_message(BODY_BYTES), 50),
            Receiver(connection, 50, BODY_BYTES),
        )
        drive([connection], lambda: sender.is_ready and receiver.is_ready, WITHIN_S)
        sender.send(COUNT)
        receiver.receive(COUNT)
        drive([connection], lambda: receiver.is_done, 2 * WITHIN_S)


def logs(broker: BrokerProcess) -> Path:
    return broker.data_dir / "logs"


def test_a_few_deferred_messages_keep_no_more_than_their_share_and_are_there_after_a_restart(
    broker: BrokerProcess,
) -> None:
    text = broker.addresses.connection_string()
    numbers: list[int] = []
    with (
        ServiceBusClient.from_connection_string(text) as client,
        client.get_queue_sender("orders") as sender,
        client.get_queue_receiver("orders") as receiver,
    ):
        for number, body in enumerate(DEFERRED):
            sender.send_messages(ServiceBusMessage(body, partition_key=KEYS[number % PARTITIONS]))
        while len(numbers) < len(DEFERRED):
            for each in receiver.receive_messages(len(DEFERRED), max_wait_time=WITHIN_S):
                receiver.defer_message(each)
                assert each.sequence_number is not None
                numbers.append(each.sequence_number)
    flow(broker)
    wait_until_small(logs(broker), BYTES_MAX, WITHIN_S)
    text = broker.restart().connection_string()
    with (
        ServiceBusClient.from_connection_string(text) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        found = [
            str(each)
            for partition in (0, 1)
            for each in receiver.receive_deferred_messages(of(numbers, partition))
        ]
    assert sorted(found) == DEFERRED


def of(numbers: list[int], partition: int) -> list[int]:
    """The sequence numbers of a partition."""
    return [each for each in numbers if each >> 48 == partition]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_drained_queue_gives_its_room_back_without_traffic(broker: BrokerProcess, is_stopped: bool) -> None:
    """The same holds if the broker was stopped right after the traffic and started again."""
    flow(broker)
    if is_stopped:
        broker.terminate()
        broker.start()
    wait_until_small(logs(broker), BYTES_MAX, WITHIN_S)
