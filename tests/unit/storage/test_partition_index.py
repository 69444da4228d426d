"""storage/partition_index.py: after a stop, a crash, a power cut or damage, the index is right, or says that
it does not know."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from storage.disk import LocalDisk
from storage.errors import UnknownFormat
from storage.partition_index import COPY_NAME, INDEX_NAME, PartitionIndex
from storage.record import crc32c
from tests.support.faulty_disk import FaultyDisk
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data/catalogue")
Known = dict[tuple[str, int], tuple[bool, bytes]]


def index_of(disk: object, folder: Path = ROOT) -> PartitionIndex:
    return PartitionIndex(folder, disk, write_delay_ms=1)  # type: ignore[arg-type]


def known(index: PartitionIndex) -> Known:
    """By entity and partition: whether it is open, and its note."""
    return {
        (entity, number): (is_open, note)
        for entity in index.entities()
        for number, is_open, note in index.partitions(entity)
    }


@pytest.fixture
def disk() -> RecordingDisk:
    made = RecordingDisk()
    made.make_directory(ROOT.parent)
    return made


async def loaded(disk: object, folder: Path = ROOT) -> PartitionIndex:
    """The index as the next start finds it; if missing, a new one without partitions."""
    index = index_of(disk, folder)
    if not await index.load():
        await index.rebuild({})
    return index


async def test_a_folder_without_index_gives_false_and_what_it_is_made_anew_from_counts_as_open(
    disk: RecordingDisk,
) -> None:
    index = index_of(disk)
    assert not await index.load()
    await index.rebuild({"a": [0, 3], "b": []})
    again = index_of(disk)
    assert await again.load()
    assert known(again) == {("a", 0): (True, b""), ("a", 3): (True, b"")}


async def test_after_a_stop_all_notes_are_there_and_after_a_kill_those_that_were_open_are_marked(
    disk: RecordingDisk,
) -> None:
    index = await loaded(disk)
    for number in range(3):
        await index.opened("a", number)
    await index.opened("gone", 0)
    index.closed("a", 0, b"zero")
    index.closed("a", 1, b"")
    index.forget("gone")
    assert index.note("a", 0) == b"zero" and index.note("a", 2) is None and index.note("b", 0) is None
    await index.close()
    again = await loaded(disk)
    assert known(again) == {("a", 0): (False, b"zero"), ("a", 1): (False, b""), ("a", 2): (True, b"")}
    await again.opened("a", 0)  # then the process is killed
    assert known(await loaded(disk)) == {
        ("a", 0): (True, b"zero"),
        ("a", 1): (False, b""),
        ("a", 2): (True, b""),
    }


async def test_a_note_is_written_with_nobody_waiting_and_partitions_opened_together_at_once(
    disk: RecordingDisk,
) -> None:
    import asyncio

    counting = FaultyDisk(disk)
    index = await loaded(counting)
    before = counting.calls["sync"]
    await asyncio.gather(*(index.opened("a", number) for number in range(100)))
    assert counting.calls["sync"] - before <= 2
    index.closed("a", 7, b"seven")
    async with asyncio.timeout(20):
        while known(await loaded(disk))["a", 7][0]:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.002)
    before = counting.calls["sync"]
    await index.opened("a", 8)
    assert counting.calls["sync"] == before, "it is marked already"


async def test_who_gives_up_waiting_leaves_at_once_and_the_next_one_waits_for_what_was_begun(
    disk: RecordingDisk,
) -> None:
    import asyncio

    hanging = FaultyDisk(disk)
    index = await loaded(hanging)
    for number in range(2):
        await index.opened("a", number)
        index.closed("a", number, b"note")
    await index.close()
    hanging.hang("sync", INDEX_NAME)
    try:
        waiting = [asyncio.create_task(index.opened("a", number)) for number in range(2)]
        async with asyncio.timeout(20):
            while not hanging.held:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
            for task in waiting:  # the second task waits for the first one's write
                task.cancel()
            assert len(await asyncio.gather(*waiting, return_exceptions=True)) == 2
        again = [asyncio.create_task(index.opened("a", number)) for number in range(2)]
        assert not (await asyncio.wait(again, timeout=0.1))[0], "what is not on the disk passes for durable"
    finally:
        hanging.release()
    async with asyncio.timeout(20):
        await asyncio.gather(*again)
    assert known(await loaded(disk)) == {("a", number): (True, b"note") for number in range(2)}


@pytest.mark.parametrize("seed", range(20))
async def test_after_a_power_cut_nothing_that_is_open_passes_for_closed(seed: int) -> None:
    rng = random.Random(seed)
    disk = RecordingDisk()
    disk.make_directory(ROOT.parent)
    disk.sync_directory(Path("/"))
    index = await loaded(disk)
    open_now: set[int] = set()
    notes: dict[int, bytes] = {}
    for step in range(40):
        number = rng.randrange(6)
        if number in open_now:
            open_now.discard(number)
            notes[number] = b"%d" % step
            index.closed("a", number, notes[number])
        else:
            await index.opened("a", number)
            open_now.add(number)
        left = disk.after_power_cut(rng)
        found = index_of(left)
        if not await found.load():
            continue  # then all logs are opened, which is always right
        for (_, each), (is_open, note) in known(found).items():
            assert is_open or (each not in open_now and notes[each] == note)
        assert set(notes) | open_now == {each for _, each in known(found)}
    await index.close()
    assert {each for (_, each), (is_open, _) in known(await loaded(disk)).items() if is_open} == open_now


async def written(folder: Path) -> Known:
    """Write an index of several frames."""
    index = await loaded(LocalDisk(), folder)
    for number in range(5):
        await index.opened("a", number)
        index.closed("a", number, b"note %d" % number)
    await index.close()
    return known(index)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def both_flipped_in_the_middle(folder: Path) -> None:
    for name in (INDEX_NAME, COPY_NAME):
        flip(folder / name, (folder / name).stat().st_size // 2)


def first_frames_flipped(folder: Path) -> None:
    for name in (INDEX_NAME, COPY_NAME):
        flip(folder / name, 10)


def emptied(folder: Path) -> None:
    for name in (INDEX_NAME, COPY_NAME):
        (folder / name).write_bytes(b"")


@pytest.mark.parametrize("damage", [both_flipped_in_the_middle, first_frames_flipped, emptied])
async def test_damage_of_both_files_is_reported_and_nothing_of_them_is_used(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    await written(tmp_path)
    damage(tmp_path)
    index = index_of(LocalDisk(), tmp_path)
    with capture_logs() as lines:
        assert not await index.load()
    assert [line["event"] for line in lines] == ["index.damaged"] and list(index.entities()) == []
    await index.rebuild({"a": range(5)})
    assert known(await loaded(LocalDisk(), tmp_path)) == {("a", number): (True, b"") for number in range(5)}


@pytest.mark.parametrize("name", [INDEX_NAME, COPY_NAME])
async def test_damage_of_one_file_at_any_byte_or_its_loss_costs_nothing(tmp_path: Path, name: str) -> None:
    before = await written(tmp_path)
    contents = {each: (tmp_path / each).read_bytes() for each in (INDEX_NAME, COPY_NAME)}
    for offset in [*range(0, len(contents[name]), 7), len(contents[name]) - 1, None]:
        for each, content in contents.items():
            (tmp_path / each).write_bytes(content)
        if offset is None:
            (tmp_path / name).unlink()
        else:
            flip(tmp_path / name, offset)
        index = index_of(LocalDisk(), tmp_path)
        assert await index.load() and known(index) == before, offset
        await index.close()
        assert (tmp_path / INDEX_NAME).read_bytes() == (tmp_path / COPY_NAME).read_bytes(), (
            "both are whole again"
        )


async def test_a_torn_last_frame_was_never_acknowledged_and_is_overwritten(tmp_path: Path) -> None:
    before = await written(tmp_path)
    whole = (tmp_path / INDEX_NAME).read_bytes()
    for name in (INDEX_NAME, COPY_NAME):
        (tmp_path / name).write_bytes(whole + whole[:30])
    (tmp_path / COPY_NAME).write_bytes(whole[:-3])
    index = index_of(LocalDisk(), tmp_path)
    assert not await index.load(), "a second frame that says it is the first is damage, not a torn end"
    (tmp_path / INDEX_NAME).write_bytes(whole + bytes(30))
    assert await index.load() and known(index) == before
    await index.opened("a", 1)
    assert known(await loaded(LocalDisk(), tmp_path))["a", 1] == (True, b"note 1")


async def test_an_index_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    await written(tmp_path)
    for name in (INDEX_NAME, COPY_NAME):
        data = bytearray((tmp_path / name).read_bytes())
        data[12] = 9
        length = int.from_bytes(data[8:12], "little")
        data[4:8] = crc32c(bytes(data[8:length])).to_bytes(4, "little")
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UnknownFormat):
        await index_of(LocalDisk(), tmp_path).load()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["write", "sync", "open_write"])
async def test_an_index_that_cannot_be_written_to_is_written_anew(
    disk: RecordingDisk, operation: str, error: int
) -> None:
    faulty = FaultyDisk(disk)
    index = await loaded(faulty)
    await index.opened("a", 0)
    faulty.fail(operation, error, path_part=INDEX_NAME)
    await index.opened("a", 1)
    assert known(await loaded(disk)) == {("a", 0): (True, b""), ("a", 1): (True, b"")}


async def test_on_a_full_disk_the_index_is_removed_partitions_open_and_it_comes_back_later(
    disk: RecordingDisk,
) -> None:
    faulty = FaultyDisk(disk)
    index = await loaded(faulty)
    await index.opened("a", 0)
    index.closed("a", 0, b"before")
    await index.close()
    faulty.fail("write", errno.ENOSPC, times=100, path_part="partitions.index")
    with capture_logs() as lines:
        await index.opened("a", 0)
    assert [line["event"] for line in lines] == ["index.not_written", "index.given_up"]
    assert not await index_of(disk).load(), "nobody is told that partition 0 holds what it held before"
    await index.opened("a", 1)
    faulty.heal()
    index.closed("a", 1, b"one")
    await index.close()
    assert known(await loaded(disk)) == {("a", 0): (True, b"before"), ("a", 1): (False, b"one")}


async def test_the_file_stays_in_proportion_to_what_there_is(
    disk: RecordingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.partition_index.STALE_BYTES_MIN", 1_000)
    index = await loaded(disk)
    for _ in range(200):
        await index.opened("a", 0)
        index.closed("a", 0, bytes(50))
    await index.close()
    assert len(disk.contents(ROOT / INDEX_NAME)) < 2_000
    assert known(await loaded(disk)) == {("a", 0): (False, bytes(50))}
