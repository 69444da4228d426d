"""One lane: what it does while a partition of the target is down, and what it tells the target to keep."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.messaging import forward_lane, forward_outlet, forward_retry
from broker.messaging.forward_lane import Lane
from broker.messaging.forward_outlet import Outlet
from broker.namespace.entity import ask
from broker.namespace.router import partition_of_key
from broker.namespace.size_quota import SizeQuota
from broker.operations.receiving import Locked, LockExactly
from broker.operations.settling import DeadLetter, Settled
from broker.operations.transfers import source_of
from broker.partition.origins import Origins
from storage.errors import CommitFailed, DiskFailed
from tests.support.forwarding_world import World, held_now, world
from tests.support.memory_log import MemoryLog
from tests.support.waiting import until

PLAIN, TO_B = QueueSettings(), QueueSettings(forward_to="b")
KEYS = {partition_of_key(key, 2): key for key in "abcdefgh"}
"""A key for each of two partitions."""


def lane_of(here: World, number: int = 0) -> Lane:
    (forwarded,) = here.forwarding._forwarded.values()
    return forwarded._lanes[number]


def outlet_of(lane: Lane) -> Outlet:
    (outlet,) = lane._outlets.values()
    return outlet


def kept(here: World, number: int = 0) -> list[int]:
    """The numbers that a partition of the target keeps of partition 0 of the source."""
    partition = here.partitions["b", number]._partition
    assert partition is not None
    generation = here.descriptions["a"].generation
    return sorted(partition.messages.states.of(Origins).of(source_of(generation, 0, 0)))


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_retry, "RETRY_S", 0.001)
    monkeypatch.setattr(forward_retry, "RETRY_S_MAX", 0.01)


async def test_a_partition_of_the_target_that_is_down_holds_up_its_own_messages_only() -> None:
    async with world(a=(1, TO_B), b=(2, PLAIN)) as here:
        down = True

        def refuse(name: str, number: int, log: MemoryLog) -> None:
            if (name, number) == ("b", 1):
                log.on_acquire = lambda: DiskFailed("down") if down else None

        here.on_log = refuse
        for number in range(3):
            await here.send("a", f"waits {number}", key=KEYS[1])
            await here.send("a", f"goes {number}", key=KEYS[0])
        await until(lambda: held_now(here.entities["b"]) == 3)
        await here.send("a", "goes on", key=KEYS[0])
        await until(lambda: held_now(here.entities["b"]) == 4)
        await until(lambda: held_now(here.entities["a"]) == 3)
        down = False
        here.clock.advance(60_000)
        here.partitions["b", 1].wake()
        await until(lambda: held_now(here.entities["b"]) == 7)
        texts = await here.texts("b")
        assert texts == ["goes 0", "goes 1", "goes 2", "goes on", "waits 0", "waits 1", "waits 2"]
        await here.until_empty("a")
        assert not outlet_of(lane_of(here)).has_aside


async def test_however_many_messages_are_set_aside_hold_up_no_others_and_stay_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forward_lane, "LOAD_MESSAGES", 3)
    down = True

    def refuse(name: str, number: int, log: MemoryLog) -> None:
        if (name, number) == ("b", 1):
            log.on_acquire = lambda: DiskFailed("down") if down else None

    async with world(a=(1, PLAIN), b=(2, PLAIN)) as here:
        here.on_log = refuse
        for number in range(40):
            await here.send("a", f"waits {number:02}", key=KEYS[1])
        await here.send("a", "goes", key=KEYS[0])
        await here.update("a", TO_B)
        await until(lambda: held_now(here.entities["b"]) == 1)
        for number in range(40, 50):
            await here.send("a", f"waits {number:02}", key=KEYS[1])
        await until(lambda: here.partitions["a", 0].counts()[""].locked > 40)
        down = False
        here.clock.advance(60_000)
        here.partitions["b", 1].wake()
        texts = await here.until_at("b", 51)
        assert texts == ["goes", *(f"waits {number:02}" for number in range(50))]
        await here.until_empty("a")
        assert not outlet_of(lane_of(here)).has_aside


async def test_a_removal_that_fails_is_made_up_for_and_nothing_is_stored_twice() -> None:
    async with world(a=(1, PLAIN), b=(1, PLAIN)) as here:
        await here.send("a", "x", "y")
        here.logs["a", 0].fail_append(CommitFailed("power"))
        await here.update("a", TO_B)
        await until(lambda: held_now(here.entities["b"]) == 2)
        here.clock.advance(60_000)
        here.partitions["a", 0].wake()
        await here.until_empty("a")
        assert await here.texts("b") == ["x", "y"]
        assert here.entities["a"].meter.forwarded_messages == 2


async def test_the_target_forgets_what_was_removed_with_the_next_batch_and_the_rest_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forward_lane, "FORGET_S", 60.0)
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        first = await here.send("a", "x")
        await here.until_at("b", 1)
        await until(lambda: lane_of(here)._task is None)
        assert kept(here) == [first]
        monkeypatch.setattr(forward_lane, "FORGET_S", 0.001)
        second = await here.send("a", "y")
        await here.until_at("b", 2)
        assert set(kept(here)) <= {second}
        await until(lambda: not kept(here))
        await until(lambda: lane_of(here)._task is None)
        assert lane_of(here)._forget_timer is None, "an idle lane has no timer"


async def test_the_target_forgets_a_source_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_lane, "FORGET_S", 60.0)
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        await here.send("a", "x")
        await here.until_at("b", 1)
        await until(lambda: lane_of(here)._task is None)
        assert kept(here)
        await here.delete("a")
        await until(lambda: not kept(here))


async def stored_before_a_crash(here: World) -> None:
    """Have "b" store a message whose removal at "a" is lost in a crash, and that is a dead letter by then."""
    here.on_log = gate_removals
    number = await here.send("a", "x")
    await until(lambda: held_now(here.entities["b"]) == 1)
    await here.crash()
    here.descriptions["a"] = replace(here.descriptions["a"], settings=PLAIN)
    here.on_log = lambda name, number, log: None
    here.start()
    handle = here.entities["a"].router.handles[0]
    locked = await ask(handle, LockExactly(MAIN, [number]))
    assert isinstance(locked, Locked) and isinstance(await ask(handle, DeadLetter(locked.tokens)), Settled)


async def test_what_was_stored_before_a_crash_is_removed_even_if_it_is_a_dead_letter_by_now() -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        await stored_before_a_crash(here)
        await here.update("a", TO_B)
        await here.send("a", "y")
        await until(lambda: held_now(here.entities["b"]) == 2)
        await here.until_empty("a", DEAD_LETTER)
        assert await here.texts("b") == ["x", "y"]


async def test_what_was_stored_before_a_crash_is_removed_although_a_removal_fails_first() -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        await stored_before_a_crash(here)
        await here.send("a", "y")
        here.logs["a", 0].fail_append(CommitFailed("power"))
        with capture_logs() as logs:
            await here.update("a", TO_B)
            await until(lambda: held_now(here.entities["b"]) == 2)
            await here.until_empty("a")
            await here.until_empty("a", DEAD_LETTER)
        assert await here.texts("b") == ["x", "y"]
        assert not [each for each in logs if each["event"] == "forward.failed"]


def gate_removals(name: str, number: int, log: MemoryLog) -> None:
    """Let the log of the source take what is sent, and then nothing more."""
    if name == "a":
        log.on_append = lambda commit, urgent: _close_gate(log)


def _close_gate(log: MemoryLog) -> None:
    log.gate = asyncio.Event()


async def test_above_the_memory_mark_messages_wait() -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        memory = here.forwarding._shared.memory
        memory.mark, memory.limited = 1, True
        await here.send("a", "x")
        await until(lambda: lane_of(here)._pause.reason is Reason.SERVER_BUSY)
        assert held_now(here.entities["a"]) == 1
        memory.mark, memory.limited = 1 << 40, False
        await here.until_at("b", 1)


async def test_a_bug_loses_nothing_and_does_not_end_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        failed = 0

        async def fail(*given: object, **named: object) -> None:
            nonlocal failed
            failed += 1
            raise ValueError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr(forward_outlet, "prepare", fail)
            await here.send("a", "x")
            await until(lambda: failed >= 2)
        assert await here.until_at("b", 1) == ["x"]


async def test_a_refusal_by_the_target_s_entity_is_passed_on() -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        here.missing = lambda name: Refused(Reason.PARTITION_UNAVAILABLE, "damaged")  # type: ignore[method-assign]
        await here.delete("b")
        await here.send("a", "x")
        await until(lambda: lane_of(here)._pause.reason is Reason.PARTITION_UNAVAILABLE)
        assert (held_now(here.entities["a"]), await here.texts("a", DEAD_LETTER)) == (1, [])


async def test_messages_for_an_entity_that_is_full_as_a_whole_are_dead_letters() -> None:
    async with world(a=(1, TO_B), b=(2, PLAIN)) as here:
        here.entities["b"]._quota = SizeQuota("Queue", 1_000, lambda: held_now(here.entities["b"]) * 500)
        for number in range(4):
            await here.send("a", f"{number}")
        assert len(await here.until_at("a", 2, DEAD_LETTER)) == 2
        assert len(await here.until_at("b", 2)) == 2
        (page,) = await here.held("a", DEAD_LETTER)
        assert page.changed[0] is not None and b"QuotaExceededException" in page.changed[0]


async def test_an_idle_lane_has_no_timer_for_a_target_that_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forward_lane, "FORGET_S", 60.0)
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        await here.send("a", "x")
        await here.until_at("b", 1)
        lane = lane_of(here)
        await until(lambda: lane._forget_timer is not None)
        await here.delete("b")
        lane._time_to_forget()
        await until(lambda: lane._task is None)
        assert lane._forget_timer is None and not lane._outlets


async def test_a_load_that_is_cancelled_at_a_stop_is_neither_lost_nor_stored_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forward_lane, "STOPS_WITHIN_S", 0.01)
    strays: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: strays.append(context))
    async with world(a=(1, PLAIN), b=(2, PLAIN)) as here:
        for number in range(2):
            await here.entities["b"].wake(number)
            await here.send("a", f"{number}", key=KEYS[number])
        gate = here.logs["b", 1].gate = asyncio.Event()
        with capture_logs() as logs:
            await here.update("a", TO_B)
            await until(lambda: held_now(here.entities["b"]) == 2)  # the second one is not durable
            lane = lane_of(here)
            await here.forwarding.stop()
            gate.set()
            await until(lambda: here.partitions["a", 0].counts()[""].locked == 0)
        assert lane._task is None and not strays
        assert not [each for each in logs if each["log_level"] in ("error", "critical")]
        await here.stop()
        here.start()
        await here.wake_all()
        await here.until_empty("a")
        assert sorted(await here.texts("b")) == ["0", "1"]
        gc.collect()
        assert not strays


async def test_a_load_that_is_cancelled_as_the_target_changes_goes_to_one_target_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forward_lane, "STOPS_WITHIN_S", 0.01)
    async with world(a=(1, TO_B), b=(1, PLAIN), c=(1, PLAIN)) as here:
        await here.send("a", "before")  # from now on the lane knows what is in doubt
        await here.until_at("b", 1)
        await here.until_empty("a")
        gate = here.logs["b", 0].gate = asyncio.Event()
        await here.send("a", "x")
        await until(lambda: held_now(here.entities["b"]) == 2)  # not durable
        lane = lane_of(here)
        await here.update("a", QueueSettings(forward_to="c"))
        await until(lambda: lane._task is None)
        gate.set()
        await here.until_empty("a")
        assert (await here.texts("b"), await here.texts("c")) == (["before", "x"], [])


async def test_messages_stay_in_order_if_one_is_on_its_way_to_the_idle_lane_when_it_looks() -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        await here.send("a", "0")
        await here.until_at("b", 1)
        await here.until_empty("a")
        lane, log = lane_of(here), here.logs["a", 0]
        await until(lambda: lane._task is None)
        gate = log.gate = asyncio.Event()
        first = asyncio.create_task(here.send("a", "1"))
        await until(lambda: held_now(here.entities["a"]) == 1)  # not durable
        second = asyncio.create_task(here.send("a", "2"))
        await asyncio.sleep(0)  # it waits for the next commit
        lane._time_to_forget()
        await asyncio.sleep(0)
        log.gate = None
        gate.set()
        await asyncio.gather(first, second)
        assert await here.until_at("b", 3) == ["0", "1", "2"]
