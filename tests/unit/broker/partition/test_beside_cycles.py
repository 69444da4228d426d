"""Upkeep goes on beside the cycles: messages are stored and completed while a checkpoint is being written."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from broker.base.slices import Slices
from broker.entities.descriptions import MAIN
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Failed
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete
from broker.partition.beside_cycles import BesideCycles
from broker.partition.disk_timeout import Patience
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from storage.errors import CommitFailed
from storage.log import Checkpoint
from tests.support.memory_log import MemoryLog
from tests.support.partition_harness import Harness, running
from tests.support.waiting import until

LIMITS = TaskLimits(
    upkeep=UpkeepLimits(checkpoint_bytes=20_000, garbage_bytes_max=8_000, relocation_bytes=2_000)
)


class SlowLog:
    """Makes the checkpoints of a harness wait until they are let through."""

    def __init__(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting = 0
        self.ended = self.given_up = 0
        self.gate = asyncio.Semaphore(0)
        save = MemoryLog.save_checkpoint

        async def waits(log: MemoryLog, checkpoint: Checkpoint, *, is_complete: bool = False) -> None:
            self.waiting += 1
            try:
                await self.gate.acquire()
            except asyncio.CancelledError:
                self.given_up += 1
                raise
            finally:
                self.waiting -= 1
            await save(log, checkpoint, is_complete=is_complete)
            self.ended += 1

        monkeypatch.setattr(MemoryLog, "save_checkpoint", waits)


@asynccontextmanager
async def trimming(
    monkeypatch: pytest.MonkeyPatch, slices: Slices | None = None
) -> AsyncIterator[tuple[Harness, SlowLog]]:
    """A running partition that soon writes checkpoints, which wait. Partitions that share `slices` write them
    one after another."""
    harness = Harness(limits=LIMITS, segment_bytes=4_000, slices=slices)
    slow = SlowLog(harness, monkeypatch)
    async with running(harness):
        await harness.task.opened()
        yield harness, slow


async def ask(harness: Harness, operation: Operation, client: int = 1) -> Answer:
    harness.post(client, operation)
    await until(lambda: harness.received[client])
    [answer] = harness.take(client)
    return answer


async def pass_on(harness: Harness, count: int) -> None:
    """Send messages and complete them."""
    assert isinstance(await ask(harness, Send([b"x" * 500] * count, None)), Sent)
    locked = await ask(harness, Demand(MAIN, count))
    assert isinstance(locked, Locked) and len(locked.tokens) == count
    await ask(harness, Complete(locked.tokens))


async def until_one_is_written(harness: Harness, slow: SlowLog) -> None:
    while not slow.waiting:
        await pass_on(harness, 10)
        await asyncio.sleep(0)


async def test_messages_pass_while_checkpoints_are_written_and_the_log_is_trimmed_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with trimming(monkeypatch) as (harness, slow):
        await until_one_is_written(harness, slow)
        for _ in range(20):
            await pass_on(harness, 10)
        assert slow.waiting == 1 and harness.log.start == 0
        slow.gate.release()
        await until(lambda: slow.ended == 1 and slow.waiting == 1)
        await pass_on(harness, 10)
        slow.gate.release()
        await until(lambda: harness.log.start > 0)
        kept = await ask(harness, Send([b"kept"], None))
        assert isinstance(kept, Sent)
        for _ in range(4):
            slow.gate.release()
    await harness.restart()
    assert (await harness.peek()).messages == [b"kept"]


async def test_a_restart_finds_what_changed_while_checkpoints_were_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, chance = Harness(limits=LIMITS, segment_bytes=4_000), random.Random(7)
    slow = SlowLog(harness, monkeypatch)
    for _ in range(3):
        async with running(harness):
            for _ in range(60):
                if slow.waiting and chance.random() < 0.3:
                    slow.gate.release()
                if chance.random() < 0.1:
                    await ask(harness, Send([b"%d" % chance.randrange(1 << 30)] * 3, None))
                else:
                    await pass_one_of_many(harness, chance)
            expected = await peeked(harness)
            while slow.waiting:
                slow.gate.release()
                await asyncio.sleep(0)
            slow.gate = asyncio.Semaphore(1_000)  # the last checkpoint
        slow.gate = asyncio.Semaphore(1_000)
        await harness.restart()
        assert (await harness.peek(count=10_000)).messages == expected
        slow.gate = asyncio.Semaphore(0)
    assert slow.ended > 5


async def pass_one_of_many(harness: Harness, chance: random.Random) -> None:
    await ask(harness, Send([b"y" * chance.randrange(900)] * 5, None))
    locked = await ask(harness, Demand(MAIN, chance.randrange(1, 6)))
    assert isinstance(locked, Locked)
    await ask(harness, Complete(locked.tokens))


async def peeked(harness: Harness) -> list[bytes]:
    answer = await ask(harness, Peek(MAIN, 0, 10_000), client=2)
    assert isinstance(answer, Peeked)
    return answer.messages


async def test_messages_pass_while_other_partitions_take_their_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slices = Slices()
    async with trimming(monkeypatch, slices) as (harness, slow):
        async with slices.one_by_one:
            for _ in range(50):
                await pass_on(harness, 10)
            assert not slow.waiting
        await until(lambda: slow.waiting)
        assert not slices.one_by_one.locked(), "others may go on while the disk writes"
        slow.gate = asyncio.Semaphore(1_000)


async def test_what_changes_between_the_two_checkpoints_of_a_trim_is_in_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slices = Slices()
    async with trimming(monkeypatch, slices) as (harness, slow):
        assert isinstance(await ask(harness, Send([b"a message"], None)), Sent)
        await until_one_is_written(harness, slow)
        async with slices.one_by_one:
            slow.gate.release()
            await until(lambda: slow.ended == 1)
            assert isinstance(await ask(harness, Send([b"another one"], None)), Sent)
        expected = await peeked(harness)
        await until(lambda: slow.waiting)
        slow.gate.release()
        await until(lambda: slow.ended == 2)
        slow.gate = asyncio.Semaphore(1_000)
    await harness.restart()
    assert (await harness.peek(count=10_000)).messages == expected


async def test_a_partition_that_stops_gives_up_its_place_among_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slices = Slices()
    async with trimming(monkeypatch, slices) as (harness, slow):
        async with slices.one_by_one:
            while not harness.task._beside.is_under_way:
                await pass_on(harness, 10)
            stopping = asyncio.create_task(harness.task.stop(is_deleted=True))
            await until(stopping.done)
        assert not slices.one_by_one.locked() and not slow.ended


async def test_a_commit_that_fails_meanwhile_ends_upkeep_and_the_partition_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with trimming(monkeypatch) as (harness, slow):
        await until_one_is_written(harness, slow)
        harness.log.fail_append(CommitFailed("the disk failed"))
        assert isinstance(await ask(harness, Send([b"lost"], None), client=2), Failed)
        assert slow.given_up == 1
        assert isinstance(await ask(harness, Send([b"kept"], None), client=2), Sent)
        assert await peeked(harness) == [b"kept"]
        for _ in range(10):
            slow.gate.release()
        await until(lambda: harness.log.start > 0)


async def test_a_partition_stops_while_a_checkpoint_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async with trimming(monkeypatch) as (harness, slow):
        await until_one_is_written(harness, slow)
        slow.gate = asyncio.Semaphore(1_000)
    assert slow.ended == 1, "the last one"


async def test_what_does_not_wait_keeps_its_turn_and_what_waits_gets_another_one() -> None:
    asked = 0

    def ask() -> None:
        nonlocal asked
        asked += 1

    beside = BesideCycles(ask, Patience(1_000, ask))
    gate = asyncio.Event()

    async def work() -> bool:
        async with beside.waiting():
            pass
        async with beside.waiting():
            await gate.wait()
        return True

    assert not await beside.begin(work()) and beside.is_under_way and not asked
    assert not await beside.go_on(), "it still waits"
    gate.set()
    await until(lambda: asked)
    assert await beside.go_on() and not beside.is_under_way
    assert not await beside.go_on(), "it has ended"


async def test_an_error_of_upkeep_comes_out_in_its_turn() -> None:
    asked = asyncio.Event()
    beside = BesideCycles(asked.set, Patience(1_000, asked.set))

    async def work() -> bool:
        async with beside.waiting():
            await asyncio.sleep(0.001)
            raise CommitFailed("no")

    assert not await beside.begin(work())
    await asked.wait()
    with pytest.raises(CommitFailed):
        await beside.go_on()
    assert not beside.is_under_way
