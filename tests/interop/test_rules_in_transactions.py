"""Rules that Qpid Proton adds and removes in transactions: together with the messages of the transaction on a
plain topic, and refused on a partitioned one."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import CorrelationRuleFilter
from proton import Message

from tests.interop.proton_client import Refused
from tests.interop.proton_reactor import Script
from tests.interop.test_proton_transactions import ACCEPTED, Txn
from tests.support.azure_client import admin_of
from tests.support.broker_process import BrokerProcess

Ask = Callable[[Any, str, dict[str, Any]], Awaitable[tuple[int, Any]]]


def add_topic(broker: BrokerProcess, *, is_partitioned: bool) -> str:
    """A topic with a subscription that gets red messages."""
    name = f"topic-{uuid.uuid4().hex}"
    with admin_of(broker) as admin:
        admin.create_topic(name, enable_partitioning=is_partitioned)
        admin.create_subscription(name, "one")
        admin.delete_rule(name, "one", "$Default")
        admin.create_rule(name, "one", "red", filter=CorrelationRuleFilter(label="red"))
    return name


def rules_of(broker: BrokerProcess, topic: str) -> list[str]:
    with admin_of(broker) as admin:
        return [rule.name for rule in admin.list_rules(topic, "one")]


async def asker(client: Any, topic: str) -> Ask:
    """Asks the subscription's `$management` in a transaction; gives the status and the response's body."""
    address = f"{topic}/Subscriptions/one/$management"
    node, responses = await client.sender(address), await client.receiver(address)

    async def ask(txn: Any, operation: str, body: dict[str, Any]) -> tuple[int, Any]:
        request = Message(id="1", properties={"operation": f"com.microsoft:{operation}"}, body=body)
        await txn.send(node, request)
        (response,) = await responses.receive(1)
        await responses.propose(response, ACCEPTED)
        return response.message.properties["statusCode"], response.message

    return ask


BLUE = {"rule-name": "blue", "rule-description": {"correlation-filter": {"label": "blue"}}}


async def change(client: Any, topic: str, *, commits: bool) -> None:
    """Send a red message, and have the subscription get blue ones instead of red ones, in a transaction."""
    sender, ask = await client.sender(topic), await asker(client, topic)
    txn = await Txn(client).declare()
    await txn.send(sender, Message(subject="red", body="in the transaction"))
    assert (await ask(txn, "add-rule", BLUE))[0] == 200
    assert (await ask(txn, "remove-rule", {"rule-name": "red"}))[0] == 200
    await sender.send(Message(subject="blue", body="too early"))
    await (txn.commit() if commits else txn.abort())
    for colour in ("red", "blue"):
        await sender.send(Message(subject=colour, body=f"{colour}, after it"))


async def bodies(client: Any, topic: str) -> list[str]:
    receiver = await client.receiver(f"{topic}/Subscriptions/one", settled=True)
    return [each.message.body for each in await receiver.drain(10)]


def run(broker: BrokerProcess, scenario: Callable[[Any], Awaitable[None]]) -> None:
    script = Script(broker.addresses)

    async def connected() -> None:
        async with AsyncExitStack() as stack:
            await scenario(await stack.enter_async_context(script.connect()))

    script.run(connected())


def test_rules_and_messages_of_a_plain_topic_change_together_and_outlive_a_crash(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, []) as broker:
        topic = add_topic(broker, is_partitioned=False)
        run(broker, lambda client: change(client, topic, commits=True))
        broker.kill()
        broker.start()
        assert rules_of(broker, topic) == ["blue"]

        async def check(client: Any) -> None:
            assert await bodies(client, topic) == ["in the transaction", "blue, after it"]

        run(broker, check)


def test_a_roll_back_changes_no_rule(broker: BrokerProcess) -> None:
    topic = add_topic(broker, is_partitioned=False)

    async def scenario(client: Any) -> None:
        await change(client, topic, commits=False)
        assert await bodies(client, topic) == ["red, after it"]

    run(broker, scenario)
    assert rules_of(broker, topic) == ["red"]


def test_a_rule_that_cannot_be_changed_fails_the_whole_transaction(broker: BrokerProcess) -> None:
    topic = add_topic(broker, is_partitioned=False)

    async def scenario(client: Any) -> None:
        sender, ask = await client.sender(topic), await asker(client, topic)
        late = await Txn(client).declare()
        await late.send(sender, Message(subject="red", body="never"))
        assert (await ask(late, "remove-rule", {"rule-name": "red"}))[0] == 200
        early = await Txn(client).declare()
        assert (await ask(early, "add-rule", {**BLUE, "rule-name": "red"}))[0] == 409
        with pytest.raises(Refused, match="commit failed"):
            await early.commit()
        with admin_of(broker) as admin:
            admin.delete_rule(topic, "one", "red")
        with pytest.raises(Refused, match=r"commit failed.*amqp:transaction:rollback"):
            await late.commit()
        assert await bodies(client, topic) == []

    run(broker, scenario)


def test_rules_of_a_partitioned_topic_cannot_be_changed_in_a_transaction(broker: BrokerProcess) -> None:
    topic = add_topic(broker, is_partitioned=True)

    async def scenario(client: Any) -> None:
        ask = await asker(client, topic)
        for operation, body in (("add-rule", BLUE), ("remove-rule", {"rule-name": "red"})):
            txn = await Txn(client).declare()
            status, response = await ask(txn, operation, body)
            assert status == 400 and "hold on all partitions" in response.properties["statusDescription"]
            with pytest.raises(Refused, match="commit failed"):
                await txn.commit()

    run(broker, scenario)
    assert rules_of(broker, topic) == ["red"]
