"""Files of a log are missing or truncated: every loss of acknowledged records is noticed, and nothing else is
reported as a loss.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from storage.check import Progress, check_log, log_folders
from storage.errors import CorruptRecord, RecordsMissing
from storage.log import Log, Position
from storage.segment import SEGMENT_HEADER_BYTES
from storage.survey import Severity
from tests.support.logs import ENTITY, acquired, append, checkpoint_of, contents, flat, small_store
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")
ENTITY_FOLDER = ROOT / "logs" / "orders%231"
LOG = ENTITY_FOLDER / "0000"
EXTENT = ROOT / "catalogue" / "logs" / "orders%231" / "0000.extent"
SMALL = 500


async def fill(log: Log, checkpoint_after: int, trim: bool) -> list[Position]:
    """Write twelve commits, three to a segment, with two checkpoints; gives their positions."""
    positions: list[Position] = []
    for number in range(12):
        positions.append(await append(log, b"%02d" % number * 30))
        if number in (checkpoint_after - 2, checkpoint_after):
            await log.save_checkpoint(checkpoint_of(log.end, b"state"))
            if trim:
                await log.trim(positions[4])
    return positions


async def written(trim: bool = False, checkpoint_after: int = 9) -> RecordingDisk:
    """Two partitions, as a power cut leaves them after twelve commits."""
    disk = RecordingDisk()
    store = small_store(ROOT, disk, segment_bytes_max=SMALL)
    for partition in range(2):
        log = store.log(ENTITY, partition)
        await log.acquire()
        await fill(log, checkpoint_after, trim)
    left = disk.after_power_cut()
    for partition in range(2):
        await store.log(ENTITY, partition).close()
    await store.close()
    return left


def segments(disk: RecordingDisk) -> list[Path]:
    return sorted(LOG / name for name in disk.names(LOG) if name.endswith(".segment"))


def checkpoints(disk: RecordingDisk) -> list[Path]:
    return sorted(LOG / name for name in disk.names(LOG) if name.endswith(".checkpoint"))


def lose_first_segments_with_checkpoint(disk: RecordingDisk) -> None:
    remove(disk, [*checkpoints(disk)[-1:], *segments(disk)[:2]])


def lose_all_but_the_first(disk: RecordingDisk) -> None:
    remove(disk, [*segments(disk)[1:], *checkpoints(disk)])


def remove(disk: RecordingDisk, paths: list[Path]) -> None:
    for path in paths:
        disk.remove(path)


LOSSES: dict[str, Callable[[RecordingDisk], None]] = {
    "the partition's folder": lambda disk: disk.remove_tree(LOG),
    "all files in the folder": lambda disk: remove(disk, [LOG / name for name in disk.names(LOG)]),
    "the last segment": lambda disk: disk.remove(segments(disk)[-1]),
    "the last two segments": lambda disk: remove(disk, segments(disk)[-2:]),
    "a segment in the middle": lambda disk: disk.remove(segments(disk)[1]),
    "the first segment": lambda disk: disk.remove(segments(disk)[0]),
    "a checkpoint and the segments before it": lose_first_segments_with_checkpoint,
    "all but the first segment": lose_all_but_the_first,
}


@pytest.mark.parametrize("trim", [False, True], ids=["whole", "trimmed"])
@pytest.mark.parametrize("loss", LOSSES)
async def test_what_is_missing_is_damage_of_that_partition_alone_and_nothing_is_changed(
    loss: str, trim: bool
) -> None:
    disk = await written(trim)
    assert len(segments(disk)) >= 3
    LOSSES[loss](disk)
    names = sorted(disk.names(LOG))
    store = small_store(ROOT, disk)
    for _ in range(2):
        with pytest.raises(CorruptRecord) as refused:
            await store.log(ENTITY, 0).acquire()
        assert str(LOG) in refused.value.path
    assert sorted(disk.names(LOG)) == names and (
        names or "0000" not in disk.names(ENTITY_FOLDER) or loss.startswith("all files")
    )
    assert await store.partitions(ENTITY) == [0, 1]
    other = store.log(ENTITY, 1)
    await other.acquire()
    assert flat(await contents(other))[-1] == b"11" * 30
    await other.close()
    await store.close()


@pytest.mark.parametrize("folder", [ENTITY_FOLDER, ROOT / "logs"])
async def test_with_the_folder_of_all_logs_every_partition_is_missed(folder: Path) -> None:
    disk = await written()
    disk.remove_tree(folder)
    store = small_store(ROOT, disk)
    assert (await store.entities(), await store.partitions(ENTITY)) == ([ENTITY], [0, 1])
    for partition in range(2):
        with pytest.raises(
            RecordsMissing, match="all segments of the log are missing: expected position"
        ) as refused:
            await store.log(ENTITY, partition).acquire()
        assert refused.value.found == 0 and refused.value.expected > 1_000
        assert refused.value.path == str(ENTITY_FOLDER / f"{partition:04x}")
    await store.delete(ENTITY)
    log = store.log(ENTITY, 0)
    assert await log.acquire() == 1, "deleted and made again, it misses nothing"
    await log.close()
    await store.close()


async def test_a_log_that_ends_below_what_is_known_to_be_durable_is_not_a_torn_tail() -> None:
    disk = RecordingDisk()
    async with acquired(ROOT, disk) as log:
        positions = [await append(log, b"%d" % number * 30) for number in range(6)]
        await log.save_checkpoint(checkpoint_of(positions[4], b"state"))
        ends = [*positions[1:], log.end]
        left = disk.after_power_cut()
    [checkpoint], [path] = checkpoints(left), segments(left)
    left.remove(checkpoint)
    for size in range(SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + ends[-1]):
        copy = left.after_power_cut()
        copy.remove(checkpoint)
        del copy.contents(path)[size:]
        with pytest.raises(RecordsMissing) as refused:
            async with acquired(ROOT, copy):
                pass
        assert (refused.value.path, refused.value.expected) == (str(path), ends[-1])
        assert refused.value.found == max(
            end for end in [Position(0), *ends] if SEGMENT_HEADER_BYTES + end <= size
        )


@pytest.mark.parametrize("damage", ["emptied", "its table", "its block"])
async def test_a_damaged_checkpoint_still_says_how_far_the_log_went(damage: str) -> None:
    disk = RecordingDisk()
    async with acquired(ROOT, disk) as log:
        positions = [await append(log, b"%d" % number * 30) for number in range(6)]
        await log.save_checkpoint(checkpoint_of(positions[4], b"state"))
        left = disk.after_power_cut()
    [checkpoint], [path] = checkpoints(left), segments(left)
    left.remove(EXTENT)
    del left.contents(path)[SEGMENT_HEADER_BYTES + positions[3] :]
    content = left.contents(checkpoint)
    match damage:
        case "emptied":
            content.clear()
        case "its table":
            content[40] ^= 1
        case _:
            content[-1] ^= 1
    [folder] = log_folders(left, ROOT)
    findings = check_log(left, folder, lambda _: None, Progress())
    assert [Path(each.path).name for each in findings if each.severity is Severity.UNUSABLE] == [path.name]
    with pytest.raises(RecordsMissing) as refused:
        async with acquired(ROOT, left):
            pass
    assert (refused.value.expected, refused.value.found) == (positions[4], positions[3])


async def test_a_missing_checkpoint_that_nothing_needs_is_reported_and_the_log_read_from_its_start() -> None:
    disk = await written()
    for path in checkpoints(disk):
        disk.remove(path)
    with structlog.testing.capture_logs() as lines:
        async with acquired(ROOT, disk) as log:
            assert len(flat(await contents(log))) == 12
    assert "checkpoint.missing" in [line["event"] for line in lines if line["log_level"] == "error"]


async def test_an_extent_that_is_damaged_cut_off_or_gone_costs_nothing_but_a_report() -> None:
    disk = await written(trim=True)
    size = len(disk.contents(EXTENT))
    assert size == 1_024
    for offset in range(size):
        copy = disk.after_power_cut()
        copy.contents(EXTENT)[offset] ^= 4
        with structlog.testing.capture_logs() as lines:
            async with acquired(ROOT, copy) as log:
                assert flat(await contents(log))[-1] == b"11" * 30
        assert "extent.slot_damaged" in [line["event"] for line in lines]
        with structlog.testing.capture_logs() as lines:
            async with acquired(ROOT, copy):
                pass
        assert not [line for line in lines if line["log_level"] != "debug"], "it was repaired"
    for cut in range(0, size, 64):
        copy = disk.after_power_cut()
        del copy.contents(EXTENT)[cut:]
        async with acquired(ROOT, copy) as log:
            assert flat(await contents(log))[-1] == b"11" * 30
    copy = disk.after_power_cut()
    copy.remove_tree(ROOT / "catalogue")
    async with acquired(ROOT, copy) as log:
        assert flat(await contents(log))[-1] == b"11" * 30
    copy.remove_tree(LOG)
    with pytest.raises(RecordsMissing):
        async with acquired(ROOT, copy):
            pass


async def test_an_extent_that_cannot_be_read_still_says_that_there_was_a_log() -> None:
    disk = await written()
    disk.contents(EXTENT)[:] = bytes(1_024)
    disk.remove_tree(LOG)
    with pytest.raises(CorruptRecord, match="both slots are damaged"):
        async with acquired(ROOT, disk):
            pass


async def test_a_log_that_was_put_in_place_of_another_is_refused() -> None:
    disk, other = RecordingDisk(), RecordingDisk()
    async with acquired(ROOT, other) as log:
        await fill(log, 9, False)
        await log.acquire()
    async with acquired(ROOT, disk) as log:
        await append(log, b"one")
    [mine], [theirs] = segments(disk), segments(other)
    disk.remove(mine)
    fd = disk.create(theirs)
    disk.write(fd, [bytes(other.contents(theirs))], 0)
    disk.close(fd)
    with pytest.raises(CorruptRecord, match="another log"):
        async with acquired(ROOT, disk):
            pass


@pytest.mark.parametrize("seed", range(3))
async def test_at_every_sync_a_power_cut_and_the_loss_of_any_file_lose_nothing_acknowledged_unnoticed(
    seed: int,
) -> None:
    rng = random.Random(seed)
    disk = RecordingDisk(queued=bool(seed % 2))
    acknowledged: list[tuple[Position, bytes]] = []
    trimmed = 0
    images: list[tuple[RecordingDisk, int, int]] = []

    def crash() -> None:
        images.append((disk.after_power_cut(), len(acknowledged), trimmed))
        images.append((disk.after_power_cut(rng), len(acknowledged), trimmed))

    store = small_store(ROOT, disk, segment_bytes_max=SMALL)
    disk.before_sync = crash
    log: Log = store.log(ENTITY, 0)
    await log.acquire()
    for number in range(14):
        body = b"%02d" % number * rng.choice([5, 60, 400])
        acknowledged.append((await append(log, body), body))
        if number % 4 == 3:
            await log.save_checkpoint(checkpoint_of(log.end, b"state"))
            trimmed = acknowledged[number - 3][0]
            await log.trim(Position(trimmed))
        if number % 5 == 4:
            await log.acquire()
    disk.before_sync = None
    await log.close()
    await store.close()
    noticed = 0
    for image, count, trim in images:
        kept = [body for position, body in acknowledged[:count] if position >= trim]
        for name in [None, *(path for path in image.names(LOG))]:
            left = image.after_power_cut()
            if name is not None:
                left.remove(LOG / name)
            try:
                async with acquired(ROOT, left) as log:
                    found = flat(await contents(log))
            except CorruptRecord:
                assert name is not None, "a power cut alone is no damage"
                noticed += 1
                continue
            assert [body for body in found if body in kept] == kept
    assert noticed > len(images) / 2
