"""What forwarding leaves in a partition is found when the partition starts, or comes back: numbers of sources
that nobody needs are forgotten, and messages for other entities go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import TRANSFER, EntityStatus, QueueSettings
from broker.entities.rules import RuleDescription
from broker.entities.topics import SubscriptionSettings, TopicDescription
from broker.message.stored import store_run
from broker.messaging import forward_lane, forward_retry
from broker.messaging.forward_lane import Lane
from broker.messaging.forward_leftovers import Leftovers, _Visit
from broker.messaging.sends import transfer_of
from broker.namespace.entity import Entity, ask
from broker.operations.general import Failed
from broker.operations.interface import Answer
from broker.operations.sending import Send
from broker.operations.transactions import Transact
from broker.operations.transfers import SourcesFound, source_of
from broker.partition.health import Health
from broker.partition.origins import Origins
from storage.errors import DiskFailed
from tests.support.forwarding_world import World, held_now, message_of, world
from tests.support.memory_log import MemoryLog
from tests.support.waiting import until

PLAIN, TO_B = QueueSettings(), QueueSettings(forward_to="b")
PAUSED = replace(TO_B, status=EntityStatus.RECEIVE_DISABLED)


@pytest.fixture(autouse=True)
def timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_retry, "RETRY_S", 0.001)
    monkeypatch.setattr(forward_retry, "RETRY_S_MAX", 0.01)
    monkeypatch.setattr(forward_lane, "FORGET_S", 60.0)


def keeps(here: World) -> bool:
    """Whether the only partition of "b" keeps numbers."""
    partition = here.partitions["b", 0]._partition
    return partition is not None and bool(partition.messages.states.of(Origins).sources)


def lane_of(here: World) -> Lane:
    (forwarded,) = here.forwarding._forwarded.values()
    return forwarded._lanes[0]


async def crashed(here: World) -> None:
    """Forward a message, and crash before the target has forgotten it."""
    await here.send("a", "x")
    await here.until_at("b", 1)
    await here.until_empty("a")
    assert keeps(here)
    await here.crash()


async def test_after_a_crash_a_target_forgets_a_source_that_was_deleted() -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        await crashed(here)
        del here.descriptions["a"], here.disks["a", 0]
        here.start()
        await here.wake_all()
        await until(lambda: not keeps(here))


async def test_after_a_crash_an_idle_lane_has_its_target_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        await crashed(here)
        monkeypatch.setattr(forward_lane, "FORGET_S", 0.001)
        here.start()
        await here.wake_all()
        await until(lambda: not keeps(here))
        (forwarded,) = here.forwarding._forwarded.values()
        lane = forwarded._lanes[0]
        await until(lambda: lane._task is None)
        assert lane._forget_timer is None and not lane._outlets


@pytest.mark.parametrize("settings", [PAUSED, PLAIN], ids=["paused", "off"])
async def test_after_a_crash_a_target_keeps_what_a_source_may_hand_over_again(
    settings: QueueSettings,
) -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        await crashed(here)
        here.descriptions["a"] = replace(here.descriptions["a"], settings=settings)
        here.start()
        await here.wake_all()
        await until(lambda: not here.forwarding._leftovers._visits)
        assert keeps(here)


async def test_a_target_that_was_down_when_its_source_ended_forgets_it_once_it_is_back() -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        await here.send("a", "x")
        await here.until_at("b", 1)
        await here.until_empty("a")
        down = True
        log = here.logs["b", 0]
        log.on_acquire = lambda: DiskFailed("down") if down else None
        log.on_append = lambda commit, urgent: DiskFailed("down")
        with pytest.raises(Refused):
            await here.send("b", "fails")
        await here.delete("a")
        await until(lambda: here.forwarding._leftovers._visits)
        down, log.on_append = False, lambda commit, urgent: None
        here.clock.advance(60_000)
        here.partitions["b", 0].wake()
        await until(lambda: not here.forwarding._leftovers._visits)
        await until(lambda: here.partitions["b", 0].health == "healthy" and not keeps(here))


@pytest.mark.parametrize("is_late", [False, True], ids=["opened", "opened late"])
async def test_messages_for_other_entities_go_on_once_their_partition_opens(is_late: bool) -> None:
    async with world(via=(1, PLAIN), b=(1, PLAIN)) as here:
        run = store_run([message_of("x")], str)
        sent = transfer_of(Send(run.data, None), "b")
        await ask(here.entities["via"].router.handles[0], Transact(Send([], None), [], transfers=sent))
        await here.crash()
        down = is_late

        def refuse(name: str, number: int, log: MemoryLog) -> None:
            log.on_acquire = lambda: DiskFailed("down") if down and name == "via" else None

        here.on_log = refuse
        here.start()
        await here.entities["via"].wake(0)
        if is_late:
            await until(lambda: any(each._waits for each in here.forwarding._leftovers._visits.values()))
            down = False
            here.clock.advance(60_000)
            here.partitions["via", 0].wake()
        assert await here.until_at("b", 1) == ["x"]
        await here.until_empty("via", TRANSFER)


async def test_nothing_is_asked_after_the_end() -> None:
    async with world(a=(1, PLAIN)) as here:
        await here.send("a", "x")
        here.forwarding._leftovers.look(here.entities["a"], 0)
        await here.forwarding.stop()
        here.forwarding._leftovers.look(here.entities["a"], 0)
        await asyncio.sleep(0)
        assert not here.forwarding._leftovers._visits and held_now(here.entities["a"]) == 1


async def test_what_is_found_while_a_lane_ends_is_looked_for_again_after_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[tuple[str, int]] = []
    look = Leftovers.look

    def looks(leftovers: Leftovers, entity: Entity, number: int) -> None:
        looked.append((entity.name, number))
        look(leftovers, entity, number)

    monkeypatch.setattr(Leftovers, "look", looks)
    async with world(a=(1, TO_B), b=(1, PLAIN), c=(1, PLAIN)) as here:
        await here.send("a", "x")
        await here.until_at("b", 1)
        await here.until_empty("a")
        gate = here.logs["b", 0].gate = asyncio.Event()
        await here.send("a", "y")
        await until(lambda: held_now(here.entities["b"]) == 2)  # not durable, so the lane goes on
        await here.update("a", QueueSettings(forward_to="c"))
        await here.update("a", TO_B)
        (forwarded,) = here.forwarding._forwarded.values()
        source = source_of(here.descriptions["a"].generation, 0, 0)
        looked.clear()
        here.forwarding._found(here.entities["b"], 0, SourcesFound([source], passes_on=False))
        assert here.forwarding._ending and not (forwarded._lanes or looked)
        gate.set()
        await until(lambda: looked)
        assert looked == [("b", 0)] and not here.forwarding._ending
        await here.send("a", "z")
        assert await here.until_at("b", 3) == ["x", "y", "z"]


async def test_a_partition_with_sources_starts_without_a_look_at_all_entities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        await crashed(here)
        monkeypatch.setattr(forward_lane, "FORGET_S", 0.001)
        here.start()
        monkeypatch.setattr(here, "live_entities", lambda: pytest.fail("it looks at all entities"))
        await here.wake_all()
        await until(lambda: not keeps(here))


async def test_a_partition_that_is_back_before_it_is_asked_again_gives_out_no_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(via=(1, PLAIN), b=(1, replace(PLAIN, status=EntityStatus.DISABLED))) as here:
        await here.forwarding.stop()
        run = store_run([message_of("x")], str)
        sent = transfer_of(Send(run.data, None), "b")
        await ask(here.entities["via"].router.handles[0], Transact(Send([], None), [], transfers=sent))
        heard: list[Answer] = []
        found: list[SourcesFound | None] = []
        visit = _Visit(here.entities["via"], 0, found.append)
        hears = visit._heard

        def hear(answer: Answer) -> None:
            heard.append(answer)
            hears(answer)

        monkeypatch.setattr(visit, "_heard", hear)
        visit._heard(Failed(Reason.PARTITION_UNAVAILABLE, "down", None))
        await until(lambda: found)
        assert [type(each) for each in heard] == [Failed, SourcesFound]
        assert here.partitions["via", 0].counts()[TRANSFER].locked == 0


def topic_to_b() -> TopicDescription:
    """A topic with a subscription that forwards to "b"."""
    topic = TopicDescription("t", "t".rjust(32, "0"), 1)
    return topic.with_new("s", SubscriptionSettings(forward_to="b"), [RuleDescription("$Default")], 1)


async def forwarded_by_a_topic(here: World) -> TopicDescription:
    """Have a topic whose subscription has forwarded a message to "b"."""
    await here.crash()
    topic = here.descriptions["t"] = topic_to_b()
    here.start()
    await here.send("t", "x")
    await here.until_at("b", 1)
    assert keeps(here)
    return topic


async def test_a_target_goes_on_and_forgets_a_subscription_that_is_deleted_just_after_a_forward() -> None:
    async with world(b=(1, PLAIN)) as here:
        topic = await forwarded_by_a_topic(here)
        await here.describe("t", topic.without(1))
        await until(lambda: not (keeps(here) or here.forwarding._ending))
        await here.send("b", "y")
        assert await here.texts("b") == ["x", "y"]
        assert here.partitions["b", 0].health is Health.HEALTHY


async def test_after_a_crash_a_target_forgets_a_subscription_that_was_deleted() -> None:
    async with world(b=(1, PLAIN)) as here:
        topic = await forwarded_by_a_topic(here)
        await here.crash()
        here.descriptions["t"] = topic.without(1)
        here.start()
        await here.wake_all()
        await until(lambda: "b" in here.entities and not keeps(here))
        assert await here.texts("b") == ["x"]


async def test_what_goes_wrong_with_what_was_found_is_not_the_partitions_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(b=(1, PLAIN)) as here:
        strays: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: strays.append(what["message"]))
        visits: list[_Visit] = []
        monkeypatch.setattr(_Visit, "ask", lambda visit: visits.append(visit))
        here.forwarding._leftovers.look(here.entities["b"], 0)
        await until(lambda: visits)
        visits[0]._heard(SourcesFound([b"no source"], passes_on=False))
        await until(lambda: strays)
        assert len(strays) == 1 and not here.forwarding._leftovers._visits


async def test_a_lane_that_withdraws_does_not_wait_for_a_subqueue_that_was_deleted() -> None:
    async with world(b=(1, PLAIN)) as here:
        await here.crash()
        topic = here.descriptions["t"] = topic_to_b()
        here.start()
        await here.entities["t"].wake(0)
        await until(lambda: here.forwarding._forwarded and lane_of(here)._demands)
        lane = lane_of(here)
        await here.entities["t"].update(topic.without(1))
        await asyncio.wait_for(lane._withdraw(), 5)
        assert not lane._demands
