"""Damage and torn tails (durability rule 5): what a crash explains is cut off and reported, anything else is
refused by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog

from storage.errors import CorruptRecord
from storage.log import FRAME_HEADER_BYTES, Parts, Position
from storage.segment import SEGMENT_HEADER_BYTES
from tests.support.logs import acquired, append, checkpoint_of, contents
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")
LOG = ROOT / "logs" / "orders%231" / "0000"
COMMITS = [[b"first"], [b"second", b"and third"], [b""], [b"x" * 40], [b"last but one"], [b"the last"]]


async def written(**settings: Any) -> tuple[RecordingDisk, list[Position]]:
    """Write the commits and crash: the zeros behind them stay. Gives the disk, and the positions of the
    commits and of the end.
    """
    disk = RecordingDisk()
    async with acquired(ROOT, disk, **settings) as log:
        positions = [await append(log, *bodies) for bodies in COMMITS] + [log.end]
        return disk.after_kill(), positions


def segments(disk: RecordingDisk) -> list[Path]:
    return sorted(LOG / name for name in disk.names(LOG) if name.endswith(".segment"))


def damaged(disk: RecordingDisk, path: Path, offset: int) -> RecordingDisk:
    copy = disk.after_power_cut()
    copy.contents(path)[offset] ^= 0x20
    return copy


async def read(disk: RecordingDisk, since: Position | None = None) -> list[list[bytes]]:
    async with acquired(ROOT, disk) as log:
        return await contents(log, since)


async def test_a_tail_cut_at_any_byte_loses_only_the_frames_that_the_cut_reaches() -> None:
    disk, positions = await written()
    [path] = segments(disk)
    ends = [SEGMENT_HEADER_BYTES + position for position in positions]
    for size in range(ends[-1] + 1):
        copy = disk.after_power_cut()
        del copy.contents(path)[size:]
        if size < SEGMENT_HEADER_BYTES:
            with pytest.raises(CorruptRecord) as refused:
                await read(copy)
            assert refused.value.path == str(path)
            continue
        whole = sum(end <= size for end in ends[1:])
        with structlog.testing.capture_logs() as events:
            assert await read(copy) == COMMITS[:whole]
        reported = [event for event in events if event["event"] == "log.tail_cut"]
        assert len(reported) == (size not in ends), "a tail that was cut is reported"
        assert all(event["bytes"] == size - ends[whole] and event["path"] == str(path) for event in reported)


async def test_a_flipped_byte_before_the_last_frame_is_refused_with_file_and_place() -> None:
    disk, positions = await written()
    [path] = segments(disk)
    last = SEGMENT_HEADER_BYTES + positions[-2]
    for offset in range(last):
        with pytest.raises(CorruptRecord) as refused:
            await read(damaged(disk, path, offset))
        assert refused.value.path == str(path)
        frame = max((p for p in positions if SEGMENT_HEADER_BYTES + p <= offset), default=None)
        assert refused.value.position == (0 if frame is None else SEGMENT_HEADER_BYTES + frame)


async def test_a_flipped_byte_in_the_last_frame_or_behind_it_never_passes_for_data() -> None:
    disk, positions = await written()
    [path] = segments(disk)
    last, end = (SEGMENT_HEADER_BYTES + position for position in positions[-2:])
    for offset in [*range(last, end + 100), len(disk.after_power_cut().contents(path)) - 1]:
        with structlog.testing.capture_logs() as events:
            assert await read(damaged(disk, path, offset)) == (COMMITS[:-1] if offset < end else COMMITS)
        assert "log.tail_cut" in [event["event"] for event in events]


async def test_a_flipped_byte_anywhere_in_an_older_segment_is_refused_with_file_and_place() -> None:
    disk, _ = await written(segment_bytes_max=400)
    paths = segments(disk)
    assert len(paths) > 2
    for path in paths[:-1]:
        for offset in range(len(disk.contents(path))):
            with pytest.raises(CorruptRecord) as refused:
                await read(damaged(disk, path, offset))
            assert refused.value.path == str(path)
            assert refused.value.position <= offset


@pytest.mark.parametrize("missing", [1, 2])
async def test_a_missing_segment_in_the_middle_is_refused(missing: int) -> None:
    disk, _ = await written(segment_bytes_max=400)
    disk.remove(segments(disk)[missing])
    with pytest.raises(CorruptRecord, match=r"the segment between .* is missing"):
        await read(disk)


async def test_a_fetch_of_a_flipped_byte_is_refused_and_its_neighbours_are_read() -> None:
    disk, positions = await written()
    [path] = segments(disk)
    for offset in range(positions[3], positions[4]):
        copy = disk.after_power_cut()
        async with acquired(ROOT, copy) as log:
            [its_path] = segments(copy)
            copy.contents(its_path)[SEGMENT_HEADER_BYTES + offset] ^= 1
            with pytest.raises(CorruptRecord) as refused:
                await log.fetch(positions[2:5])
            assert (refused.value.path, refused.value.position) == (
                str(its_path),
                SEGMENT_HEADER_BYTES + positions[3],
            )
            with pytest.raises(CorruptRecord) as refused:
                await log.fetch_parts(Parts(positions[2:5], [FRAME_HEADER_BYTES] * 3, [1] * 3))
            assert refused.value.position == SEGMENT_HEADER_BYTES + positions[3]
            frames = await log.fetch([positions[4], positions[2]])
            assert [frame.position for frame in frames] == [positions[4], positions[2]]
    assert path


async def test_a_tail_that_a_checkpoint_calls_durable_is_not_cut() -> None:
    disk = RecordingDisk()
    async with acquired(ROOT, disk) as log:
        for bodies in COMMITS:
            await append(log, *bodies)
        await log.save_checkpoint(checkpoint_of(log.end, b"state"))
    [path] = segments(disk)
    end = len(disk.contents(path))
    for size in range(SEGMENT_HEADER_BYTES, end):
        copy = disk.after_power_cut()
        del copy.contents(path)[size:]
        with pytest.raises(CorruptRecord) as refused:
            await read(copy)
        assert refused.value.path == str(path)


async def test_a_message_that_holds_a_whole_frame_is_not_taken_for_one_in_a_torn_tail() -> None:
    disk, positions = await written()
    [path] = segments(disk)
    stolen = bytes(disk.contents(path)[SEGMENT_HEADER_BYTES + positions[4] :])[: positions[5] - positions[4]]
    async with acquired(ROOT, disk) as log:
        begin = await append(log, stolen * 3)
        disk = disk.after_kill()
    [path] = segments(disk)
    disk.contents(path)[SEGMENT_HEADER_BYTES + begin + FRAME_HEADER_BYTES] ^= 1
    assert await read(disk) == COMMITS
