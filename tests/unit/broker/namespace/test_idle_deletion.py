"""When idle queues are deleted, what counts as use, and what a restart keeps. Time is the test's."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat

import pytest
from structlog.testing import capture_logs

from broker.base.errors import Refused
from broker.entities.descriptions import MAIN, QueueSettings
from broker.entities.documents import decode_description
from broker.entities.rules import RuleDescription
from broker.entities.topics import SubscriptionSettings, TopicDescription, TopicSettings
from broker.namespace.entity import Entity
from broker.namespace.idle_deletion import LOOKED_AT_ONCE, Candidate, candidates
from broker.namespace.topic import Topic
from broker.operations.message_states import SubqueueCounts
from tests.support.namespace_world import Watcher, World, again

PERIOD_MS = 800_000
SETTINGS = QueueSettings(auto_delete_on_idle_ms=PERIOD_MS)


async def pass_time(world: World, milliseconds: int, step_ms: int = 25_000) -> None:
    """Advance the clock, with a look at each step."""
    while milliseconds > 0:
        world.clock.advance(min(step_ms, milliseconds))
        milliseconds -= step_ms
        await world.namespace.idle_deletion.look()


async def create(world: World, name: str = "orders", settings: QueueSettings = SETTINGS) -> Entity:
    await world.namespace.create_entity(name, settings)
    await world.namespace.idle_deletion.look()
    return world.queue(name)


async def kept_ms(world: World) -> int:
    """How long the queue has been idle according to its catalogue entry."""
    (content,) = (await world.namespace._catalogue.load_all()).values()
    return decode_description(content).idle_ms


async def test_an_idle_queue_is_deleted_at_its_time_with_its_watchers_told(world: World) -> None:
    queue = await create(world)
    await create(world, "kept", QueueSettings())
    await pass_time(world, PERIOD_MS - 1)
    assert world.namespace.find("orders") is queue
    await pass_time(world, 1)
    assert [each.name for each in world.namespace.descriptions()] == ["kept"]
    assert queue.gone is not None
    restarted = await again(world)
    assert [each.name for each in restarted.namespace.descriptions()] == ["kept"]
    await restarted.store.close()


def access(world: World, queue: Entity) -> None:
    queue.accessed_at_ms = world.clock.now_ms()


def schedule(world: World, queue: Entity) -> None:
    queue.partition(0)
    world.parts[queue.name, 0].held = {MAIN: SubqueueCounts(scheduled=1)}


def end_schedule(world: World, queue: Entity) -> None:
    world.parts[queue.name, 0].held = {}


def attach(world: World, queue: Entity) -> None:
    queue.watchers.add(Watcher())


def detach(world: World, queue: Entity) -> None:
    queue.watchers.clear()


def nothing(world: World, queue: Entity) -> None:
    pass


@pytest.mark.parametrize(
    ("use", "end"),
    [(access, nothing), (schedule, end_schedule), (attach, detach)],
    ids=lambda each: each.__name__,
)
async def test_use_begins_the_time_anew(
    world: World, use: Callable[[World, Entity], None], end: Callable[[World, Entity], None]
) -> None:
    queue = await create(world)
    await pass_time(world, PERIOD_MS - 1)
    use(world, queue)
    await pass_time(world, 25_000)
    if end is not nothing:
        await pass_time(world, 3 * PERIOD_MS)
    end(world, queue)
    await pass_time(world, PERIOD_MS - 25_001)
    assert world.namespace.find("orders") is queue
    await pass_time(world, 25_001)
    assert world.namespace.find("orders") is None


@pytest.mark.parametrize("use", [access, schedule, attach], ids=lambda each: each.__name__)
async def test_a_queue_used_while_its_deletion_waits_for_its_turn_stays(
    world: World, use: Callable[[World, Entity], None]
) -> None:
    queue = await create(world)
    await pass_time(world, PERIOD_MS - 1)
    async with world.namespace._changes.lock("orders"):
        deletion = asyncio.create_task(pass_time(world, 1))
        await asyncio.sleep(0)
        use(world, queue)
    await asyncio.wait_for(deletion, 30)
    assert world.namespace.find("orders") is queue and queue.gone is None


async def test_a_new_queue_of_the_same_name_is_not_deleted_for_the_old_one(world: World) -> None:
    queue = await create(world)
    await pass_time(world, PERIOD_MS - 1)
    async with world.namespace._changes.lock("orders"):
        changes = [
            asyncio.create_task(world.namespace.delete_entity("orders")),
            asyncio.create_task(world.namespace.create_entity("orders", SETTINGS)),
            asyncio.create_task(pass_time(world, 1)),
        ]
        await asyncio.sleep(0)
        assert queue.gone is None
    await asyncio.wait_for(asyncio.gather(*changes), 30)
    assert world.namespace.find("orders") not in (None, queue)


async def test_an_update_counts_as_use_and_may_take_the_setting_away(world: World) -> None:
    queue = await create(world)
    await pass_time(world, PERIOD_MS - 1)
    await world.namespace.update_entity("orders", replace(SETTINGS, max_delivery_count=3))
    await pass_time(world, PERIOD_MS - 1)
    assert world.namespace.find("orders") is queue
    await world.namespace.update_entity("orders", QueueSettings())
    await pass_time(world, 3 * PERIOD_MS)
    assert world.namespace.find("orders") is queue


async def test_a_restart_keeps_eighths_of_the_time_and_time_while_down_does_not_count(world: World) -> None:
    await create(world)
    await pass_time(world, 650_000)
    assert await kept_ms(world) == 600_000
    world.clock.advance(100 * PERIOD_MS)
    restarted = await again(world)
    await restarted.namespace.idle_deletion.look()
    await pass_time(restarted, 199_999)
    assert restarted.namespace.find("orders") is not None
    await pass_time(restarted, 1)
    assert restarted.namespace.find("orders") is None
    await restarted.store.close()


async def test_once_the_queue_is_used_a_restart_begins_anew(world: World) -> None:
    queue = await create(world)
    await pass_time(world, 650_000)
    access(world, queue)
    await world.namespace.idle_deletion.look()
    assert await kept_ms(world) == 0
    restarted = await again(world)
    await restarted.namespace.idle_deletion.look()
    await pass_time(restarted, PERIOD_MS - 1)
    assert restarted.namespace.find("orders") is not None
    await restarted.store.close()


async def test_a_full_disk_is_tried_again_at_the_next_look(world: World) -> None:
    queue = await create(world)
    await pass_time(world, 75_000)
    with capture_logs() as lines:
        world.disk.fail("write", errno.ENOSPC, path_part="catalogue", times=1_000)
        await pass_time(world, 25_000)
        world.disk.heal()
    assert any(line["event"] == "entity.idle_not_handled" for line in lines)
    assert queue.description.idle_ms == 0
    await pass_time(world, 25_000)
    assert await kept_ms(world) == 100_000


async def test_only_a_queue_that_is_deleted_is_logged_as_idle(world: World) -> None:
    queue = await create(world)
    await pass_time(world, PERIOD_MS - 1)
    with capture_logs() as lines:
        async with world.namespace._changes.lock("orders"):
            deletion = asyncio.create_task(pass_time(world, 1))
            await asyncio.sleep(0)
            access(world, queue)
        await asyncio.wait_for(deletion, 30)
        assert "entity.idle" not in [line["event"] for line in lines]
        await pass_time(world, 2 * PERIOD_MS)
    assert len([line for line in lines if line["event"] == "entity.idle"]) == 1
    assert world.namespace.find("orders") is None


ONE = "subscriptions/one"


async def create_topic(world: World, **settings: int) -> Topic:
    """A topic with two subscriptions, of which `one` is to be deleted when it is idle."""
    await world.namespace.create_entity("events", TopicSettings(**settings))  # type: ignore[arg-type]
    for name, period_ms in (("one", PERIOD_MS), ("two", None)):
        of_subscription = SubscriptionSettings(auto_delete_on_idle_ms=period_ms)
        await world.namespace.subscriptions.create("events", name, of_subscription, [])
    await world.namespace.idle_deletion.look()
    topic = world.queue("events")
    assert isinstance(topic, Topic)
    return topic


def subscriptions_of(world: World) -> list[str]:
    topic = world.queue("events").description
    assert isinstance(topic, TopicDescription)
    return [each.name for each in topic.subscriptions]


async def test_an_idle_subscription_is_deleted_though_its_topic_is_used(world: World) -> None:
    topic = await create_topic(world)
    topic.watchers.add(Watcher(MAIN))
    await pass_time(world, PERIOD_MS - 1)
    topic.note_access(MAIN, world.clock.now_ms())
    assert subscriptions_of(world) == ["one", "two"]
    await pass_time(world, 1)
    assert subscriptions_of(world) == ["two"]
    restarted = await again(world)
    assert subscriptions_of(restarted) == ["two"]
    await restarted.store.close()


@pytest.mark.parametrize("use", ["access", "attach", "update", "rule"])
async def test_use_of_a_subscription_begins_its_time_anew_and_is_no_use_of_its_topic(
    world: World, use: str
) -> None:
    topic = await create_topic(world, auto_delete_on_idle_ms=2 * PERIOD_MS)
    await pass_time(world, PERIOD_MS - 1)
    watcher = Watcher(f"{ONE}/$deadletterqueue")
    changes = world.namespace.subscriptions
    match use:
        case "access":
            topic.note_access(ONE, world.clock.now_ms())
        case "attach":
            topic.watchers.add(watcher)
        case "update":
            await changes.update("events", "one", SubscriptionSettings(auto_delete_on_idle_ms=PERIOD_MS))
        case _:
            await changes.add_rule("events", "one", RuleDescription("red"))
    await pass_time(world, 25_000)
    topic.watchers.discard(watcher)
    await pass_time(world, PERIOD_MS - 25_001)
    assert subscriptions_of(world) == ["one", "two"]
    await pass_time(world, 25_002)
    assert world.namespace.find("events") is None, "it was idle all the time"


async def test_a_restart_keeps_how_long_a_subscription_has_been_idle(world: World) -> None:
    await create_topic(world)
    await pass_time(world, PERIOD_MS // 2)
    restarted = await again(world)
    await restarted.namespace.idle_deletion.look()
    await pass_time(restarted, PERIOD_MS // 2 - 1)
    assert subscriptions_of(restarted) == ["one", "two"]
    await pass_time(restarted, 1)
    assert subscriptions_of(restarted) == ["two"]
    await restarted.store.close()


async def test_a_subscription_used_while_its_deletion_waits_for_its_turn_stays(world: World) -> None:
    topic = await create_topic(world)
    await pass_time(world, PERIOD_MS - 1)
    async with world.namespace._changes.lock("events"):
        deletion = asyncio.create_task(pass_time(world, 1))
        await asyncio.sleep(0)
        topic.note_access(ONE, world.clock.now_ms())
    await asyncio.wait_for(deletion, 30)
    assert subscriptions_of(world) == ["one", "two"]


async def test_only_entities_with_the_setting_are_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(world, "kept", QueueSettings())
    await create(world, "given")
    await create(world, "taken")
    await create(world, "deleted")
    await create_topic(world)
    await world.namespace.update_entity("taken", QueueSettings())
    await world.namespace.update_entity("kept", replace(SETTINGS, max_delivery_count=3))
    await world.namespace.update_entity("kept", QueueSettings())
    await world.namespace.delete_entity("deleted")
    looked_at: list[str] = []

    def noting(entity: Entity) -> Iterator[Candidate]:
        looked_at.append(entity.name)
        return candidates(entity)

    monkeypatch.setattr("broker.namespace.idle_deletion.candidates", noting)
    await world.namespace.idle_deletion.look()
    assert sorted(looked_at) == ["events", "given"]
    await world.namespace.subscriptions.delete("events", "one")
    looked_at.clear()
    await world.namespace.idle_deletion.look()
    assert looked_at == ["given"]


async def test_a_queue_out_of_service_is_looked_at_once_its_entry_is_confirmed(world: World) -> None:
    queue = await create(world)
    world.disk.fail("sync_directory", errno.EIO, path_part="catalogue", times=1_000)
    with pytest.raises(Refused):
        await world.namespace.delete_entity("orders")
    assert queue.gone is not None and not world.namespace.idle_deletion._entities
    world.disk.heal()
    await world.namespace.update_entity("orders", SETTINGS)
    again = world.queue("orders")
    assert again is not queue and world.namespace.idle_deletion._entities == {again}
    await pass_time(world, PERIOD_MS)
    await pass_time(world, 25_000)
    assert world.namespace.find("orders") is None


async def test_a_queue_is_looked_at_though_the_caller_that_changed_it_has_gone(world: World) -> None:
    queue = await create(world, settings=QueueSettings())
    queue.partition(0)
    hangs = asyncio.Event()

    async def hang(partition: object) -> None:
        hangs.set()
        await asyncio.Event().wait()

    queue._tell = hang  # type: ignore[method-assign]
    update = asyncio.create_task(world.namespace.update_entity("orders", SETTINGS))
    await asyncio.wait_for(hangs.wait(), 30)
    update.cancel()
    await asyncio.wait([update])
    await world.namespace.idle_deletion.look()
    await pass_time(world, PERIOD_MS)
    assert world.namespace.find("orders") is None


async def test_a_look_at_many_candidates_takes_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await create(world)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    for many, at_least in ((LOOKED_AT_ONCE - 1, 0), (3 * LOOKED_AT_ONCE, 3)):
        monkeypatch.setattr(
            "broker.namespace.idle_deletion.candidates",
            lambda entity, many=many: repeat(Candidate(entity, PERIOD_MS), many),
        )
        turns = 0
        await world.namespace.idle_deletion.look()
        assert at_least <= turns <= at_least + 1
    counting.cancel()
