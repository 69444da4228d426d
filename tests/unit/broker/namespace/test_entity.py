"""A running entity: its partitions start when they are used, and watchers hear of changes and the end."""

from __future__ import annotations

import asyncio

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MAIN, MESSAGE_OVERHEAD_BYTES, QueueSettings
from broker.identifiers import ClientId, LockToken
from broker.namespace.entity import TOLD_AT_ONCE
from broker.operations.general import Detach, Update
from broker.operations.interface import Operation
from broker.operations.message_states import SubqueueCounts
from broker.operations.receiving import Demand, Recalled
from broker.operations.settling import Release
from broker.partition.summary import Summary
from tests.support.namespace_world import Watcher, World, again
from tests.support.waiting import WAIT_S, until


async def test_a_new_queue_costs_no_partition_until_it_is_used(world: World) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    queue = world.queue("orders")
    assert world.parts == {} and queue.health() == ["closed"] * 4 and queue.available
    for operation in (Detach(), Release([]), Recalled("", [])):
        queue.router.handles[1].post(operation, ClientId(1), lambda answer: None)
    assert world.parts == {}, "what ends something starts nothing"
    queue.router.handles[2].post(Demand("", 1), ClientId(1), lambda answer: None)
    assert list(world.parts) == [("orders", 2)] and queue.health() == [
        "closed",
        "closed",
        "healthy",
        "closed",
    ]


async def test_a_partition_in_a_lost_folder_is_missing_however_often_clients_ask_for_it(world: World) -> None:
    """Symptom: it became `recovering` with the first client, so an alert on missing partitions resolved."""
    await world.namespace.create_entity("orders", QueueSettings())
    queue = world.queue("orders")
    for number, state in enumerate(("recovering", "opening", "healthy", "damaged")):
        queue.partition(number)
        part = world.parts["orders", number]
        part.health, part.available = state, state in ("opening", "healthy")
    assert queue.health() == ["recovering", "opening", "healthy", "damaged"]
    world.resting.lost_folders = {queue.folder_of(0)}
    seen = ["missing", "missing", "healthy", "damaged"]
    assert queue.health() == seen, "an open log may be used yet, and damage has another cause"
    counted: dict[str, int] = {}
    queue.count_health(counted)
    assert counted == {"missing": 2, "healthy": 1, "damaged": 1}
    assert queue.uncounted() == [0, 1, 3] and not queue.available
    for number in (1, 3):
        world.parts["orders", number].health, world.parts["orders", number].available = "healthy", True
    world.parts["orders", 0].health = "opening"
    world.parts["orders", 0].available = True
    assert not queue.available, "its log is not open, and cannot be opened"
    world.resting.lost_folders = frozenset()
    assert queue.health() == ["opening", "healthy", "healthy", "healthy"] and queue.available


@pytest.mark.parametrize("ends", [True, False])
async def test_thousands_of_watchers_are_told_over_several_turns(ends: bool, world: World) -> None:
    """Symptom: the deletion of a queue with 4,500 receivers held the event loop for 162 ms."""
    await world.namespace.create_entity("orders", QueueSettings())
    queue, watchers = world.queue("orders"), [Watcher() for _ in range(3 * TOLD_AT_ONCE)]
    queue.watchers.update(watchers)

    def told() -> int:
        return sum(watcher.changes + len(watcher.ended) for watcher in watchers)

    gone = Refused(Reason.ENTITY_NOT_FOUND, "deleted")
    work = asyncio.ensure_future(queue.end(gone) if ends else queue.update(queue.description))
    steps: list[int] = []
    left, late = list[Watcher](), Watcher()
    while not work.done():
        before = told()
        await asyncio.sleep(0)
        steps.append(told() - before)
        if before == 0 and steps[-1]:
            left = [each for each in watchers if not (each.changes or each.ended)][-1:]
            queue.watchers.difference_update(left)  # it leaves meanwhile
            queue.watchers.add(late)  # and another comes
    assert max(steps) <= TOLD_AT_ONCE and told() == len(watchers) - 1
    assert [each.changes + len(each.ended) for each in [*left, late]] == [0, 1]


