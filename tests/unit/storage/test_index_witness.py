"""storage/index_witness.py: an outdated index is noticed, and a folder whose disk hangs does not delay the
others."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from storage.errors import DiskFailed
from storage.index_witness import WITNESS_NAME, Says, Witness, decode
from storage.index_witness import damage as damage_of
from storage.partition_index import COPY_NAME, INDEX_NAME, PartitionIndex
from storage.record import crc32c
from tests.support.faulty_disk import FaultyDisk
from tests.support.recording_disk import RecordingDisk
from tests.support.waiting import until

FOLDERS = (Path("/first"), Path("/second"))
HANGS = "/first/catalogue"


def index_of(disk: Any) -> PartitionIndex:
    """The index in the first of two folders."""
    return PartitionIndex(
        FOLDERS[0] / "catalogue",
        disk,
        write_delay_ms=1,
        close_within_ms=20_000,
        witnesses=[Witness(root, disk) for root in FOLDERS],
    )


async def loaded(disk: Any) -> PartitionIndex:
    """The index as the next start finds it; a new one without partitions if there is none."""
    index = index_of(disk)
    for witness in index.witnesses:
        await witness.read()
    if not await index.load():
        await index.rebuild({})
    return index


def doubted(index: PartitionIndex) -> list[int]:
    return [number for number, witness in enumerate(index.witnesses) if index.contradicts(witness)]


def open_of(index: PartitionIndex) -> set[tuple[str, int]]:
    return {
        (entity, number)
        for entity in index.entities()
        for number, is_open, _ in index.partitions(entity)
        if is_open
    }


@pytest.fixture
def recording() -> RecordingDisk:
    made = RecordingDisk()
    for root in FOLDERS:
        made.make_directory(root)
    made.sync_directory(Path("/"))
    return made


@pytest.fixture
def disk(recording: RecordingDisk) -> FaultyDisk:
    return FaultyDisk(recording)


async def used(disk: Any) -> PartitionIndex:
    """An index with one partition in each folder, open."""
    index = await loaded(disk)
    for folder in range(2):
        await index.opened("a", folder, folder)
    return index


def test_a_changed_byte_makes_a_witness_say_nothing() -> None:
    tail = b"\1\0\0\0" + (7).to_bytes(8, "little")
    whole = b"PbWitnss" + crc32c(tail).to_bytes(4, "little") + tail
    assert decode(whole) == (Says.VALID, 7)
    assert all(
        decode(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]) is None for at in range(len(whole))
    )
    assert decode(whole[:-1]) is None and decode(b"") is None


async def test_after_a_stop_and_after_a_crash_the_index_is_believed(disk: FaultyDisk) -> None:
    index = await used(disk)
    assert doubted(await loaded(disk)) == [], "a crash: what was open is entered as open"
    index.closed("a", 0, b"note")
    await index.close()
    again = await loaded(disk)
    assert doubted(again) == [] and again.note("a", 0) == b"note"


@pytest.mark.parametrize("stopped", [False, True])
async def test_an_index_from_a_backup_is_not_believed(
    disk: FaultyDisk, recording: RecordingDisk, stopped: bool
) -> None:
    index = await used(disk)
    for folder in range(2):
        index.closed("a", folder, b"old")
    if stopped:
        await index.close()
        index = await loaded(disk)
    else:
        await until(lambda: index._reached() is not None)
    backup = {
        name: bytes(recording.contents(FOLDERS[0] / "catalogue" / name)) for name in (INDEX_NAME, COPY_NAME)
    }
    for folder in range(2):
        await index.opened("a", folder, folder)
        index.closed("a", folder, b"new")
    await index.close()
    for name, content in backup.items():
        path = FOLDERS[0] / "catalogue" / name
        recording.write(recording.create(path), [content], 0)
    again = await loaded(disk)
    assert doubted(again) == [0, 1] and again.note("a", 0) == b"old", "it does not show that it is old"
    await again.doubt({"a": [0, 1, 2]})
    assert open_of(again) == {("a", number) for number in range(3)}
    last = await loaded(disk)
    assert doubted(last) == [] and open_of(last) == open_of(again), "what is doubted is doubted once"


@pytest.mark.parametrize("damage", ["missing", "damaged", "unreadable"])
async def test_a_folder_without_a_witness_is_counted_anew(
    disk: FaultyDisk, recording: RecordingDisk, damage: str
) -> None:
    await (await used(disk)).close()
    if damage == "missing":
        recording.remove(FOLDERS[1] / WITNESS_NAME)
    elif damage == "damaged":
        recording.write(recording.open_write(FOLDERS[1] / WITNESS_NAME), [b"x"], 20)
    else:
        disk.fail("open_read", errno.EIO, path_part=WITNESS_NAME, nth=2)
    assert doubted(await loaded(disk)) == [1]
    disk.heal()
    assert [path for root in FOLDERS for path, *_ in damage_of(disk, root)] == [FOLDERS[1] / WITNESS_NAME] * (
        damage == "damaged"
    )


async def test_while_the_indexs_disk_hangs_other_folders_open_and_a_crash_makes_them_count_anew(
    disk: FaultyDisk, recording: RecordingDisk
) -> None:
    index = await used(disk)
    index.closed("a", 0, b"note")
    index.closed("a", 1, b"note")
    await until(lambda: index._reached() is not None)
    disk.hang("sync", HANGS)
    try:
        own = asyncio.create_task(index.opened("a", 0, 0))
        async with asyncio.timeout(20):
            await asyncio.gather(*(index.opened("a", number, 1) for number in range(1, 10)))
            index.closed("a", 1, b"at rest meanwhile")
            await index.opened("a", 1, 1)
        assert not own.done(), "its own disk hangs, too"
        crashed = await loaded(recording.after_power_cut(random.Random(0)))
        assert doubted(crashed) == [1]
        assert crashed.note("a", 0) == b"note" or ("a", 0) in open_of(crashed)
    finally:
        disk.release()
    async with asyncio.timeout(20):
        await own
    await until(lambda: index.witnesses[1].says is Says.VALID)
    again = await loaded(disk)
    assert doubted(again) == [] and open_of(again) == {("a", number) for number in range(10)}, (
        "the entries were made up for"
    )


async def test_when_both_disks_hang_nothing_is_opened_and_the_index_is_closed_in_time(
    disk: FaultyDisk,
) -> None:
    index = await used(disk)
    index._close_within_s = 0.1
    disk.hang("sync")
    try:
        opening = asyncio.create_task(index.opened("a", 3, 1))
        await until(lambda: disk.held == 2)
        assert not opening.done()
        opening.cancel()
        async with asyncio.timeout(20):
            await index.close()
    finally:
        disk.release()


async def test_a_witness_that_cannot_be_made_void_leaves_the_partition_waiting_for_the_index(
    disk: FaultyDisk,
) -> None:
    index = await used(disk)
    disk.hang("sync", HANGS)
    disk.fail("create", errno.EROFS, path_part=WITNESS_NAME)
    try:
        with capture_logs() as lines:
            opening = asyncio.create_task(index.opened("a", 3, 1))
            await until(lambda: any(line["event"] == "witness.not_written" for line in lines))
        assert not opening.done()
    finally:
        disk.release()
    async with asyncio.timeout(20):
        await opening
    assert ("a", 3) in open_of(await loaded(disk))


async def test_an_index_that_can_be_neither_written_nor_removed_is_not_believed_later(
    disk: FaultyDisk,
) -> None:
    index = await used(disk)
    for folder in range(2):
        index.closed("a", folder, b"note")
    await until(lambda: index._reached() is not None)
    for operation in ("open_write", "create", "remove"):
        disk.fail(operation, errno.EIO, times=100, path_part="partitions.index")
    for folder in range(2):
        await index.opened("a", folder, folder)
    disk.heal()
    assert doubted(await loaded(disk)) == [0, 1]


async def test_a_folder_that_was_not_there_is_not_overwritten_before_it_was_asked(disk: FaultyDisk) -> None:
    await (await used(disk)).close()
    index = index_of(disk)
    is_there = False

    def admit() -> None:
        if not is_there:
            raise DiskFailed("the data folder is missing")

    index.witnesses = [index.witnesses[0], Witness(FOLDERS[1], disk, admit=admit)]
    await index.witnesses[0].read()
    with pytest.raises(DiskFailed):
        await index.witnesses[1].read()
    assert await index.load() and doubted(index) == []
    await index.opened("a", 7, 0)
    await index.close()
    assert index.witnesses[1].says is Says.UNKNOWN
    is_there = True
    await index.witnesses[1].read()
    assert not index.contradicts(index.witnesses[1])


@pytest.mark.parametrize("seed", range(10))
async def test_after_a_power_cut_an_index_that_is_believed_is_right(seed: int) -> None:
    rng = random.Random(seed)
    recording = RecordingDisk()
    for root in FOLDERS:
        recording.make_directory(root)
    recording.sync_directory(Path("/"))
    disk = FaultyDisk(recording)
    index = await loaded(disk)
    index._late_s = 0.001
    open_now: dict[int, int] = {}
    for _ in range(25):
        number = rng.randrange(6)
        folder = number % 2
        if rng.random() < 0.2:
            disk.hang("sync", HANGS)
        elif rng.random() < 0.4:
            disk.release()
        if number in open_now:
            del open_now[number]
            index.closed("a", number, b"note")
        elif folder or not disk._holds:
            async with asyncio.timeout(20):
                await index.opened("a", number, folder)
            open_now[number] = folder
        found = await loaded(recording.after_power_cut(rng))
        wrong = doubted(found)
        missing = {each for each in open_now if ("a", each) not in open_of(found)}
        assert {open_now[each] for each in missing} <= set(wrong)
    disk.release()
    await index.close()
