"""Auto-forwarding with the official Python and JavaScript clients, over restarts of the broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import ServiceBusError

from tests.interop.programs import Report, run_node
from tests.support.azure_client import admin_of
from tests.support.broker_process import (
    BrokerDied,
    BrokerProcess,
    configuration,
    queue,
)
from tests.support.scrapes import by_entity, metrics

WITHIN_S = 30.0
PARTITIONS = 4
QUEUES = [
    queue("first", PartitionCount=PARTITIONS, ForwardTo="middle"),
    queue("middle", Partitioned=False, ForwardTo="last"),
    queue("last", PartitionCount=PARTITIONS),
    queue("last-of-dead", PartitionCount=2, ForwardDeadLetteredMessagesTo="dead"),
    queue("dead", Partitioned=False),
    queue("orders", PartitionCount=PARTITIONS),
    queue("sessions", PartitionCount=2, RequiresSession=True),
    queue("to-a-target", PartitionCount=2, ForwardTo="a-target"),
    queue("a-target", PartitionCount=1, MaxSizeInMegabytes=1),
]


@contextmanager
def client_of(broker: BrokerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(
        broker.addresses.connection_string(), retry_total=1
    ) as client:
        yield client


def send(client: ServiceBusClient, name: str, *messages: ServiceBusMessage) -> None:
    with client.get_queue_sender(name) as sender:
        for message in messages:
            sender.send_messages(message)


def receive(
    client: ServiceBusClient,
    name: str,
    count: int,
    *,
    session_id: str | None = None,
    sub_queue: ServiceBusSubQueue | None = None,
) -> list[ServiceBusReceivedMessage]:
    """Receive and remove exactly so many messages."""
    found: list[ServiceBusReceivedMessage] = []
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver(
        name, receive_mode=mode, session_id=session_id, sub_queue=sub_queue
    ) as receiver:
        while len(found) < count:
            more = receiver.receive_messages(count - len(found), max_wait_time=WITHIN_S)
            assert more, f"only {len(found)} of {count} messages came to {name}"
            found += more
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), QUEUES) as process:
        yield process
        process.check_alive()


def test_messages_go_through_a_chain_of_queues(broker: BrokerProcess) -> None:
    with client_of(broker) as client:
        sent = [
            ServiceBusMessage(
                f"{number}", message_id=f"id {number}", partition_key=f"k{number % 5}" if number % 2 else None
            )
            for number in range(30)
        ]
        send(client, "first", *sent)
        found = receive(client, "last", 30)
        assert {message.message_id for message in found} == {f"id {number}" for number in range(30)}
        for message in found:
            assert (message.delivery_count, message.dead_letter_source) == (0, None)
            assert message.enqueued_sequence_number and message.sequence_number
        partitions: dict[str, set[int]] = {}
        for message in found:
            if message.partition_key and message.sequence_number:
                partitions.setdefault(message.partition_key, set()).add(message.sequence_number >> 48)
        assert all(len(each) == 1 for each in partitions.values()), "a key picks the partition"
        originals = {message.enqueued_sequence_number for message in found}
        assert len(originals) == 30, "those of the first queue, also after two hops"
        with (
            pytest.raises(ServiceBusError, match="auto-forwarding enabled"),
            client.get_queue_receiver("first") as receiver,
        ):
            receiver.receive_messages(1, max_wait_time=1)


def test_a_batch_and_a_message_without_a_session(broker: BrokerProcess) -> None:
    admin = admin_of(broker)
    admin.create_queue("to-sessions", forward_to="sessions")
    try:
        with client_of(broker) as client:
            with client.get_queue_sender("to-sessions") as sender:
                sender.send_messages([ServiceBusMessage(f"{number}", session_id="s") for number in range(5)])
                sender.send_messages(ServiceBusMessage("without"))
            bodies = [str(message) for message in receive(client, "sessions", 5, session_id="s")]
            assert bodies == [f"{number}" for number in range(5)]
            (dead,) = receive(client, "to-sessions", 1, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
            assert (str(dead), dead.dead_letter_reason) == ("without", "Session id is null.")
            assert str(dead.dead_letter_error_description).startswith(
                "The SessionId was not set on a message"
            )
    finally:
        admin.delete_queue("to-sessions")


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_forwarding_begins_at_a_start_although_nobody_asks_and_the_backlog_follows(
    tmp_path: Path, is_killed: bool
) -> None:
    """Killed, in another process for partitions."""
    environment = {"PARTIBUS_PARTITION_PROCESS": "true"} if is_killed else {}
    target = queue("target", PartitionCount=2)
    queues = [queue("orders", PartitionCount=PARTITIONS), target]
    with BrokerProcess(tmp_path, queues, environment=environment) as broker:
        with client_of(broker) as client:
            send(client, "orders", *(ServiceBusMessage(f"{number}") for number in range(8)))
        if is_killed:
            broker.kill()
        else:
            assert broker.terminate() == 0
        queues = [queue("orders", PartitionCount=PARTITIONS, ForwardTo="target"), target]
        broker.config_path.write_text(json.dumps(configuration(queues)), encoding="utf-8")
        broker.start()
        deadline = time.monotonic() + WITHIN_S
        while forwarded(broker) < 8:
            assert time.monotonic() < deadline, f"only {forwarded(broker)} messages were forwarded"
            time.sleep(0.05)
        with client_of(broker) as client:
            assert sorted(str(each) for each in receive(client, "target", 8)) == [str(n) for n in range(8)]
        admin = admin_of(broker)
        paused = admin.get_queue("orders")
        assert str(paused.forward_to).endswith("/target")
        paused.status = "ReceiveDisabled"
        admin.update_queue(paused)
        with client_of(broker) as client:
            send(client, "orders", ServiceBusMessage("waits"))
            counts = admin.get_queue_runtime_properties("orders")
            assert (counts.active_message_count, counts.transfer_message_count) == (0, 1)
            paused.status = "Active"
            admin.update_queue(paused)
            assert str(receive(client, "target", 1)[0]) == "waits"


def test_what_its_target_does_not_take_is_a_dead_letter_of_the_source(broker: BrokerProcess) -> None:
    """A target that is full, disabled, or deleted."""
    admin = admin_of(broker)
    with client_of(broker) as client:
        send(client, "a-target", ServiceBusMessage(b"x" * 1_000_000))
        send(client, "to-a-target", ServiceBusMessage(b"x" * 100_000, message_id="full"))
        (dead,) = receive(client, "to-a-target", 1, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        assert (dead.message_id, dead.dead_letter_reason) == ("full", "QuotaExceededException")
        send(client, "to-a-target", ServiceBusMessage("fits"))
        assert [len(str(each)) for each in receive(client, "a-target", 2)] == [1_000_000, len("fits")]
        target = admin.get_queue("a-target")
        target.status = "SendDisabled"
        admin.update_queue(target)
        for why in ("Disabled", "NotFound"):
            send(client, "to-a-target", ServiceBusMessage("x"))
            (dead,) = receive(client, "to-a-target", 1, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
            assert dead.dead_letter_reason == f"MessagingEntity{why}Exception"
            if why == "Disabled":
                admin.delete_queue("a-target")


def forwarded(broker: BrokerProcess) -> int:
    """How many messages were forwarded since the start, from a scrape, which opens nothing."""
    return by_entity(metrics(broker.addresses, WITHIN_S), "forwarded_messages_total").get("orders", 0)


def test_dead_letters_and_expired_messages_are_forwarded(broker: BrokerProcess) -> None:
    with client_of(broker) as client:
        send(client, "last-of-dead", ServiceBusMessage("x", message_id="dead"))
        with client.get_queue_receiver("last-of-dead") as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
            receiver.dead_letter_message(message, reason="mine", error_description="why")
        (dead,) = receive(client, "dead", 1)
        assert (str(dead), dead.dead_letter_reason, dead.dead_letter_error_description) == (
            "x",
            "mine",
            "why",
        )
        assert (dead.dead_letter_source, dead.delivery_count) == ("last-of-dead", 0)
        assert dead.enqueued_sequence_number == message.sequence_number
        with (
            pytest.raises(ServiceBusError, match="auto-forwarding enabled"),
            client.get_queue_receiver("last-of-dead", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver,
        ):
            receiver.receive_messages(1, max_wait_time=1)


@pytest.fixture(scope="module")
def javascript(broker: BrokerProcess) -> Report:
    extra = {"PARTIBUS_SCENARIOS": "forwarding,dead-letters"}
    return run_node("forwarding.mjs", "javascript", broker.addresses, extra)


@pytest.mark.parametrize("scenario", ["forwarding", "dead-letters"])
def test_the_javascript_client(javascript: Report, scenario: str) -> None:
    javascript.check(scenario)


def test_a_file_with_a_missing_target_is_refused_until_the_target_exists(tmp_path: Path) -> None:
    """A target that is deleted later does not keep the broker from starting with the same file."""
    broker = BrokerProcess(tmp_path, [])
    forwarding = configuration([queue("orders", PartitionCount=2, ForwardTo="archive")])
    with broker:
        admin_of(broker).create_queue("other")
    broker.config_path.write_text(json.dumps(forwarding))
    with pytest.raises(BrokerDied, match="status 2") as died:
        broker.start()
    assert "Queues[0].Properties.ForwardTo: 'orders' cannot forward to 'archive'" in str(died.value)
    broker.config_path.write_text(json.dumps(configuration([])))
    with broker:
        admin = admin_of(broker)
        assert [each.name for each in admin.list_queues()] == ["other"]
        admin.create_queue("archive")
    broker.config_path.write_text(json.dumps(forwarding))
    with broker:
        with client_of(broker) as client:
            send(client, "orders", ServiceBusMessage("kept"))
            with client.get_queue_receiver("archive") as receiver:
                (message,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
                assert str(message) == "kept"
                receiver.complete_message(message)
        admin_of(broker).delete_queue("archive")
        assert "config.target_missing" not in broker.log
    with broker:
        assert '"config.target_missing"' in broker.log
        assert admin_of(broker).get_queue("orders").forward_to