async def test_an_update_ends_though_links_come_and_go_all_the_time(world: World) -> None:
    """Symptom: while one client attached and detached in a loop, an update of its queue never returned."""
    await world.namespace.create_entity("orders", QueueSettings())
    queue, late = world.queue("orders"), Watcher()

    class Follower(Watcher):
        """Another link comes with each that is told."""

        def queue_changed(self) -> None:
            super().queue_changed()
            queue.watchers.update((late, Follower()))

    queue.watchers.add(was_there := Follower())
    await asyncio.wait_for(queue.update(queue.description), WAIT_S)
    assert was_there.changes == late.changes == 1, "and those that came meanwhile are told"


async def test_a_handle_that_was_kept_reaches_the_partition_once_it_has_started(world: World) -> None:
    """Symptom: a receiver with a selector that was attached before the partitions started gave back no
    messages when it ended, and was never detached from them."""
    await world.namespace.create_entity("orders", QueueSettings())
    kept = world.queue("orders").router.handles[1]
    operations: list[Operation] = [Demand(MAIN, 1), Release([LockToken(bytes(16))]), Detach()]
    for operation in operations:
        kept.post(operation, ClientId(1), lambda answer: None)
    assert world.parts["orders", 1].posted == operations


async def test_an_update_is_durable_reaches_every_partition_that_lives_and_is_told_to_watchers(
    world: World,
) -> None:
    created = await world.namespace.create_entity("orders", QueueSettings())
    queue, watcher = world.queue("orders"), Watcher()
    queue.watchers.add(watcher)
    queue.partition(0)
    queue.partition(3)
    world.clock.advance(1_000)
    updated = await world.namespace.update_entity("Orders", QueueSettings(max_delivery_count=3))
    assert (updated.generation, updated.created_at_ms, updated.updated_at_ms) == (
        created.generation,
        created.created_at_ms,
        created.created_at_ms + 1_000,
    )
    assert queue.description is updated and watcher.changes == 1
    assert (
        all(any(isinstance(each, Update) for each in part.posted) for part in world.parts.values())
        and len(world.parts) == 2
    )
    restarted = await again(world)
    assert restarted.namespace.describe("orders") == updated
    await restarted.store.close()


async def test_an_update_while_a_partition_is_down_is_carried_out(world: World) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    queue, watcher = world.queue("orders"), Watcher()
    queue.watchers.add(watcher)
    queue.partition(0)
    world.parts["orders", 0].available = False
    updated = await world.namespace.update_entity("orders", QueueSettings(max_delivery_count=3))
    assert world.namespace.describe("orders") == updated and watcher.changes == 1


async def test_a_deleted_queue_is_gone_with_its_partitions_and_who_is_attached_hears_of_it(
    world: World,
) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    queue, watcher = world.queue("orders"), Watcher()
    queue.watchers.add(watcher)
    queue.partition(1)
    await world.namespace.delete_entity("ORDERS")
    assert world.namespace.find("orders") is None and world.parts["orders", 1].stopped
    (why,) = watcher.ended
    assert why.reason is Reason.ENTITY_NOT_FOUND and "could not be found" in why.description
    restarted = await again(world)
    assert list(restarted.namespace.descriptions()) == []
    await restarted.store.close()


