"""Transactions over several entities while the broker is killed: each message that was taken from one queue
arrives in two others, exactly once, and nothing that was not committed does.

A raw AMQP client has all its links in one AMQP session. The official Python client fetches the result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue

from protocol.codec import Described, ULong
from tests.interop.own_management import management
from tests.interop.proton_blocking import connected
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import DATA, message, sections
from tests.support.broker_process import BrokerProcess, queue, topic
from tests.support.raw_amqp import RawConnection
from tests.support.transactions import condition_of, coordinator_attach, declare, discharge, state_of

WITHIN_S = 30.0
MESSAGES = 8
KILLED_AFTER = 4
"""Transactions before each kill."""
RECEIVER, TO_A, TO_B, COORDINATOR = range(4)
QUEUES = [
    queue("from", PartitionCount=4, LockDuration="PT5S"),
    queue("to-a", PartitionCount=4),
    queue("to-b", PartitionCount=1),
]


class Mover:
    """A client that moves messages, each in a transaction."""

    def __init__(self, port: int, to: str = "to-a", source: str = "from") -> None:
        self._connection = RawConnection(port)
        self._connection.open()
        self._connection.begin()
        self._connection.attach_receiver(RECEIVER, source)
        self._connection.attach_sender(TO_A, to)
        self._connection.attach_sender(TO_B, "to-b")
        assert self._connection.attach(coordinator_attach(COORDINATOR)).code == raw.ATTACH
        self._connection.read_until(raw.FLOW)
        self._sent = self._received = 0

    def move(self, *, commits: bool = True) -> None:
        """Take the next message and send it to both queues. Without the commit, nobody must see it there."""
        connection = self._connection
        connection.send_frame(raw.FLOW, raw.flow_fields(RECEIVER, self._received, 1))
        found = connection.read_until(raw.TRANSFER, within_s=WITHIN_S)
        self._received += 1
        text = bytes(sections(found.payload)[DATA])
        txn_id = bytes(self._ask(COORDINATOR, declare()).value[0])
        self._ask(TO_A, message(body=[text]), state=state_of(txn_id))
        outcome = state_of(txn_id, Described(ULong(raw.ACCEPTED), []))
        delivery = found.field(1)
        connection.send_frame(
            raw.DISPOSITION, raw.disposition_fields(True, delivery, delivery, False, outcome)
        )
        connection.read_until(raw.DISPOSITION)
        self._ask(TO_B, message(body=[text]), state=state_of(txn_id))
        if commits:
            assert self._ask(COORDINATOR, discharge(txn_id, False)).descriptor == raw.ACCEPTED

    def fail_to_move(self, body: bytes) -> tuple[Any, Any]:
        """Send a message that is refused; gives the outcomes of the send and of the commit."""
        txn_id = bytes(self._ask(COORDINATOR, declare()).value[0])
        refused = self._ask(TO_A, message(body=[body]), state=state_of(txn_id))
        return refused, self._ask(COORDINATOR, discharge(txn_id, False))

    def _ask(self, handle: int, payload: bytes, **given: Any) -> Any:
        fields = raw.transfer_fields(handle, self._sent, **given)
        self._connection.send_frame(raw.TRANSFER, fields, payload)
        self._sent += 1
        return self._connection.read_until(raw.DISPOSITION).field(4)

    def close(self) -> None:
        self._connection.socket.close()


def received(client: ServiceBusClient, name: str, count: int) -> list[str]:
    """The bodies of so many messages, and of any that come after them."""
    found: list[str] = []
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver(name, receive_mode=mode) as receiver:
        while len(found) < count:
            more = receiver.receive_messages(count, max_wait_time=WITHIN_S)
            assert more, f"only {len(found)} of {count} messages came to {name}"
            found += map(str, more)
        return found + [str(each) for each in receiver.receive_messages(count, max_wait_time=0.5)]


@pytest.mark.parametrize("split", ["false", "true"], ids=["one process", "partitions in another"])
def test_messages_move_to_two_queues_exactly_once_over_kills(tmp_path: Path, split: str) -> None:
    environment = {"PARTIBUS_PARTITION_PROCESS": split}
    with BrokerProcess(tmp_path, QUEUES, environment=environment) as broker:
        with (
            ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client,
            client.get_queue_sender("from") as sender,
        ):
            for number in range(MESSAGES):
                sender.send_messages(ServiceBusMessage(f"{number}", partition_key=f"k{number}"))
        left = MESSAGES
        while left:
            mover = Mover(broker.addresses.amqp_port)
            for _ in range(min(left, KILLED_AFTER)):
                mover.move()
                left -= 1
            if left:
                mover.move(commits=False)
            broker.kill()  # while the last ones are on their way
            mover.close()
            broker.start()
        with ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client:
            expected = sorted(map(str, range(MESSAGES)))
            assert sorted(received(client, "to-a", MESSAGES)) == expected
            assert sorted(received(client, "to-b", MESSAGES)) == expected
            with client.get_queue_receiver("from") as receiver:
                assert receiver.peek_messages(5, sequence_number=1) == []


def test_a_destination_that_is_full_refuses_the_send_and_the_commit(tmp_path: Path) -> None:
    full = queue("full", PartitionCount=1, MaxSizeInMegabytes=1)
    entities = [queue("from", PartitionCount=1), full, queue("to-b", PartitionCount=1)]
    with (
        BrokerProcess(tmp_path, entities) as broker,
        ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client,
    ):
        for name, body in (("from", b"stays"), ("full", bytes(1_030_000))):
            with client.get_queue_sender(name) as sender:
                sender.send_messages(ServiceBusMessage(body))
        mover = Mover(broker.addresses.amqp_port, to="full")
        refused, of_commit = mover.fail_to_move(bytes(30_000))
        mover.close()
        assert condition_of(refused)[0] == "amqp:resource-limit-exceeded"
        condition, text = condition_of(of_commit)
        assert condition == "amqp:transaction:rollback" and "'full'" in text
        with client.get_queue_receiver("from") as receiver:
            assert [str(each) for each in receiver.peek_messages(5)] == ["stays"]


def test_what_a_topic_cannot_pass_on_is_a_dead_letter_of_the_topic_and_can_be_published_again(
    tmp_path: Path,
) -> None:
    queues = [queue("to-b", PartitionCount=1, MaxSizeInMegabytes=1)]
    with (
        BrokerProcess(tmp_path, queues, topics=[topic("events", ["s"])]) as broker,
        ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client,
    ):
        with client.get_queue_sender("to-b") as sender, client.get_topic_sender("events") as publisher:
            sender.send_messages(ServiceBusMessage(bytes(1_025_000)))
            publisher.send_messages(ServiceBusMessage("x" * 12_000))
        mover = Mover(broker.addresses.amqp_port, to="to-b", source="events/Subscriptions/s")
        mover.move()  # twice to the same queue, which has room for one
        mover.close()
        failed = ServiceBusSubQueue.TRANSFER_DEAD_LETTER
        with client.get_queue_receiver("events", sub_queue=failed) as receiver:
            (dead,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
            assert (dead.dead_letter_reason, str(dead)) == ("QuotaExceededException", "x" * 12_000)
            receiver.abandon_message(dead)
        with (
            connected(broker.addresses) as connection,
            management(connection, "events/$Transfer/$DeadLetterQueue") as node,
        ):
            assert node.ask("partibus:redrive-messages") == (200, {"message-count": 1})
        with client.get_subscription_receiver("events", "s") as receiver:
            (again,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
            assert (again.dead_letter_reason, str(again)) == (None, "x" * 12_000)
