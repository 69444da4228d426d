"""AutoDeleteOnIdle with the official Python clients: a queue in use stays, an idle one is deleted (AMQP
contract 10.8)."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.support.azure_client import admin_of, azure_client
from tests.support.broker_process import BrokerProcess, queue

WITHIN_S = 30.0
IDLE_S = 6
"""How long a queue may be idle: longer than a client takes to connect on a busy machine."""
MINIMUM = {"PARTIBUS_AUTO_DELETE_ON_IDLE_MS_MIN": "1000"}


def is_there(admin: ServiceBusAdministrationClient, name: str) -> bool:
    try:
        admin.get_queue(name)
    except ResourceNotFoundError:
        return False
    return True


def test_an_idle_queue_is_deleted_and_one_with_a_receiver_is_not(tmp_path: Path) -> None:
    queues = [queue("from-file", AutoDeleteOnIdle="PT1S")]
    with BrokerProcess(tmp_path, queues, environment=MINIMUM) as broker:
        admin = admin_of(broker)
        admin.create_queue("used", auto_delete_on_idle=timedelta(seconds=IDLE_S))
        with azure_client(broker.addresses.connection_string()) as client:
            with client.get_queue_receiver("used") as receiver:
                until = time.monotonic() + WITHIN_S
                while is_there(admin, "from-file") and time.monotonic() < until:
                    assert receiver.receive_messages(1, max_wait_time=1) == []
                assert not is_there(admin, "from-file")
                time.sleep(IDLE_S + 0.5)
                assert is_there(admin, "used")
            with client.get_queue_sender("used") as sender:
                sender.send_messages(ServiceBusMessage("goes with the queue"))
            until = time.monotonic() + WITHIN_S
            while is_there(admin, "used") and time.monotonic() < until:
                time.sleep(0.2)
            assert not is_there(admin, "used")
            with pytest.raises(MessagingEntityNotFoundError), client.get_queue_receiver("used") as receiver:
                receiver.receive_messages(1, max_wait_time=1)
        assert '"event": "entity.idle"' in broker.log


def test_an_idle_subscription_is_deleted_after_a_restart_with_its_messages_and_no_other_is(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path, [], environment=MINIMUM) as broker:
        admin = admin_of(broker)
        admin.create_topic("events")
        admin.create_subscription("events", "idle", auto_delete_on_idle=timedelta(seconds=4))
        admin.create_subscription("events", "stays", auto_delete_on_idle=timedelta(minutes=5))
        with (
            azure_client(broker.addresses.connection_string()) as client,
            client.get_topic_sender("events") as sender,
        ):
            sender.send_messages(ServiceBusMessage("for both"))
        broker.kill()
        broker.start()
        admin = admin_of(broker)
        until = time.monotonic() + WITHIN_S
        while (left := names_of(admin)) != ["stays"] and time.monotonic() < until:
            assert left == ["idle", "stays"]
            time.sleep(0.2)
        assert left == ["stays"]
        with (
            azure_client(broker.addresses.connection_string()) as client,
            client.get_subscription_receiver("events", "stays") as receiver,
        ):
            (message,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
            assert str(message) == "for both"


def names_of(admin: ServiceBusAdministrationClient) -> list[str]:
    """The subscriptions of the topic."""
    return sorted(each.name for each in admin.list_subscriptions("events"))
