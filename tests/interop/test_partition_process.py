"""The official Python client and a broker whose partitions run in a separate process; each is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue

from tests.support.azure_client import azure_client
from tests.support.broker_process import BrokerProcess, queue

WITHIN_S = 30.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    queues = [queue("orders", PartitionCount=4, Partitioned=True, MaxDeliveryCount=2)]
    with BrokerProcess(tmp_path, queues, environment={"PARTIBUS_PARTITION_PROCESS": "true"}) as running:
        yield running


def client_of(broker: BrokerProcess) -> ServiceBusClient:
    return azure_client(broker.addresses.connection_string())


def bodies(messages: Iterable[object]) -> set[str]:
    return {str(message) for message in messages}


def partitions_process(broker: BrokerProcess) -> int:
    """Process id of the partitions: the broker's only child."""
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text(encoding="ascii").split()
    assert len(children) == 1
    return int(children[0])


def test_a_client_sends_receives_settles_and_peeks(broker: BrokerProcess) -> None:
    sent = {f"message {number}" for number in range(40)}
    with client_of(broker) as client:
        with client.get_queue_sender("orders") as sender:
            for number, body in enumerate(sorted(sent)):
                key = str(number % 5) if number % 2 else None
                sender.send_messages(ServiceBusMessage(body, partition_key=key))
        with client.get_queue_receiver("orders", max_wait_time=5) as receiver:
            assert bodies(receiver.peek_messages(100)) == sent
            taken: set[str] = set()
            settled = 0
            while len(taken) < len(sent):
                messages = receiver.receive_messages(10, max_wait_time=WITHIN_S)
                assert messages, f"only {len(taken)} of {len(sent)} messages came in {WITHIN_S} s"
                for message in messages:
                    settled += 1
                    if settled == 1:
                        receiver.dead_letter_message(message, reason="unwanted")
                    elif settled == 2:
                        receiver.renew_message_lock(message)
                        receiver.abandon_message(message)
                        continue
                    else:
                        receiver.complete_message(message)
                    taken.add(str(message))
        receiver = client.get_queue_receiver(
            "orders",
            sub_queue=ServiceBusSubQueue.DEAD_LETTER,
            receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
            max_wait_time=WITHIN_S,
        )
        with receiver:
            (dead,) = receiver.receive_messages(1)
            assert dead.dead_letter_reason == "unwanted"


def test_what_was_acknowledged_is_there_after_the_broker_was_killed(broker: BrokerProcess) -> None:
    with client_of(broker) as client, client.get_queue_sender("orders") as sender:
        for number in range(20):
            sender.send_messages(ServiceBusMessage(f"message {number}"))
    child = partitions_process(broker)
    broker.kill()
    until = time.monotonic() + WITHIN_S
    while Path(f"/proc/{child}").exists() and _is_alive(child):
        assert time.monotonic() < until, "the partitions' process has outlived its broker"
        time.sleep(0.05)
    broker.start()
    with client_of(broker) as client, client.get_queue_receiver("orders") as receiver:
        assert bodies(receiver.peek_messages(100)) == {f"message {number}" for number in range(20)}


def test_when_the_partitions_process_is_killed_the_broker_ends_with_an_error_and_a_restart_finds_all(
    broker: BrokerProcess,
) -> None:
    with client_of(broker) as client, client.get_queue_sender("orders") as sender:
        for number in range(20):
            sender.send_messages(ServiceBusMessage(f"message {number}"))
    process = broker._process
    assert process is not None
    os.kill(partitions_process(broker), signal.SIGKILL)
    assert process.wait(WITHIN_S) != 0
    assert "server.part_failed" in broker.log
    broker.kill()
    broker.start()
    with client_of(broker) as client, client.get_queue_receiver("orders") as receiver:
        assert bodies(receiver.peek_messages(100)) == {f"message {number}" for number in range(20)}


def _is_alive(process: int) -> bool:
    """Whether the process runs: neither gone nor a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
