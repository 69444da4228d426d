"""broker/frontend/links/subscribers.py: the subscription from which a JMS client's subscriber receives."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker.entities.descriptions import key_of
from broker.frontend.links.browse import BrowseLink
from broker.frontend.links.outgoing import OutgoingLink
from broker.namespace.meter import EntityMeter
from broker.namespace.topic import Topic
from protocol.codec import Array, Described, Symbol, TypeCode, UInt, ULong
from tests.support import raw_amqp as raw
from tests.support.link_stack import Client, LinkStack
from tests.support.topics import topic, with_subscription

UNSETTLED_STATE = 2


def stack_with_topic(*subscriptions: str) -> LinkStack:
    """A broker with the topic `orders`."""
    stack = LinkStack()
    description = topic(partitions=4)
    for name in subscriptions:
        description = with_subscription(description, name)
    stack.namespace.queues[key_of("orders")] = cast(
        Any,
        Topic(
            description,
            EntityMeter(stack.metrics, "orders"),
            lambda _, number: cast(Any, stack.parts[number]),
            stack.resting,
        ),
    )
    return stack


def subscriber(name: str, *capabilities: str, durability: int = UNSETTLED_STATE) -> list[Any]:
    """The attach of Qpid JMS (AMQP contract 5.1a)."""
    fields = raw.receiver_attach(0, None, name)
    wanted = Array(TypeCode.SYMBOL, [Symbol(each) for each in ("topic", *capabilities)])
    source = [
        "orders",
        UInt(durability),
        Symbol("never"),
        UInt(0),
        False,
        None,
        Symbol("copy"),
        None,
        None,
        None,
    ]
    fields[5] = Described(ULong(raw.SOURCE), [*source, wanted])
    return fields


async def served(stack: LinkStack, fields: list[Any]) -> tuple[Client, Any]:
    """What serves the link; None if it is refused."""
    client = await stack.connect()
    attach, *rest = await client.attach(fields)
    if raw.DETACH in [frame.code for frame in rest]:
        return client, None
    assert attach.field(5).value[0] == "orders", "the source is echoed"
    (link,) = client.connection.engine.links()
    return client, link.context


@pytest.mark.parametrize(
    ("link_name", "capabilities", "subscription"),
    [
        ("mine", (), "mine$raw$d"),
        ("MINE", (), "mine$raw$d"),
        ("mine", ("shared",), "mine$raw$d"),
        ("mine|2", ("shared",), "mine$raw$d"),
        ("ours|global", ("shared", "global"), "ours$$d"),
        ("ours|global2", ("shared", "global"), "ours$$d"),
        ("mine|global", ("shared", "global"), "mine"),
        ("plain", (), "plain"),
    ],
)
async def test_the_subscription_of_the_client_comes_before_the_one_of_that_name(
    link_name: str, capabilities: tuple[str, ...], subscription: str
) -> None:
    stack = stack_with_topic("mine", "mine$raw$D", "ours$$D", "plain")
    _, link = await served(stack, subscriber(link_name, *capabilities))
    assert isinstance(link, OutgoingLink) and link.subqueue == f"subscriptions/{subscription}"


async def test_a_subscriber_without_a_subscription_is_told_what_to_create() -> None:
    client = await stack_with_topic("other").connect()
    _, detach = await client.attach(subscriber("mine"))
    condition, sentence, _ = detach.field(2).value
    assert condition == "amqp:not-found"
    assert "'orders/Subscriptions/mine' could not be found" in sentence and "'mine$raw$D'" in sentence


async def test_a_subscriber_that_names_a_subscription_receives_from_it() -> None:
    fields = subscriber("any")
    fields[5].value[0] = "orders/Subscriptions/plain"
    client = await stack_with_topic("plain").connect()
    await client.attach(fields)
    (link,) = client.connection.engine.links()
    assert isinstance(link.context, OutgoingLink) and link.context.subqueue == "subscriptions/plain"


async def test_without_durability_the_distribution_mode_copy_is_a_browse() -> None:
    fields = subscriber("any", durability=0)
    fields[5].value[0] = "orders/Subscriptions/plain"
    client = await stack_with_topic("plain").connect()
    await client.attach(fields)
    (link,) = client.connection.engine.links()
    assert isinstance(link.context, BrowseLink)


async def test_a_shared_subscription_that_ends_with_its_receivers_is_refused() -> None:
    client = await stack_with_topic("plain").connect()
    _, detach = await client.attach(subscriber("plain|volatile1", "shared", durability=0))
    condition, sentence, _ = detach.field(2).value
    assert condition == "amqp:not-implemented" and "'shared'" in sentence and "durable" in sentence


async def test_an_attach_that_would_unsubscribe_is_refused() -> None:
    fields = raw.receiver_attach(0, None, "plain")
    fields[5] = None
    client = await stack_with_topic("plain").connect()
    _, detach = await client.attach(fields)
    condition, sentence, _ = detach.field(2).value
    assert condition == "amqp:not-implemented" and "delete the subscription" in sentence
