"""Selectors of Qpid Proton on a subscription: consumers and browsers of its messages, and of its dead
letters."""

from __future__ import annotations

import uuid
from typing import Any

from azure.servicebus import ServiceBusMessage
from proton import Delivery

from tests.interop.proton_blocking import connector, run
from tests.support.azure_client import admin_of, azure_client
from tests.support.broker_process import BrokerProcess


def numbers_of(found: list[Any]) -> list[int]:
    return sorted(each.message.properties["n"] for each in found)


def test_a_receiver_of_a_subscription_gets_what_its_selector_matches(broker: BrokerProcess) -> None:
    topic = f"topic-{uuid.uuid4().hex}"
    with admin_of(broker) as admin:
        admin.create_topic(topic)
        for name in ("one", "two"):
            admin.create_subscription(topic, name)
    with (
        azure_client(broker.addresses.connection_string()) as client,
        client.get_topic_sender(topic) as sender,
    ):
        sender.send_messages(
            [ServiceBusMessage("x", application_properties={"n": number}) for number in range(10)]
        )

    async def receive() -> None:
        async with connector(broker.addresses)() as client:
            address = f"{topic}/Subscriptions/one"
            browser = await client.receiver(address, name="browser", copy=True, selector="n BETWEEN 2 AND 4")
            assert numbers_of(await browser.drain(10)) == [2, 3, 4]
            receiver = await client.receiver(address, selector="n IN (3, 7)")
            found = await receiver.receive(2)
            assert numbers_of(found) == [3, 7]
            for each in found:
                await receiver.propose(each, Delivery.REJECTED)
            assert await receiver.drain(10) == []
            dead = await client.receiver(f"{address}/$DeadLetterQueue", selector="n > 5", settled=True)
            assert numbers_of(await dead.receive(1)) == [7]
            assert await dead.drain(10) == []
            other = await client.receiver(f"{topic}/Subscriptions/two", settled=True)
            assert numbers_of(await other.receive(10)) == list(range(10))

    run(receive())
