"""Soon after the traffic ends, and without further traffic, the data folder is only as large as the messages
in the queues require.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSession,
)

from broker.namespace.router import partition_of_key
from tests.bench.load.client import Receiver, Sender, drive, encode_message
from tests.bench.load.endpoint import Endpoint
from tests.bench.load.traffic import Target
from tests.support.azure_client import azure_client
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


def flow(broker: BrokerProcess, name: str = "orders", count: int = COUNT) -> None:
    """Send and consume many messages."""
    target = Target(
        "partibus",
        Endpoint("127.0.0.1", broker.addresses.amqp_port, KEY_NAME, KEY, name),
        settles_first=False,
    )
    with target.connect() as connection:
        sender, receiver = (
            Sender(connection, encode_message(BODY_BYTES), 50),
            Receiver(connection, 50, BODY_BYTES),
        )
        drive([connection], lambda: sender.is_ready and receiver.is_ready, WITHIN_S)
        sender.send(count)
        receiver.receive(count)
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
    took_s = wait_until_small(logs(broker), BYTES_MAX, WITHIN_S)
    print(f"small after {took_s:.1f} s")


# --- the whole folder ---------------------------------------------------------------------------------------

PASSING = 300
"""Messages through each queue of the next test, 9 MB in each partition."""
LEFT = 10
"""Messages that stay in a queue, in every way in which messages can stay."""
STATE_BYTES = 10_000
SESSIONS = [f"session{number}" for number in range(6)]
QUEUES = [
    queue("drained", PartitionCount=PARTITIONS),
    queue("deferred", PartitionCount=PARTITIONS),
    queue("scheduled", PartitionCount=PARTITIONS),
    queue("sessions", PartitionCount=PARTITIONS, RequiresSession=True),
    queue(
        "duplicates",
        PartitionCount=PARTITIONS,
        RequiresDuplicateDetection=True,
        DuplicateDetectionHistoryTimeWindow="PT1H",
    ),
]
LIVE_BYTES = 4 * LEFT * BODY_BYTES + len(SESSIONS) * STATE_BYTES
BODY = bytes(range(256)) * (BODY_BYTES // 256)


def bodies(count: int, first: int = 0) -> list[ServiceBusMessage]:
    """Messages of which each belongs to one of the sessions, with ids of their own."""
    return [
        ServiceBusMessage(BODY, session_id=SESSIONS[number % len(SESSIONS)], message_id=f"id{number}")
        for number in range(first, first + count)
    ]


def send(client: ServiceBusClient, name: str, messages: Sequence[ServiceBusMessage]) -> None:
    with client.get_queue_sender(name) as sender:
        for message in messages:  # a batch goes to one partition as a whole
            sender.send_messages(message)


def take(receiver: ServiceBusReceiver, count: int) -> None:
    while count:
        taken = len(receiver.receive_messages(count, max_wait_time=WITHIN_S))
        assert taken, "everything comes"
        count -= taken


def leave_deferred(client: ServiceBusClient) -> None:
    send(client, "deferred", bodies(LEFT))
    with client.get_queue_receiver("deferred") as receiver:
        for _ in range(LEFT):
            (message,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
            receiver.defer_message(message)


def leave_scheduled(client: ServiceBusClient) -> None:
    with client.get_queue_sender("scheduled") as sender:
        for message in bodies(LEFT):
            sender.schedule_messages(message, datetime.now(UTC) + timedelta(hours=1))


def use_sessions(client: ServiceBusClient) -> None:
    """Leave states, and messages in one session."""
    send(client, "sessions", bodies(PASSING))
    for each in SESSIONS:
        with client.get_queue_receiver(
            "sessions", session_id=each, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        ) as receiver:
            take(receiver, PASSING // len(SESSIONS))
            session = receiver.session
            assert isinstance(session, ServiceBusSession)
            session.set_state(bytes(STATE_BYTES))
    send(client, "sessions", [ServiceBusMessage(BODY, session_id=SESSIONS[0]) for _ in range(LEFT)])


def use_message_ids(client: ServiceBusClient) -> None:
    """Leave messages, and the ids of all that passed. Half of what is sent is a duplicate."""
    with client.get_queue_receiver(
        "duplicates", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
    ) as receiver:
        send(client, "duplicates", bodies(PASSING))
        take(receiver, PASSING)
    send(client, "duplicates", bodies(PASSING))
    send(client, "duplicates", bodies(LEFT, first=PASSING))


def test_the_whole_folder_is_small_soon_after_the_traffic_whatever_stays_in_the_queues(
    tmp_path: Path,
) -> None:
    """All files count: logs, checkpoints, extents, reserves, the catalogue and the index."""
    with (
        BrokerProcess(tmp_path, QUEUES) as broker,
        azure_client(broker.addresses.connection_string()) as client,
    ):
        leave_deferred(client)
        leave_scheduled(client)
        for name in ("drained", "deferred", "scheduled"):
            flow(broker, name, PASSING)
        use_sessions(client)
        use_message_ids(client)
        used = len(list(logs(broker).glob("*/*")))
        assert used == len(QUEUES) * PARTITIONS
        took_s = wait_until_small(broker.data_dir, 3 * LIVE_BYTES + 2 * MIB * used, WITHIN_S)
        print(f"small after {took_s:.1f} s")
        for name in ("deferred", "scheduled", "duplicates"):
            with client.get_queue_receiver(name) as receiver:
                assert len(receiver.peek_messages(2 * LEFT)) == LEFT
        broker.check_alive()
