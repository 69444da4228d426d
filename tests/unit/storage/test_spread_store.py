"""storage/spread_store.py: what is certain when a data folder does not answer."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.disk import LocalDisk
from storage.errors import DiskFull, DiskHangs, StorageError
from storage.spread_store import SpreadStore, folders_of_new, place
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import append, small_store
from tests.support.recording_disk import RecordingDisk

FIRST, SECOND = Path("/first"), Path("/second")
HELD, EMPTY = "a" * 32, "b" * 32


@pytest.mark.parametrize(
    "trouble",
    [lambda disk: disk.fail("names", times=1_000), lambda disk: disk.hang("names")],
    ids=["fails", "hangs"],
)
async def test_an_entity_is_without_logs_only_if_every_folder_says_so(
    trouble: Callable[[FaultyDisk], None],
) -> None:
    second = FaultyDisk(RecordingDisk())
    stores = [small_store(FIRST, RecordingDisk()), small_store(SECOND, second)]
    log = stores[1].log(HELD, 0)
    await log.acquire()
    await append(log, b"body")
    await log.close()
    unknown = small_store(Path("/none"), RecordingDisk())
    spread = SpreadStore(stores, unknown, timeout_ms=500)
    assert await spread.is_without_logs(EMPTY) and not await spread.is_without_logs(HELD)
    trouble(second)
    for entity in (EMPTY, HELD):
        with pytest.raises(StorageError):
            await spread.is_without_logs(entity)
    assert await spread.partitions(HELD) == [], "for those who only want what there is to open"
    second.release()
    second.heal()
    for store in (*stores, unknown):
        await store.close()


async def test_a_folder_that_hangs_holds_up_one_question_and_none_at_the_start() -> None:
    second = FaultyDisk(RecordingDisk())
    stores = [small_store(FIRST, RecordingDisk()), small_store(SECOND, second)]
    unknown = small_store(Path("/none"), RecordingDisk())
    spread = SpreadStore(stores, unknown, missing=[1], timeout_ms=50)
    second.hang("names")
    assert await spread.entities() == [], "the folder is not asked: it was missing at the start"
    assert second.held == 0
    for number in range(100):
        assert await spread.partitions(f"{number:032}") == []
    assert second.held == 1, "a hundred queues do not wait for the same disk, one after another"
    second.release()
    for store in (*stores, unknown):
        await store.close()


async def test_missing_logs_are_found_beside_a_folder_that_hangs(tmp_path: Path) -> None:
    first, second = FaultyDisk(LocalDisk()), FaultyDisk(LocalDisk())
    roots = tmp_path / "first", tmp_path / "second"
    for root, disk in zip(roots, (first, second), strict=True):
        store = small_store(root, disk)
        for entity in (HELD, EMPTY):
            log = store.log(entity, 0)
            await log.acquire()
            await append(log, b"body")
            await log.close()
        await store.close()
        shutil.rmtree(root / "logs" / HELD)
    stores = [small_store(roots[0], first), small_store(roots[1], second)]
    spread = SpreadStore(stores, small_store(tmp_path / "none"), timeout_ms=500)
    assert await spread.missing() == {HELD: [0]}
    second.hang("names", str(Path("second") / "catalogue"))
    # Symptom: the broker never opened the partitions whose logs another folder had lost.
    async with asyncio.timeout(30):
        assert await spread.missing() == {HELD: [0]}
    first.hang("names")
    async with asyncio.timeout(30):
        with pytest.raises(DiskHangs):
            await spread.missing()
    first.release()
    second.release()
    await spread.close()


async def test_room_is_kept_in_the_folder_that_holds_the_partitions() -> None:
    stores = [small_store(root, RecordingDisk(capacity_bytes=1_000_000)) for root in (FIRST, SECOND)]
    spread = SpreadStore(stores, small_store(Path("/none"), RecordingDisk()))
    logs = [store.log(EMPTY, 0) for store in stores]
    for log in logs:
        await log.acquire()
    spread.keep_room(HELD, {1: (2_000_000, 0)}, 1)
    spread.keep_room(HELD, {0: (2_000_000, 0)}, 2)
    await append(logs[0], b"x")
    with pytest.raises(DiskFull):
        await append(logs[1], b"x")
    await spread.delete(HELD)
    await append(logs[1], b"x")
    for log in logs:
        await log.close()
    await spread.close()


def test_a_new_entity_has_no_partition_in_a_folder_that_is_lost_if_that_is_possible() -> None:
    assert folders_of_new(3, frozenset()) == 3
    for lost in ({2}, {2, 3}, {1, 3}, {1, 2, 3}):
        folders = folders_of_new(4, frozenset(lost))
        assert folders == min(lost)
        assert not {place(HELD, partition, folders) for partition in range(16)} & lost
    assert folders_of_new(3, {0, 2}) == 3, "the catalogue decides whether there can be a new one"
    assert folders_of_new(3, {7}) == 3
