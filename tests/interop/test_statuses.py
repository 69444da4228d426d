"""The status of a queue, set with the Python administration client while others use the queue: it takes
effect at once on the links that are attached, and messages stay where they are.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiver,
    ServiceBusSender,
)
from azure.servicebus.exceptions import MessagingEntityDisabledError, OperationTimeoutError, ServiceBusError
from azure.servicebus.management import EntityStatus, ServiceBusAdministrationClient

from tests.support.waiting import WAIT_S

SOON_S = 0.3


SetStatus = Callable[[EntityStatus], None]


def setter(admin: ServiceBusAdministrationClient, name: str) -> SetStatus:
    def set_status(status: EntityStatus) -> None:
        found = admin.get_queue(name)
        found.status = status
        admin.update_queue(found)
        assert admin.get_queue(name).status == status

    return set_status


def test_a_status_takes_effect_on_attached_links(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    name = f"status-{uuid.uuid4().hex}"
    admin.create_queue(name)
    set_status = setter(admin, name)
    with client.get_queue_sender(name) as sender, client.get_queue_receiver(name) as receiver:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(2)])
        take(receiver)
        set_status(EntityStatus.SEND_DISABLED)
        cannot_send(sender)
        take(receiver)

        set_status(EntityStatus.RECEIVE_DISABLED)
        cannot_receive(receiver)
        sender.send_messages(ServiceBusMessage("sent while nobody may receive"))

        set_status(EntityStatus.DISABLED)
        cannot_send(sender)
        cannot_receive(receiver)

        set_status(EntityStatus.ACTIVE)
        take(receiver)
        sender.send_messages(ServiceBusMessage("last"))
        take(receiver)


def test_a_status_takes_effect_on_sessions(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    """Both on a receiver that holds a session and on one that waits for a free one."""
    name = f"status-{uuid.uuid4().hex}"
    admin.create_queue(name, requires_session=True)
    set_status = setter(admin, name)
    with client.get_queue_sender(name) as sender:
        sender.send_messages([ServiceBusMessage(each, session_id="a") for each in ("1", "2")])
        with client.get_queue_receiver(name, session_id="a") as receiver:
            take(receiver)
            set_status(EntityStatus.RECEIVE_DISABLED)
            with pytest.raises(ServiceBusError):  # it does not attach anew: the session is lost
                receiver.receive_messages(1, max_wait_time=WAIT_S)
        with (
            pytest.raises(MessagingEntityDisabledError),
            client.get_queue_receiver(name, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT_S),
        ):
            pass
        set_status(EntityStatus.SEND_DISABLED)
        cannot_send(sender, session_id="a")
        with client.get_queue_receiver(name, session_id=NEXT_AVAILABLE_SESSION) as receiver:
            take(receiver)
        with (
            pytest.raises(OperationTimeoutError),
            client.get_queue_receiver(name, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=SOON_S),
        ):
            pass


def test_a_topic_is_disabled_for_senders_and_a_subscription_for_receivers(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    name, target = f"status-{uuid.uuid4().hex}", f"status-{uuid.uuid4().hex}"
    admin.create_topic(name)
    admin.create_queue(target)
    admin.create_subscription(name, "one")
    admin.create_subscription(name, "on", forward_to=target)

    def set_topic(status: EntityStatus) -> None:
        topic = admin.get_topic(name)
        topic.status = status
        admin.update_topic(topic)

    def set_subscription(subscription: str, status: EntityStatus) -> None:
        found = admin.get_subscription(name, subscription)
        found.status = status
        admin.update_subscription(name, found)
        assert admin.get_subscription(name, subscription).status == status

    with (
        client.get_topic_sender(name) as sender,
        client.get_subscription_receiver(name, "one") as receiver,
        client.get_queue_receiver(target) as forwarded,
    ):
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(3)])
        for status in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED):
            set_topic(status)
            cannot_send(sender)
            take(receiver)
        set_topic(EntityStatus.ACTIVE)
        for _ in range(3):
            take(forwarded)
        for subscription in ("one", "on"):
            set_subscription(subscription, EntityStatus.RECEIVE_DISABLED)
        cannot_receive(receiver)
        sender.send_messages(ServiceBusMessage("sent while nobody may receive"))
        set_subscription("one", EntityStatus.DISABLED)
        cannot_receive(receiver)
        assert forwarded.receive_messages(1, max_wait_time=SOON_S) == []
        for subscription in ("one", "on"):
            set_subscription(subscription, EntityStatus.ACTIVE)
        for _ in range(2):
            take(receiver)
        take(forwarded)
    with pytest.raises(HttpResponseError, match="ReceiveDisabled"):
        set_topic(EntityStatus.RECEIVE_DISABLED)
    with pytest.raises(HttpResponseError, match="SendDisabled"):
        set_subscription("one", EntityStatus.SEND_DISABLED)


def take(receiver: ServiceBusReceiver) -> None:
    (message,) = receiver.receive_messages(1, max_wait_time=WAIT_S)
    receiver.complete_message(message)


def cannot_send(sender: ServiceBusSender, session_id: str | None = None) -> None:
    """Neither on the link that the broker has closed, for which this client has no error of its own, nor on
    a new one."""
    with pytest.raises(ServiceBusError):
        sender.send_messages(ServiceBusMessage("refused", session_id=session_id))
    with pytest.raises(MessagingEntityDisabledError):
        sender.send_messages(ServiceBusMessage("refused", session_id=session_id))


def cannot_receive(receiver: ServiceBusReceiver) -> None:
    with pytest.raises(ServiceBusError):
        receiver.receive_messages(1, max_wait_time=WAIT_S)
    with pytest.raises(MessagingEntityDisabledError):
        receiver.receive_messages(1, max_wait_time=WAIT_S)
