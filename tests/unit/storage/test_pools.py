"""storage/pools.py: slow work on the disk does not hold up work of another kind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from storage import workers
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import append, checkpoint_of, contents, small_store
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")
WITHIN_S = 30.0


async def until_hanging(disk: FaultyDisk, count: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while disk.held < count:  # noqa: ASYNC110 (what is waited for is a plain value)
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("deleted", [1, 4])
async def test_while_logs_are_removed_and_checkpoints_written_others_open_commit_and_read(
    monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    monkeypatch.setattr(workers, "STUCK_MAX", 0)  # no other thread replaces one that hangs
    disk = FaultyDisk(RecordingDisk())
    store = small_store(ROOT, disk, worker_threads=1)
    busy, other, third = (store.log(name, 0) for name in ("busy", "other", "third"))
    for log in (busy, other):
        await log.acquire()
    position = await append(other, b"read me")
    for number in range(deleted):
        await store.log(f"gone-{number}", 0).acquire()
        await store.log(f"gone-{number}", 0).close()
    disk.hang("remove_tree", "gone")
    disk.hang("create", "/busy/")
    background = [asyncio.create_task(store.delete(f"gone-{number}")) for number in range(deleted)]
    background.append(asyncio.create_task(busy.save_checkpoint(checkpoint_of(busy.end, b"state"))))
    try:
        await until_hanging(disk, 2)
        async with asyncio.timeout(WITHIN_S):
            assert [bytes(frame.records()[0].body) for frame in await other.fetch([position])] == [b"read me"]
            await append(other, b"more")
            await other.save_checkpoint(checkpoint_of(other.end, b"state"))
            await third.acquire()
            assert await contents(third) == []
    finally:
        disk.release()
        await asyncio.wait_for(asyncio.gather(*background), WITHIN_S)
        for log in (busy, other, third):
            await log.close()
        await store.close()


async def test_a_slow_read_holds_up_no_acquire_and_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "STUCK_MAX", 0)
    disk = FaultyDisk(RecordingDisk())
    store = small_store(ROOT, disk, worker_threads=1)
    cold, other = store.log("cold", 0), store.log("other", 0)
    for log in (cold, other):
        await log.acquire()
    positions = [await append(cold, b"cold") for _ in range(3)]
    disk.hang("read", "/cold/")
    reading = [asyncio.create_task(cold.fetch([position])) for position in positions]
    try:
        await until_hanging(disk, 2)
        async with asyncio.timeout(WITHIN_S):
            await append(other, b"more")
            await other.save_checkpoint(checkpoint_of(other.end, b"state"))
            await store.log("third", 0).acquire()
    finally:
        disk.release()
        await asyncio.wait_for(asyncio.gather(*reading), WITHIN_S)
        for log in (cold, other, store.log("third", 0)):
            await log.close()
        await store.close()
