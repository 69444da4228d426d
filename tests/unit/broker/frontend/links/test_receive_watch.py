"""Receiving links close when their queue no longer lets clients receive, or is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import DEAD_LETTER, MAIN, EntityStatus
from broker.frontend.links.receive_watch import ReceiveWatch
from tests.support import raw_amqp as raw
from tests.support.link_stack import Client, LinkStack


async def watched(subqueue: str = MAIN) -> tuple[LinkStack, Client, ReceiveWatch]:
    """A receiver whose own watch is replaced by one of this test."""
    stack = LinkStack()
    client = await stack.connect()
    await client.receiver()
    stack.queue.watchers.clear()
    (link,) = client.connection.engine.links()
    return stack, client, ReceiveWatch(client.connection, link, stack.queue, subqueue)


def disable(stack: LinkStack, status: EntityStatus) -> None:
    description = stack.queue.description
    stack.queue.description = replace(description, settings=replace(description.settings, status=status))
    for watcher in list(stack.queue.watchers):
        watcher.queue_changed()


@pytest.mark.parametrize("subqueue", [MAIN, DEAD_LETTER])
async def test_a_link_closes_when_clients_may_not_receive_any_more(subqueue: str) -> None:
    stack, client, watch = await watched(subqueue)
    disable(stack, EntityStatus.SEND_DISABLED)
    assert await client.heard(raw.DETACH) == []
    disable(stack, EntityStatus.RECEIVE_DISABLED)
    (detach,) = await client.heard(raw.DETACH)
    assert detach.field(2).value[0] == "com.microsoft:entity-disabled"
    watch.end()


async def test_a_link_closes_with_its_queue() -> None:
    stack, client, _ = await watched()
    for watcher in list(stack.queue.watchers):
        watcher.queue_ended(Refused(Reason.ENTITY_NOT_FOUND, "gone"))
    (detach,) = await client.heard(raw.DETACH)
    assert detach.field(2).value[0] == "amqp:not-found"


async def test_a_watch_that_has_ended_hears_nothing() -> None:
    stack, client, watch = await watched()
    watch.end()
    watch.end()
    assert not stack.queue.watchers
    disable(stack, EntityStatus.DISABLED)
    assert await client.heard(raw.DETACH) == []
