"""One lane: what it does while a partition of the target is down, and what it tells the target to keep."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, QueueSettings
from broker.messaging import forward_lane
from broker.messaging.forward_lane import Lane
from broker.namespace.entity import ask
from broker.namespace.router import partition_of_key
from broker.namespace.size_quota import SizeQuota
from broker.operations import DeadLetter, Locked, LockExactly, Settled
from broker.partition.origins import Origins
from broker.transfer_operations import FailTransfer, source_of
from storage.errors import CommitFailed, DiskFailed
from tests.support.forwarding_world import World, held_now, world
from tests.support.memory_log import MemoryLog
from tests.support.waiting import until

PLAIN, TO_B = QueueSettings(), QueueSettings(forward_to="b")
KEYS = {partition_of_key(key, 2): key for key in "abcdefgh"}
"""A key for each of two partitions."""


def lane_of(here: World, number: int = 0) -> Lane:
    (road,) = here.forwarding._roads.values()
    return road._lanes[number]


def kept(here: World, number: int = 0) -> list[int]:
    """The numbers that a partition of the target keeps of partition 0 of the source."""
    partition = here.partitions["b", number]._partition
    assert partition is not None
    generation = here.descriptions["a"].generation
    return sorted(partition.messages.states.of(Origins).of(source_of(generation, 0, 0)))


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_lane, "RETRY_S", 0.001)
    monkeypatch.setattr(forward_lane, "RETRY_S_MAX", 0.01)


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
        assert not lane_of(here)._aside and lane_of(here)._aside_bytes == 0


async def test_a_lane_waits_once_much_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_lane, "SET_ASIDE_MESSAGES", 2)
    monkeypatch.setattr(forward_lane, "LOAD_MESSAGES", 2)
    monkeypatch.setattr(forward_lane, "RETRY_S", 60.0)
    async with world(a=(1, PLAIN), b=(2, PLAIN)) as here:
        here.on_log = lambda name, number, log: setattr(
            log, "on_acquire", lambda: DiskFailed("down") if (name, number) == ("b", 1) else None
        )
        for number in range(3):
            await here.send("a", f"{number}", key=KEYS[1])
        await here.send("a", "other", key=KEYS[0])
        await here.update("a", TO_B)
        await until(lambda: lane_of(here)._is_aside_full)
        await asyncio.sleep(0.01)
        assert held_now(here.entities["b"]) == 0, "the message behind them is not reached"
        assert here.partitions["a", 0].counts()[""].locked == 2


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


@pytest.mark.parametrize("is_locked", [False, True], ids=["gone", "locked"])
async def test_only_what_is_gone_from_the_source_leaves_what_the_target_must_keep(is_locked: bool) -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        number = await here.send("a", "x")
        await here.until_at("b", 1)
        await here.until_empty("a")
        lane = lane_of(here)
        await until(lambda: lane._task is None)
        await here.update("a", PLAIN)
        await until(lambda: not here.forwarding._ending)
        other = await here.send("a", "y")
        if is_locked:
            await ask(here.entities["a"].router.handles[0], LockExactly(MAIN, [other]))
        lane._doubt[0] = {number, other, other + 1}
        await lane._remove_known(0, [number, other])
        assert lane._doubt[0] == ({other, other + 1} if is_locked else {other + 1})


async def test_a_failed_transfer_that_was_stored_before_a_crash_is_removed() -> None:
    to_b = QueueSettings(forward_dead_lettered_to="b")
    async with world(a=(1, to_b), b=(1, PLAIN)) as here:
        here.on_log = lambda name, number, log: None
        number = await here.send("a", "x")
        handle = here.entities["a"].router.handles[0]
        locked = await ask(handle, LockExactly(MAIN, [number]))
        assert isinstance(locked, Locked)
        await ask(handle, FailTransfer(locked.tokens))
        (road,) = here.forwarding._roads.values()
        lane = Lane(road, 0)
        lane._doubt[0] = {number}
        await lane._remove_known(0, [number])
        assert not lane._doubt[0] and not held_now(here.entities["a"], TRANSFER_DEAD_LETTER)


def gate_removals(name: str, number: int, log: MemoryLog) -> None:
    """Let the log of the source take what is sent, and then nothing more."""
    if name == "a":
        log.on_append = lambda commit, urgent: _close_gate(log)


def _close_gate(log: MemoryLog) -> None:
    log.gate = asyncio.Event()


async def test_above_the_memory_mark_messages_wait() -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        memory = here.forwarding.memory
        memory.mark, memory.limited = 1, True
        await here.send("a", "x")
        await until(lambda: lane_of(here)._trouble is Reason.SERVER_BUSY)
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
            patched.setattr(forward_lane, "prepare", fail)
            await here.send("a", "x")
            await until(lambda: failed >= 2)
        assert await here.until_at("b", 1) == ["x"]


async def test_a_refusal_by_the_target_s_entity_is_passed_on() -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        here.missing = lambda name: Refused(Reason.PARTITION_UNAVAILABLE, "damaged")  # type: ignore[method-assign]
        await here.delete("b")
        await here.send("a", "x")
        await until(lambda: lane_of(here)._trouble is Reason.PARTITION_UNAVAILABLE)
        assert (held_now(here.entities["a"]), await here.texts("a", DEAD_LETTER)) == (1, [])


async def test_messages_for_an_entity_that_is_full_as_a_whole_are_dead_letters() -> None:
    async with world(a=(1, TO_B), b=(2, PLAIN)) as here:
        here.entities["b"]._quota = SizeQuota(1_000, lambda: held_now(here.entities["b"]) * 500)
        for number in range(4):
            await here.send("a", f"{number}")
        assert len(await here.until_at("a", 2, DEAD_LETTER)) == 2
        assert len(await here.until_at("b", 2)) == 2
        (page,) = await here.held("a", DEAD_LETTER)
        assert page.changed[0] is not None and b"QuotaExceededException" in page.changed[0]
