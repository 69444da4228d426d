"""Counting what queues hold: which partitions are opened for it, and how long it waits."""

from __future__ import annotations

import asyncio

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.namespace.entity import ask
from broker.namespace.namespace import OPENING_MAX
from broker.namespace.runtime import sum_up
from broker.operations.message_states import SubqueueCounts
from broker.operations.sending import Send
from storage.errors import DiskFailed
from tests.support.namespace_world import Part, World
from tests.support.waiting import WAIT_S


async def test_only_partitions_that_have_a_log_are_opened_to_be_counted_and_so_many_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    description = await world.namespace.create_entity("orders", QueueSettings(), 200)
    await world.namespace.runtime("orders")
    assert world.parts == {} and await world.store.entities() == []
    for number in (7, *range(100, 160)):
        log = world.store.log(description.generation, number)
        await log.acquire()
        await log.close()
    opening, most = 0, 0

    async def opened(part: Part) -> None:
        nonlocal opening, most
        opening += 1
        most = max(most, opening)
        await asyncio.sleep(0)
        opening -= 1

    monkeypatch.setattr(Part, "opened", opened)
    world.queue("orders").partition(3)  # in use, though its log does not exist yet
    await asyncio.gather(*(world.namespace.runtime("orders") for _ in range(3)))
    assert {number for _, number in world.parts} == {3, 7, *range(100, 160)}
    assert most == OPENING_MAX


async def test_where_the_disk_does_not_say_which_logs_there_are_all_partitions_are_opened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.namespace.create_entity("orders", QueueSettings(), 3)

    async def fails(entity: str) -> list[int]:
        raise DiskFailed("broken")

    monkeypatch.setattr(world.store, "partitions", fails)
    await world.namespace.runtime("orders")
    assert {number for _, number in world.parts} == {0, 1, 2}


async def test_who_counts_all_queues_waits_once_for_the_check_and_for_what_is_unknown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[float]()

    async def all_known(within_s: float) -> bool:
        waited.append(within_s)
        return False

    monkeypatch.setattr(world.resting, "all_known", all_known)
    world.namespace._checking = asyncio.create_task(asyncio.sleep(3_600))  # a disk that hangs
    await world.namespace.counted(0.02)
    assert waited == [0.0], "Prometheus gives up after 10 s, and this took twice the 8 s that it may"


async def test_who_lists_queues_waits_for_all_their_partitions_at_once_and_not_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = 0, 0

    async def opened(part: Part) -> None:
        nonlocal begun, ended
        begun += 1
        try:
            await asyncio.Event().wait()  # its disk hangs
        finally:
            ended += 1

    monkeypatch.setattr(Part, "opened", opened)
    for name in ("bills", "orders", "parcels"):
        description = await world.namespace.create_entity(name, QueueSettings(), 4)
        world.resting._unknown[description.generation] = {0, 1, 2, 3}
    queues = [world.queue(name) for name in ("bills", "orders", "parcels")]
    await asyncio.wait_for(world.namespace.opened(queues, within_s=0.02), WAIT_S)
    assert begun == 12, "no queue waits for the one before it"
    await asyncio.sleep(0.01)
    assert ended == 12, "nobody waits on"
    assert all(queue.unknown for queue in queues)


async def test_a_queue_that_is_deleted_while_it_is_counted_wakes_no_partition_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    description = await world.namespace.create_entity("orders", QueueSettings(), 2)
    queue, listing, go_on = world.queue("orders"), asyncio.Event(), asyncio.Event()

    async def partitions(entity: str) -> list[int]:
        listing.set()
        await go_on.wait()
        return [0, 1]

    monkeypatch.setattr(world.store, "partitions", partitions)
    counting = asyncio.create_task(world.namespace.runtime("orders"))
    await listing.wait()
    await world.namespace.delete_entity("orders")
    go_on.set()
    with pytest.raises(Refused) as refused:
        await counting
    assert refused.value.reason is Reason.ENTITY_NOT_FOUND and world.parts == {}
    with pytest.raises(Refused) as refused:  # a link that has not heard of the deletion yet
        await ask(queue.router.keyed("a"), Send([b""], None))
    assert refused.value.reason is Reason.ENTITY_NOT_FOUND and world.parts == {}
    assert description.generation not in await world.store.entities()


async def test_what_some_subqueues_hold_is_counted_apart_from_the_others(world: World) -> None:
    """The subscriptions of a topic are counted so."""
    await world.namespace.create_entity("orders", QueueSettings(), 1)
    queue = world.queue("orders")
    queue.partition(0)
    world.parts["orders", 0].held = {
        MAIN: SubqueueCounts(active=1, scheduled=2, bytes=30),
        DEAD_LETTER: SubqueueCounts(active=4, deferred=1, bytes=50),
    }
    runtime = queue.runtime()
    assert (runtime.active, runtime.scheduled, runtime.dead_letter) == (1, 2, 5)
    assert (runtime.message_count, runtime.size_bytes) == (8, 80)
    dead_letters = {1: queue.description.subqueues[1]}
    runtime = sum_up(dead_letters, None, queue.counts(), True, None)
    assert (runtime.active, runtime.dead_letter, runtime.message_count, runtime.size_bytes) == (0, 5, 5, 50)
    main = {0: queue.description.subqueues[0]}
    runtime = sum_up(main, "elsewhere", queue.counts(), True, None)
    assert (runtime.active, runtime.transfer) == (0, 1)
