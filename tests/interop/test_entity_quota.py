"""The quota of a whole entity, as clients see it: `PARTIBUS_ENTITY_MB_MAX` over all its partitions."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusQuotaExceededError
from proton import Message
from proton.utils import SendException

from tests.interop.proton_blocking import Destination, connected
from tests.support.broker_process import BrokerProcess, queue, topic

QUARTER_MB = 256 * 1024


@pytest.mark.parametrize("split", ["false", "true"], ids=["one process", "partitions in another"])
def test_all_partitions_together_hold_no_more_than_the_setting(tmp_path: Path, split: str) -> None:
    at_once = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    environment = {"PARTIBUS_ENTITY_MB_MAX": "1", "PARTIBUS_PARTITION_PROCESS": split}
    entities = [queue("small", PartitionCount=4)]
    with BrokerProcess(tmp_path, entities, environment=environment) as broker:
        for is_started_again in (False, True):
            if is_started_again:
                assert broker.terminate() == 0
                broker.start()
            with (
                ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client,
                client.get_queue_sender("small") as sender,
            ):
                for _ in range(0 if is_started_again else 3):
                    sender.send_messages(ServiceBusMessage(bytes(QUARTER_MB)))
                with pytest.raises(ServiceBusQuotaExceededError, match="Max entity size in bytes: 1048576"):
                    sender.send_messages(ServiceBusMessage(bytes(QUARTER_MB)))
        with (
            ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client,
            client.get_queue_receiver("small", receive_mode=at_once) as receiver,
            client.get_queue_sender("small") as sender,
        ):
            assert len(receiver.receive_messages(1, max_wait_time=30)) == 1
            sender.send_messages(ServiceBusMessage(bytes(QUARTER_MB)))


def test_what_subscriptions_make_of_a_message_counts(tmp_path: Path) -> None:
    environment = {"PARTIBUS_ENTITY_MB_MAX": "1", "PARTIBUS_PARTITION_PROCESS": "true"}
    small = topic("small", (f"s{number}" for number in range(100)))
    with (
        BrokerProcess(tmp_path, (), topics=[small], environment=environment) as broker,
        ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client,
        client.get_topic_sender("small") as sender,
    ):
        for _ in range(35):
            sender.send_messages(ServiceBusMessage(b"message"))
        # Symptom: it took thousands, because each counted as one, and not as 100 of 256 bytes at least.
        with pytest.raises(ServiceBusQuotaExceededError, match="Max entity size in bytes: 1048576"):
            for _ in range(10):
                sender.send_messages(ServiceBusMessage(b"message"))


def test_an_entity_that_is_full_as_a_whole_keeps_nothing_for_another_one(tmp_path: Path) -> None:
    entities = [queue("small", PartitionCount=4), queue("other", PartitionCount=4)]
    large = Message(body=bytes(QUARTER_MB), inferred=True)
    with (
        BrokerProcess(tmp_path, entities, environment={"PARTIBUS_ENTITY_MB_MAX": "1"}) as broker,
        connected(broker.addresses) as connection,
    ):
        itself = connection.create_sender("small")
        for _ in range(3):
            itself.send(large)
        through = connection.create_sender("small", name="through", options=Destination("other"))
        with pytest.raises(SendException):
            through.send(large)
        through.send(Message(body=b"small", inferred=True))
        connection.create_sender("other").send(large)
