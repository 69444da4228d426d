"""A queue: what clients may do with it, and with which of its subqueues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, EntityStatus, QueueSettings
from broker.namespace.queue import Queue
from tests.support.namespace_world import World

SUBQUEUES = (MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER)


async def made(world: World, settings: QueueSettings) -> Queue:
    await world.namespace.create_entity("orders", QueueSettings())
    queue = world.queue("orders")
    assert isinstance(queue, Queue)
    queue.description = replace(queue.description, settings=settings)
    return queue


@pytest.mark.parametrize("subqueue", [DEAD_LETTER, TRANSFER_DEAD_LETTER])
async def test_clients_send_to_the_main_subqueue_only(world: World, subqueue: str) -> None:
    queue = await made(world, QueueSettings())
    queue.check_can_send(MAIN)
    with pytest.raises(Refused, match="dead-letter queue") as refused:
        queue.check_can_send(subqueue)
    assert refused.value.reason is Reason.NOT_ALLOWED


@pytest.mark.parametrize(
    ("status", "sends", "receives"),
    [
        (EntityStatus.ACTIVE, True, True),
        (EntityStatus.SEND_DISABLED, False, True),
        (EntityStatus.RECEIVE_DISABLED, True, False),
        (EntityStatus.DISABLED, False, False),
    ],
)
async def test_the_status_says_whether_clients_may_send_and_receive(
    world: World, status: EntityStatus, sends: bool, receives: bool
) -> None:
    queue = await made(world, QueueSettings(status=status))
    checks = [(queue.check_can_send, MAIN, sends)]
    checks += [(queue.check_can_receive, subqueue, receives) for subqueue in SUBQUEUES]
    for check, subqueue, allowed in checks:
        try:
            check(subqueue)
        except Refused as refused:
            assert not allowed and refused.reason is Reason.ENTITY_DISABLED
            assert status.value in refused.description and "'orders'" in refused.description
        else:
            assert allowed


async def test_dead_letter_subqueues_have_no_sessions(world: World) -> None:
    queue = await made(world, QueueSettings(requires_session=True))
    assert [queue.requires_session(subqueue) for subqueue in SUBQUEUES] == [True, False, False]


async def test_a_subqueue_whose_messages_are_forwarded_has_no_receivers(world: World) -> None:
    for settings, forwarded in (
        (QueueSettings(forward_to="target"), MAIN),
        (QueueSettings(forward_dead_lettered_to="target"), DEAD_LETTER),
    ):
        queue = await made(world, settings)
        queue.check_can_send(MAIN)
        for subqueue in SUBQUEUES:
            if subqueue != forwarded:
                queue.check_can_receive(subqueue)
        with pytest.raises(Refused, match=r"auto-forwarding enabled.*'orders'.*'target'") as refused:
            queue.check_can_receive(forwarded)
        assert refused.value.reason is Reason.NOT_ALLOWED
        await world.namespace.delete_entity("orders")
