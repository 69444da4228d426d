"""storage/end_record.py: when the last segment loses its end, commits of some seconds ago are reported
missing."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from storage.disk import LocalDisk
from storage.errors import RecordsMissing
from storage.file_log import FileLog
from storage.segment import SEGMENT_HEADER_BYTES
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import append, contents, flat, small_store

WAIT_S = 30


async def recorded(log: FileLog) -> None:
    """Wait until the background task has recorded the log's end after a commit."""
    assert not log.is_end_recorded
    async with asyncio.timeout(WAIT_S):
        while not log.is_end_recorded:  # noqa: ASYNC110 - nothing is told when it is
            await asyncio.sleep(0.001)


def last_segment(root: Path) -> Path:
    return max(root.glob("logs/*/0000/*.segment"))


@pytest.mark.parametrize("how", ["cut to the header", "cut behind a frame", "zeroed behind a frame"])
@pytest.mark.parametrize("idle_ms", [60_000, 1], ids=["in use", "put away"])
async def test_the_end_of_the_last_segment_is_missed(tmp_path: Path, how: str, idle_ms: int) -> None:
    root, copy = tmp_path / "data", tmp_path / "copy"
    store = small_store(root, end_record_ms=50, segment_idle_ms=idle_ms)
    log = store.log("orders", 0)
    await log.acquire()
    first = await append(log, b"one")
    size = log.end - first
    for _ in range(20):
        await append(log, b"one")
    await recorded(log)
    shutil.copytree(root, copy)  # as a kill leaves it
    await log.close()
    await store.close()

    segment = last_segment(copy)
    content = segment.read_bytes()
    kept = SEGMENT_HEADER_BYTES + (0 if how == "cut to the header" else 5 * size)
    segment.write_bytes(content[:kept] + (bytes(len(content) - kept) if how.startswith("zeroed") else b""))
    store = small_store(copy)
    with pytest.raises(RecordsMissing) as missing:
        await store.log("orders", 0).acquire()
    assert missing.value.path == str(segment) and missing.value.expected == first + 21 * size
    await store.close()


async def test_without_traffic_nothing_is_recorded_and_with_much_little(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    store = small_store(tmp_path, disk, end_record_ms=60_000)
    log = store.log("orders", 0)
    await log.acquire()
    before = disk.calls["open_write"]
    for _ in range(100):
        await append(log, b"one")
    assert disk.calls["open_write"] == before and not log.is_end_recorded
    await log.record_end()
    await log.record_end()
    assert disk.calls["open_write"] == before + 1 and log.is_end_recorded
    await log.close()
    await log.record_end()
    assert log.is_end_recorded
    await store.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_disk_that_refuses_is_asked_again_and_costs_the_log_nothing(
    tmp_path: Path, error: int
) -> None:
    disk = FaultyDisk(LocalDisk())
    store = small_store(tmp_path, disk, end_record_ms=1)
    log = store.log("orders", 0)
    await log.acquire()
    disk.fail("write", error, path_part=".extent", times=2)
    await append(log, b"one")
    await recorded(log)
    await append(log, b"two")
    assert flat(await contents(log)) == [b"one", b"two"]
    await log.close()
    await store.close()


@pytest.mark.parametrize("fsync", ["always", "never"])
@pytest.mark.parametrize("damage", ["cut off", "flipped"])
async def test_a_log_that_was_closed_misses_its_last_messages(
    tmp_path: Path, damage: str, fsync: str
) -> None:
    """Symptom: after a stop at once after the last commits, damage to them counted as a commit that nobody
    was told of, and the broker cut them off without a word."""
    store = small_store(tmp_path, fsync=fsync, end_record_ms=60_000)
    log = store.log("orders", 0)
    await log.acquire()
    first = await append(log, b"one")
    size, end = log.end - first, log.end
    await log.close()
    await store.close()
    segment = last_segment(tmp_path)
    content = bytearray(segment.read_bytes()[: SEGMENT_HEADER_BYTES + size])
    content[-1] ^= 1
    segment.write_bytes(content if damage == "flipped" else content[:-1])
    store = small_store(tmp_path)
    with pytest.raises(RecordsMissing) as missing:
        await store.log("orders", 0).acquire()
    assert missing.value.expected == end
    await store.close()


async def test_a_log_is_closed_although_its_end_cannot_be_recorded(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    store = small_store(tmp_path, disk, end_record_ms=60_000)
    log = store.log("orders", 0)
    await log.acquire()
    await append(log, b"one")
    disk.fail("write", errno.EIO, path_part=".extent")
    await log.close()
    await store.close()
    store = small_store(tmp_path, disk)
    log = store.log("orders", 0)
    await log.acquire()
    assert flat(await contents(log)) == [b"one"]
    await log.close()
    await store.close()


async def test_what_is_not_synced_is_not_recorded(tmp_path: Path) -> None:
    store = small_store(tmp_path, fsync="never", end_record_ms=1)
    log = store.log("orders", 0)
    await log.acquire()
    await append(log, b"one")
    assert log.is_end_recorded, "the extent must not call durable what is not"
    await log.close()
    await store.close()


async def test_a_log_that_hangs_does_not_delay_the_ends_of_the_others(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    store = small_store(tmp_path, disk, end_record_ms=20)
    logs = [store.log("orders", partition) for partition in range(4)]
    for log in logs:
        await log.acquire()
    disk.hang("open_write", "0000.extent")
    for log in logs:
        await append(log, b"one")
    async with asyncio.timeout(WAIT_S):
        while not all(log.is_end_recorded for log in logs[1:]):  # noqa: ASYNC110 - nothing is told when it is
            await asyncio.sleep(0.001)
    for _ in range(2):  # and once more, while the first one is still under way
        await append(logs[1], b"two")
        async with asyncio.timeout(WAIT_S):
            await recorded(logs[1])
    assert not logs[0].is_end_recorded
    disk.release()
    async with asyncio.timeout(WAIT_S):
        await recorded(logs[0])
    for log in logs:
        await log.close()
    await store.close()
