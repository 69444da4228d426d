"""A claim ends with the key behind it: what a live connection may do after a queue's keys have changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import AuthorizationRule
from broker.frontend.nodes.cbs import CbsNode
from broker.frontend.nodes.request_node import Request
from tests.support import raw_amqp as raw
from tests.support.link_stack import Client, LinkStack
from tests.support.sas import sas_token

APP = AuthorizationRule("app", "first key", "second key", frozenset({"Send", "Listen"}))


async def bench(stack: LinkStack, key: str = "first key", key_name: str = "app") -> Client:
    client = await stack.connect(raw.sasl_anonymous())
    await put(client, stack, "sb://test/queue", key_name, key)
    return client


async def put(client: Client, stack: LinkStack, audience: str, key_name: str, key: str) -> None:
    token = sas_token(audience, key_name=key_name, key=key, expires_at_s=stack.clock.now_ms() // 1000 + 600)
    request = Request("id", None, {"operation": "put-token", "type": "jwt", "name": audience}, token)
    response = await CbsNode(client.connection).respond(request)
    assert response.properties["status-code"] == 202, response.properties


def with_queue_rules() -> LinkStack:
    stack = LinkStack()
    stack.namespace.change_rules("queue", APP)
    return stack


@pytest.mark.parametrize(
    "after",
    [
        [],
        [AuthorizationRule("app", "new key", "second key", frozenset({"Send", "Listen"}))],
        [AuthorizationRule("other", "first key", "second key", frozenset({"Send", "Listen"}))],
    ],
    ids=["removed", "changed", "another name"],
)
async def test_links_end_and_nothing_can_be_attached_once_the_key_is_not_in_force(
    after: list[AuthorizationRule],
) -> None:
    stack = with_queue_rules()
    client = await bench(stack)
    await client.sender()
    stack.namespace.change_rules("queue", *after)
    (detach,) = await client.heard(raw.DETACH)
    condition, text, _ = detach.field(2).value
    assert (
        condition == "amqp:unauthorized-access" and "removed or changed" in text and "first key" not in text
    )
    assert not client.connection.claims
    with pytest.raises(Refused) as refused:
        client.connection.authorize("queue", "Send", "Listen")
    assert refused.value.reason is Reason.UNAUTHORIZED


async def test_a_right_that_a_rule_loses_ends_the_links_that_need_it_and_no_others() -> None:
    stack = with_queue_rules()
    sending, receiving = await bench(stack), await bench(stack)
    await sending.sender()
    await receiving.receiver()
    stack.namespace.change_rules(
        "queue", AuthorizationRule("app", "first key", "second key", frozenset({"Listen"}))
    )
    assert len(await sending.heard(raw.DETACH)) == 1 and await receiving.hear() == []
    for client in (sending, receiving):
        client.connection.authorize("queue", "Listen")
        with pytest.raises(Refused):
            client.connection.authorize("queue", "Send")


@pytest.mark.parametrize(
    "after",
    [
        [AuthorizationRule("app", "new key", "first key", frozenset({"Send", "Listen"}))],
        [APP, AuthorizationRule("other", "its key", "", frozenset({"Listen"}))],
    ],
    ids=["the key is the secondary one", "a rule was added"],
)
async def test_links_stay_while_the_key_is_in_force(after: list[AuthorizationRule]) -> None:
    stack = with_queue_rules()
    client = await bench(stack)
    await client.sender()
    stack.namespace.change_rules("queue", *after)
    assert await client.hear() == []
    client.connection.authorize("queue", "Send")


async def test_a_key_of_the_namespace_does_not_depend_on_a_queues_rules() -> None:
    stack = with_queue_rules()
    client = await bench(stack, "SAS_KEY_VALUE", "RootManageSharedAccessKey")
    logged_in = await stack.connect()
    for each in (client, logged_in):
        await each.sender()
    stack.namespace.change_rules("queue")
    assert [await each.hear() for each in (client, logged_in)] == [[], []]


async def test_a_client_that_has_logged_in_hears_that_its_login_is_no_longer_in_force() -> None:
    """It has put no token, so its user would look for the mistake in the wrong place."""
    stack = LinkStack()
    client = await stack.connect()
    await client.sender()
    authorizer = client.connection.served.authorizer
    authorizer.namespace_rules = tuple(
        replace(rule, primary_key="new key") for rule in authorizer.namespace_rules
    )
    for changed in stack.namespace.when_rules_change:
        changed()
    (detach,) = await client.heard(raw.DETACH)
    condition, text, _ = detach.field(2).value
    assert condition == "amqp:unauthorized-access" and "log in again" in text and "token" not in text


async def test_a_key_of_a_parent_ends_with_the_parents_rule_below_it_too() -> None:
    stack = with_queue_rules()
    stack.add_queue("queue/below", 4)
    client: Any = await bench(stack)
    await client.sender(address="queue/below")
    stack.namespace.change_rules("queue")
    assert len(await client.heard(raw.DETACH)) == 1


async def test_another_claim_for_the_same_queue_keeps_the_links() -> None:
    stack = with_queue_rules()
    client = await bench(stack)
    await put(client, stack, "sb://test/queue/$management", "RootManageSharedAccessKey", "SAS_KEY_VALUE")
    await client.sender()
    await put(client, stack, "sb://test/queue", "RootManageSharedAccessKey", "SAS_KEY_VALUE")
    stack.namespace.change_rules("queue")
    assert await client.hear() == [] and len(client.connection.claims) == 2