async def test_the_size_is_known_without_counting_each_subqueue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 2,000 subscriptions, the counts of one partition take 10 ms."""
    await world.namespace.create_entity("orders", QueueSettings(max_size_mb=1))
    queue = world.queue("orders")
    for number, size in ((0, 1_000_000), (2, 10)):
        queue.partition(number)
        part = world.parts["orders", number]
        monkeypatch.setattr(part, "size", lambda size=size: size)
        monkeypatch.setattr(part, "counts", None)
    queue.check_room(2, 1_000_000)
    with pytest.raises(Refused, match="Size of partition in bytes: 1000000") as refused:
        queue.check_room(0, 100_000)
    assert refused.value.reason is Reason.QUOTA_EXCEEDED
    queue.check_room(1, 1_000_000)


async def test_closing_stops_every_partition_that_lives(world: World) -> None:
    for name in ("a", "b"):
        await world.namespace.create_entity(name, QueueSettings())
        world.queue(name).partition(1)
    await world.namespace.close()
    assert len(world.parts) == 2 and all(part.stopped for part in world.parts.values())


async def test_messages_that_wait_to_be_forwarded_are_transfer_messages(world: World) -> None:
    await world.namespace.create_entity("target", QueueSettings())
    await world.namespace.create_entity("orders", QueueSettings(forward_to="target"))
    queue = world.queue("orders")
    queue.partition(1)
    world.parts["orders", 1].held = {"": SubqueueCounts(active=3, scheduled=1)}
    runtime = queue.runtime()
    assert (runtime.active, runtime.transfer, runtime.scheduled, runtime.message_count) == (0, 3, 1, 4)


async def test_counts_are_known_without_counting_only_while_nothing_has_started(world: World) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    queue = world.queue("orders")
    assert queue.known_counts is None, "nobody has counted yet"
    assert queue.counts() == queue.known_counts == {}
    queue.partition(1)
    world.parts["orders", 1].held = {MAIN: SubqueueCounts(active=3)}
    assert queue.counts()[MAIN].active == 3 and queue.known_counts is None


async def test_whoever_asks_hears_of_partitions_that_start_and_of_those_that_may_hold_messages(
    world: World,
) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    queue = world.queue("orders")
    started: list[int] = []
    queue.at_start.append(started.append)
    assert not any(queue.may_hold(number, "") for number in range(4))
    queue.partition(2)
    queue.partition(2)
    assert started == [2] and [queue.may_hold(number, "") for number in range(4)] == [
        False,
        False,
        True,
        False,
    ]
    held = {0: SubqueueCounts(active=1), 1: SubqueueCounts(deferred=1)}
    await world.resting.opening(queue.description.generation, 3)
    world.resting.closed(queue.description.generation, 3, Summary(held, {}))
    assert queue.may_hold(3, "") and not queue.may_hold(3, "$deadletterqueue")


async def test_the_namespace_says_which_entities_change(world: World) -> None:
    heard: list[tuple[str, bool]] = []
    world.namespace.changed = lambda entity: heard.append((entity.name, entity.gone is None))
    await world.namespace.create_entity("orders", QueueSettings())
    await world.namespace.update_entity("orders", QueueSettings(forward_to="target"))
    await world.namespace.delete_entity("orders")
    assert heard == [("orders", True), ("orders", True), ("orders", False)]


async def test_closed_partitions_that_clients_ask_for_count_at_once_and_stay_closed_without_memory(
    world: World,
) -> None:
    """One read from a socket asks for thousands of them, before the first is being opened."""
    await world.namespace.create_entity("orders", QueueSettings())
    queue, resting, asked = world.queue("orders"), world.resting, list[int]()

    def ask() -> None:
        asked.append(resting.asked)
        resting.is_memory_scarce = resting.asked > 2

    resting.on_opening = ask
    queue.partition(3)
    assert [queue.spares(number, MAIN) for number in (3, 0, 1, 2, 0, 3)] == [
        False,
        False,
        False,
        True,
        True,
        False,
    ]
    assert asked == [1, 2, 3], "open partitions take no more, and without memory nobody asks"
    await until(lambda: resting.asked == 0)


async def test_while_memory_has_no_room_receivers_open_partitions_with_messages_one_by_one(
    world: World,
) -> None:
    """Symptom: after a restart, receivers of full queues had all partitions opened at once, and the kernel
    ended the broker."""
    await world.namespace.create_entity("orders", QueueSettings())
    queue, resting = world.queue("orders"), world.resting
    generation = queue.description.generation
    for number in range(3):
        await resting.opening(generation, number)
        resting.closed(generation, number, Summary({0: SubqueueCounts(active=1_000)}, {}))
    room = 2_500 * MESSAGE_OVERHEAD_BYTES
    resting.has_room = lambda size: size + resting.asked_bytes <= room
    assert [queue.awaits_room(number, MAIN) for number in range(4)] == [False, False, False, False]
    assert resting.asked_bytes == 2_000 * MESSAGE_OVERHEAD_BYTES, "two have room, and the third its turn"
    await until(lambda: resting.asked_bytes == 0)
    resting.is_memory_scarce = True
    assert [queue.awaits_room(number, MAIN) for number in range(4)] == [True, True, False, False]
    queue.partition(2)
    await queue.partition(2).opened()
    assert [queue.awaits_room(number, MAIN) for number in range(4)] == [False, True, False, False]
