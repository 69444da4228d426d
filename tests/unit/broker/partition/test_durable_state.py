"""broker/partition/durable_state.py: a state beside the messages, through everything that can happen to a
log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.base.clock import ManualClock
from broker.base.errors import Reason
from broker.entities.descriptions import QueueDescription, QueueSettings
from broker.maintenance.repair import Repair
from broker.operations.general import Failed, Updated
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete, Defer
from broker.partition import durable_state, state_kinds
from broker.partition.health import Health
from broker.partition.payloads import PayloadBudget
from broker.partition.state import Partition
from broker.partition.task import PartitionTask
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from storage.file_store import FileLogStore
from storage.log import FRAME_HEADER_BYTES, RECORD_HEADER_BYTES, Block, Checkpoint
from tests.support.keyed_state import BLOCKS, REMOVED, Change, KeyedState, block_of, put, register
from tests.support.logs import flip
from tests.support.partition_asking import WAIT_S, ask
from tests.support.partition_harness import Harness, one

EAGER = TaskLimits(
    upkeep=UpkeepLimits(
        checkpoint_bytes=20_000,
        garbage_bytes_max=10_000,
        garbage_bytes_at_rest=10_000,
        relocation_bytes=4_000,
    )
)
"""Checkpoints, trimming and compaction are due after little traffic."""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)


def state_of(task: PartitionTask) -> KeyedState:
    partition = task._partition
    assert isinstance(partition, Partition)
    return partition.messages.states.of(KeyedState)


def entries(task: PartitionTask) -> dict[bytes, bytes]:
    return {key: value for key, (value, _) in state_of(task).entries.items()}


def posted(change: Change) -> Any:
    return change


async def change(harness: Harness, *records: durable_state.NewRecord) -> None:
    one(await harness.do(1, posted(Change(records))), Updated)


async def opened(harness: Harness) -> dict[bytes, bytes]:
    harness.task._open_wanted = True
    await harness.until_quiet()
    assert harness.task.health is Health.HEALTHY
    return entries(harness.task)


@pytest.mark.parametrize("clean", [False, True])
async def test_a_restart_brings_the_state_back_from_records_and_from_a_checkpoint(clean: bool) -> None:
    harness = Harness()
    await change(harness, put(b"a", b"1"), put(b"b", b"2"))
    await change(harness, put(b"a", b"3"), durable_state.NewRecord(REMOVED, b"b"), put(b"c", b"4"))
    for _ in range(3):
        assert await opened(harness) == {b"a": b"3", b"c": b"4"}
        await harness.restart(clean=clean)
    assert bool(harness.log.disk.checkpoints) is clean


async def test_a_checkpoint_writes_the_changed_blocks_and_drops_empty_ones() -> None:
    harness = Harness()
    keys = [b"%d" % number for number in range(100)]
    await change(harness, *(put(key, b"x" * 10) for key in keys))
    written: list[Mapping[int, Block]] = []
    save = harness.log.save_checkpoint

    for records in ([], [put(keys[0], b"new")], [durable_state.NewRecord(REMOVED, keys[1])]):
        if records:
            await change(harness, *records)
        upkeep = harness.task._upkeep
        assert upkeep is not None

        async def noted(checkpoint: Checkpoint, *, is_complete: bool = False) -> None:
            [section] = [each for each in checkpoint.sections if each.name == "keyed"]
            written.append(section.blocks)
            await save(checkpoint, is_complete=is_complete)

        harness.log.save_checkpoint = noted  # type: ignore[method-assign]
        await upkeep._save_another(0)
    assert [sorted(blocks) for blocks in written[:2]] == [list(range(BLOCKS))] * 2, "there are not two yet"
    assert sorted(written[2]) == sorted({block_of(keys[0]), block_of(keys[1])})

    gone = [key for key in keys if block_of(key) == 5]
    await change(harness, *(durable_state.NewRecord(REMOVED, key) for key in gone))
    for _ in range(2):
        assert harness.task._upkeep is not None
        await harness.task._upkeep._save_another(0)
    assert written[-1].get(5, b"") == b"" and len(state_of(harness.task).blocks) == BLOCKS - 1
    await harness.restart()
    assert await opened(harness) == {
        key: b"new" if key == keys[0] else b"x" * 10 for key in keys if key != keys[1] and key not in gone
    }


async def test_the_log_is_trimmed_below_the_records_and_compacted_around_them() -> None:
    harness = Harness(limits=EAGER, segment_bytes=4_000)
    await change(harness, put(b"early", b"1"))
    stays = await harness.send(b"one message stays in the first segment")
    await harness.do(2, Defer((await harness.receive(2)).tokens))
    begun = harness.log.end
    for number in range(60):
        await change(harness, put(b"%d" % (number % 7), b"%d" % number))
        await harness.send(*[b"y" * 200] * 5)
        await harness.do(2, Complete((await harness.receive(2, 5)).tokens))
        await harness.advance(1_000)
    assert harness.log.start > begun, "it was trimmed, and the message moved"
    expected = {b"early": b"1"} | {b"%d" % (number % 7): b"%d" % number for number in range(60)}
    assert entries(harness.task) == expected
    await harness.restart()
    assert await opened(harness) == expected
    assert (await harness.peek()).sequence_numbers == [stays]


async def test_what_ends_at_a_time_is_forgotten_on_time_without_a_record_also_after_a_restart() -> None:
    harness = Harness()
    now_ms = harness.clock.now_ms()
    await change(harness, put(b"short", b"1", now_ms + 1_000), put(b"long", b"2", now_ms + 9_000))
    await change(harness, put(b"prolonged", b"3", now_ms + 500), put(b"prolonged", b"4", now_ms + 9_000))
    partition = harness.task._partition
    assert partition is not None
    end = harness.log.end
    await harness.advance(999)
    assert entries(harness.task) == {b"short": b"1", b"long": b"2", b"prolonged": b"4"}
    assert partition.next_due_ms() == harness.clock.monotonic_ms() + 1
    await harness.advance(1)
    assert entries(harness.task) == {b"long": b"2", b"prolonged": b"4"} and harness.log.end == end
    await harness.restart()
    assert await opened(harness) == {b"long": b"2", b"prolonged": b"4"}
    await harness.restart(clean=True)
    harness.clock.advance(20_000)
    assert await opened(harness) == {} and state_of(harness.task).state_bytes == 0


async def test_a_full_disk_undoes_what_belongs_to_a_send_and_keeps_the_rest() -> None:
    harness = Harness()
    await change(harness, put(b"before", b"1"))
    harness.log.fill_disk()
    harness.post(1, posted(Change([put(b"kept", b"2")])))
    harness.post(1, Send([b"refused"], None))
    harness.post(1, posted(Change([put(b"seen", b"3")], with_send=True)))
    await harness.until_quiet()
    answers = harness.take(1)
    assert [each.reason for each in answers if isinstance(each, Failed)] == [Reason.DISK_FULL]
    harness.log.empty_disk()
    assert entries(harness.task) == {b"before": b"1", b"kept": b"2"}
    await harness.restart()
    assert await opened(harness) == {b"before": b"1", b"kept": b"2"}
    await harness.do(1, Send([b"taken"], None), posted(Change([put(b"seen", b"3")], with_send=True)))
    await harness.restart()
    assert await opened(harness) == {b"before": b"1", b"kept": b"2", b"seen": b"3"}


async def test_it_counts_towards_the_quota_and_the_memory_and_is_given_back() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    await change(harness, *(put(b"%d" % number, bytes(100_000)) for number in range(9)))
    assert 900_000 < harness.budget.state_bytes < 910_000
    assert one(await harness.do(1, Send([bytes(200_000)], None)), Failed).reason is Reason.QUOTA_EXCEEDED
    await change(harness, *(durable_state.NewRecord(REMOVED, b"%d" % number) for number in range(9)))
    assert harness.budget.state_bytes == 0
    one(await harness.do(1, Send([bytes(200_000)], None)), Sent)
    await change(harness, put(b"a", b"1"))
    await harness.task.stop()
    assert harness.budget.state_bytes == 0


async def test_a_release_that_does_not_know_the_state_refuses_the_log_and_leaves_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for clean in (False, True):
        harness = Harness()
        register(monkeypatch)
        await change(harness, put(b"a", b"1"))
        monkeypatch.setattr(state_kinds, "KINDS", ())
        before = dict(harness.log.disk.frames)
        await harness.restart(clean=clean)
        harness.task._open_wanted = True
        await harness.until_quiet()
        assert harness.task.health is Health.FAILED and before.items() <= harness.log.disk.frames.items()


# --- on files -----------------------------------------------------------------------------------------------

QUEUE = QueueDescription("orders", "sbemulatorns_" + "5" * 32, 16)


@asynccontextmanager
async def partition(root: Path) -> AsyncIterator[PartitionTask]:
    """A running partition on the files below `root`, which ends without a checkpoint."""
    store = FileLogStore(root, fsync="always", segment_bytes_max=64 << 10, reserve_bytes=0)
    log = store.log(QUEUE.generation, 3)
    task = PartitionTask(
        3, log=log, clock=ManualClock(), description=QUEUE, payloads=PayloadBudget(1 << 20, 0)
    )
    run = asyncio.create_task(task.run())
    try:
        await task.opened()
        yield task
    finally:
        run.cancel()
        await asyncio.wait([run], timeout=WAIT_S)
        await log.close()
        await store.close()


@pytest.mark.parametrize("has_checkpoint", [False, True])
async def test_a_damaged_log_is_rebuilt_with_all_of_the_state_but_the_changes_that_are_damaged(
    tmp_path: Path, has_checkpoint: bool
) -> None:
    async with partition(tmp_path) as task:
        await ask(task, posted(Change([put(b"first", b"1"), put(b"second", b"2")])))
        await ask(task, Send([b"a message"], None))
        if has_checkpoint:
            assert task._upkeep is not None
            await task._upkeep._save_another(0)
        place = task._log.end + FRAME_HEADER_BYTES + RECORD_HEADER_BYTES
        await ask(task, posted(Change([put(b"first", b"lost"), put(b"third", b"lost")])))
        await ask(task, posted(Change([put(b"second", b"4"), put(b"fourth", b"5")])))
        expected = {b"first": b"1", b"second": b"4", b"fourth": b"5"}

    [segment] = files(tmp_path, "*.segment")
    flip(segment, 256 + place)
    repair = Repair([tmp_path])
    repair.open()
    await asyncio.to_thread(lambda: repair.carry_out(repair.plan()))
    repair.close()
    for without_checkpoints in (False, True):
        if without_checkpoints:
            for path in files(tmp_path / "logs", "*.checkpoint"):
                path.unlink()
        async with partition(tmp_path) as task:
            assert task.health is Health.HEALTHY and entries(task) == expected
            locked = await ask(task, Demand("", 1))
            assert isinstance(locked, Locked) and locked.messages == [b"a message"]


def files(root: Path, pattern: str) -> list[Path]:
    return list(root.rglob(pattern))
