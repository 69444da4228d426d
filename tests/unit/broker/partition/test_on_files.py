"""A partition on the real log behaves as the tests on a log in memory show."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from broker.base.clock import ManualClock
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueDescription
from broker.identifiers import ClientId
from broker.operations.general import Failed, Unavailable
from broker.operations.interface import Answer
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete
from broker.partition.payloads import PayloadBudget
from broker.partition.task import PartitionTask
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from storage.checkpoint import CHECKPOINT_SUFFIX
from storage.disk import Disk, LocalDisk
from storage.file_store import FileLogStore
from storage.survey import Severity
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import flip
from tests.support.old_checkpoint import state_of_version_1, write_version_1
from tests.support.partition_asking import WAIT_S, ask, pages
from tests.support.surveyed import check, files
from tests.support.waiting import until

SEGMENT_BYTES = 64 * 1024
LIMITS = TaskLimits(
    upkeep=UpkeepLimits(checkpoint_bytes=200_000, garbage_bytes_max=100_000, relocation_bytes=20_000)
)
QUEUE = QueueDescription("orders", "5" * 32, 16)


@asynccontextmanager
async def partition(
    root: Path, *, crash: bool = False, disk: Disk | None = None, limits: TaskLimits = LIMITS
) -> AsyncIterator[PartitionTask]:
    """A running partition on the files below `root`; with `crash`, it ends without a checkpoint."""
    store = FileLogStore(root, disk=disk, fsync="never", segment_bytes_max=SEGMENT_BYTES, reserve_bytes=0)
    log = store.log(QUEUE.generation, 3)
    task = PartitionTask(
        3,
        log=log,
        clock=ManualClock(),
        description=QUEUE,
        payloads=PayloadBudget(30_000, 0),
        limits=limits,
    )
    run = asyncio.create_task(task.run())
    try:
        yield task
    finally:
        if crash:
            run.cancel()
            await asyncio.wait([run], timeout=WAIT_S)
            await log.close()
        else:
            await task.stop()
            await asyncio.wait_for(run, WAIT_S)
        await store.close()


async def test_a_random_load_over_restarts_keeps_every_message_and_the_files_small(tmp_path: Path) -> None:
    chance = random.Random(11)
    expected: dict[int, bytes] = {}
    for life in range(6):
        async with partition(tmp_path, crash=life % 2 == 0) as task:
            for number, body in (await everything(task)).items():
                assert expected[number] == body
            assert len(await everything(task)) == len(expected)
            for _ in range(60):
                bodies = [
                    b"%d" % chance.randrange(1 << 64) * chance.randrange(1, 120)
                    for _ in range(chance.randrange(1, 20))
                ]
                sent = await ask(task, Send(bodies, None))
                assert isinstance(sent, Sent)
                expected.update(enumerate(bodies, sent.first))
                locked = await ask(task, Demand(MAIN, len(bodies)))
                assert isinstance(locked, Locked)
                assert [expected[number] for number in locked.sequence_numbers] == locked.messages
                done = [index for index in range(len(locked.tokens)) if chance.random() < 0.97]
                await ask(task, Complete([locked.tokens[index] for index in done]))
                for index in done:
                    del expected[locked.sequence_numbers[index]]
                # The log may grow while the disk is slow, and a stop does not finish what is under way.
                await until(lambda: not task._beside.is_under_way)
            live = sum(map(len, expected.values()))
    assert bytes_below(tmp_path) < 4 * live + 100_000 + 4 * SEGMENT_BYTES


def bytes_below(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


async def upkeep_done(task: PartitionTask) -> None:
    """Wait until the partition leaves its log as it is: upkeep moves messages, and removes the segments in
    which they were, beside everything else."""

    def is_at_rest() -> bool:
        upkeep = task._upkeep
        is_due = upkeep is None or upkeep.is_due(task._clock.monotonic_ms())
        return not (task._beside.is_under_way or task._is_upkeep_due or is_due)

    await until(is_at_rest)


async def everything(task: PartitionTask) -> dict[int, bytes]:
    """All messages, page by page."""
    found: dict[int, bytes] = {}
    async for page in pages(task, MAIN, 500):
        found.update(zip(page.sequence_numbers, page.messages, strict=True))
    return found


async def test_a_folder_of_the_release_before_blocks_opens_and_gets_two_new_checkpoints(
    tmp_path: Path,
) -> None:
    async with partition(tmp_path) as task:
        for number in range(40):
            await ask(task, Send([b"%03d" % number * 2_000] * 4, None))
        locked = await ask(task, Demand(MAIN, 120))
        assert isinstance(locked, Locked)
        await ask(task, Complete(locked.tokens))
        expected = await everything(task)
        await upkeep_done(task)
        assert task._partition is not None
        state = state_of_version_1(task._partition.messages)
        position = task._log.end
    [directory] = (tmp_path / "logs" / QUEUE.generation).iterdir()
    old = write_version_1(directory, position, state)
    for _ in range(2):
        async with partition(tmp_path, crash=True) as task:
            assert await everything(task) == expected
            assert old.exists() and task._log.checkpoints[-1] == position, "it is read, and counts"
    async with partition(tmp_path) as task:
        number = 0
        async with asyncio.timeout(WAIT_S):
            # A checkpoint is due each 200 KB, and written beside the messages: they do not wait for it.
            while number < 100 or task._log.checkpoint_base is None or old.exists():
                sent = await ask(task, Send([b"%03d" % number * 2_000], None))
                assert isinstance(sent, Sent)
                expected[sent.first] = b"%03d" % number * 2_000
                number += 1
        assert len(task._log.checkpoints) == 2
    async with partition(tmp_path) as task:
        assert await everything(task) == expected


async def test_a_checkpoint_of_the_old_format_is_the_older_of_two_at_one_position(tmp_path: Path) -> None:
    """A folder is upgraded and restarted before the first message: the contents of untouched blocks
    survive."""
    async with partition(tmp_path) as task:
        for _ in range(40):
            await ask(task, Send([b"m" * 60] * 100, None))
        locked = await ask(task, Demand(MAIN, 1_500))
        assert isinstance(locked, Locked)
        await ask(task, Complete(locked.tokens))
        expected = await everything(task)
        await until(lambda: task._log.start > 0)
        await upkeep_done(task)
        assert task._partition is not None
        state = state_of_version_1(task._partition.messages)
        position = task._log.end
    [directory] = (tmp_path / "logs" / QUEUE.generation).iterdir()
    old = write_version_1(directory, position, state)
    async with partition(tmp_path, crash=True) as task:
        assert await everything(task) == expected
        await until(lambda: len(task._log.checkpoints) == 2)
        assert list(task._log.checkpoints) == [position, position], "beside the old one"
    for number in range(3):
        async with partition(tmp_path) as task:
            assert await everything(task) == expected
            sent = await ask(task, Send([b"%d" % number], None))
            assert isinstance(sent, Sent)
            expected[sent.first] = b"%d" % number
    assert not old.exists()
    async with partition(tmp_path) as task:
        assert await everything(task) == expected


async def test_waiting_clients_hear_that_a_checkpoint_hangs_and_that_the_partition_is_back(
    tmp_path: Path,
) -> None:
    disk, heard = FaultyDisk(LocalDisk()), list[Answer]()
    limits = replace(LIMITS, disk_timeout_ms=300)
    async with partition(tmp_path, disk=disk, limits=limits) as task:
        await task.opened()
        task.post(Demand(DEAD_LETTER, 1), ClientId(77), heard.append)
        disk.hang("write", CHECKPOINT_SUFFIX)
        try:
            while not disk.held:
                assert isinstance(await ask(task, Send([b"x" * 5_000], None)), Sent)
            await until(lambda: heard)
            assert heard == [Unavailable(3)] and disk.held
            assert isinstance(await ask(task, Send([b"y"], None)), Failed) and disk.held
        finally:
            disk.release()
        await until(lambda: len(heard) == 2)
        assert heard == [Unavailable(3)] * 2
        assert isinstance(await ask(task, Send([b"z"], None)), Sent)


@pytest.mark.parametrize("place", ["newest", "newest block", "older", "missing", "older missing"])
async def test_a_damaged_checkpoint_of_a_log_that_was_never_trimmed_is_replaced_at_once(
    tmp_path: Path, place: str
) -> None:
    """A check beside the broker then finds nothing any more, without further traffic.

    Symptom: nobody noticed that the older checkpoint was missing, and only one was left until the next.
    """
    limits = replace(LIMITS, upkeep=replace(LIMITS.upkeep, checkpoint_bytes=40_000))
    async with partition(tmp_path, limits=limits) as task:
        for number in range(30):
            await ask(task, Send([b"%d" % number * 2_000], None))
    older, newest = files(tmp_path, CHECKPOINT_SUFFIX)
    if place.endswith("missing"):
        (newest if place == "missing" else older).unlink()
    else:
        path = older if place == "older" else newest
        flip(path, path.stat().st_size - 1 if place == "newest block" else 20)
    assert [each.severity for each in check(tmp_path)] == [Severity.SPARE]
    async with partition(tmp_path) as task:
        assert len(await everything(task)) == 30
        await until(lambda: not check(tmp_path))
    assert not check(tmp_path)


async def test_a_partition_that_has_made_its_first_checkpoint_lacks_none(tmp_path: Path) -> None:
    limits = replace(LIMITS, upkeep=replace(LIMITS.upkeep, checkpoint_bytes=40_000))
    async with partition(tmp_path, limits=limits) as task:
        for _ in range(15):
            await ask(task, Send([b"x" * 3_000], None))
        await until(lambda: bool(files(tmp_path, CHECKPOINT_SUFFIX)))
        assert len(files(tmp_path, CHECKPOINT_SUFFIX)) == 1 and not check(tmp_path)
