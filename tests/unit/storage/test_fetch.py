"""storage/fetch.py: frames by position, and neighbouring frames with one read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage.errors import DiskFailed
from storage.fetch import GAP_BYTES_MAX, READ_ON_LOOP_BYTES, RUN_BYTES_MAX
from storage.log import FRAME_HEADER_BYTES, Parts, Position
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import acquired, append
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")


async def test_neighbours_are_read_at_once_and_what_lies_apart_is_not() -> None:
    disk = FaultyDisk(RecordingDisk())
    async with acquired(ROOT, disk) as log:
        positions = [await append(log, b"x" * 1_000) for _ in range(200)]

        async def reads(wanted: list[Position]) -> int:
            before = disk.calls["read_cached"]
            frames = await log.fetch(wanted)
            assert [frame.position for frame in frames] == wanted
            return disk.calls["read_cached"] - before

        assert await reads(positions[:50]) == 0, "the file is opened by a thread, which reads as well"
        assert await reads(positions[:50]) == 1
        assert await reads(positions[:50][::-1]) == 1
        assert await reads([positions[0], positions[0]]) == 1
        assert await reads([positions[0], positions[GAP_BYTES_MAX // 1_000 + 5]]) == 2
        assert await reads([positions[-1]]) == 1


async def test_a_run_of_neighbours_has_a_bound() -> None:
    disk = FaultyDisk(RecordingDisk())
    async with acquired(ROOT, disk) as log:
        positions = [await append(log, b"x" * 50_000) for _ in range(50)]
        before = disk.calls["read"]
        assert len(await log.fetch(positions)) == 50
        assert disk.calls["read"] - before >= 50 * 50_000 // RUN_BYTES_MAX


async def test_a_frame_longer_than_what_was_read_is_completed() -> None:
    async with acquired(ROOT, RecordingDisk()) as log:
        small = await append(log, b"small")
        large = await append(log, b"L" * (3 * RUN_BYTES_MAX))
        frames = await log.fetch([large, small])
        assert [frame.position + frame.size for frame in frames] == [log.end, large]
        assert [bytes(frame.records()[0].body) for frame in frames] == [b"L" * (3 * RUN_BYTES_MAX), b"small"]


async def test_frames_of_several_segments_are_read_from_each() -> None:
    async with acquired(ROOT, RecordingDisk(), segment_bytes_max=1_000) as log:
        positions = [await append(log, b"%03d" % number * 100) for number in range(20)]
        frames = await log.fetch(positions[::-1])
        assert [bytes(frame.records()[0].body) for frame in frames] == [
            b"%03d" % number * 100 for number in range(19, -1, -1)
        ]


async def test_parts_of_frames_are_what_the_frames_have_there() -> None:
    chosen = random.Random(7)
    async with acquired(ROOT, RecordingDisk(), segment_bytes_max=300_000) as log:
        large = 2 * GAP_BYTES_MAX
        sizes = (10, 5_000, large, 20, 1_000, large, 300_000, 7)
        positions = [await append(log, *(chosen.randbytes(size) for _ in range(3))) for size in sizes]
        frames = {frame.position: frame for frame in await log.fetch(positions)}
        for _ in range(50):
            wanted = chosen.choices(positions, k=chosen.randrange(1, 12))
            offsets = [chosen.randrange(FRAME_HEADER_BYTES, frames[each].size) for each in wanted]
            sizes_wanted = [
                chosen.randrange(frames[position].size - offset + 1)
                for position, offset in zip(wanted, offsets, strict=True)
            ]
            assert await log.fetch_parts(Parts(wanted, offsets, sizes_wanted)) == [
                frames[position].part(offset, size)
                for position, offset, size in zip(wanted, offsets, sizes_wanted, strict=True)
            ]
        assert await log.fetch_parts(Parts([], [], [])) == []


async def test_the_event_loop_fetches_parts_of_any_total_size_and_reads_nothing_twice() -> None:
    disk = FaultyDisk(RecordingDisk())
    async with acquired(ROOT, disk) as log:
        bodies = [bytes([number]) * 16_000 for number in range(10)]
        wanted: list[Position] = []
        offsets: list[int] = []
        for _ in range(3 * READ_ON_LOOP_BYTES // 160_000):
            commit = log.begin()
            offsets += [commit.add(1, [body]) for body in bodies]
            wanted += [commit.start] * len(bodies)
            await log.append(commit)
        parts = Parts(wanted[::-1], offsets[::-1], [len(bodies[0])] * len(wanted))  # in any order
        await log.fetch_parts(parts)  # opens the files
        before = disk.calls.copy()
        assert await log.fetch_parts(parts) == bodies[::-1] * (len(wanted) // len(bodies))
        assert disk.calls["read"] == before["read"], "no thread had to read"
        assert disk.calls["read_cached"] - before["read_cached"] == len(set(wanted))


class _Cold(RecordingDisk):
    """Nothing is ever cached in memory."""

    def read_cached(self, fd: int, size: int, offset: int) -> bytes:
        raise BlockingIOError


async def test_what_is_not_in_memory_is_read_by_a_thread() -> None:
    async with acquired(ROOT, _Cold()) as log:
        position = await append(log, b"cold")
        [frame] = await log.fetch([position])
        assert bytes(frame.records()[0].body) == b"cold"


@pytest.mark.parametrize("operation", ["read_cached", "open_read"])
async def test_a_disk_that_cannot_read_has_failed_and_the_log_has_not(operation: str) -> None:
    disk = FaultyDisk(RecordingDisk())
    async with acquired(ROOT, disk) as log:
        position = await append(log, b"there")
        if operation == "read_cached":
            await log.fetch([position])  # opens the file
        disk.fail(operation)
        with pytest.raises(DiskFailed):
            await log.fetch([position])
        assert len(await log.fetch([position])) == 1
        await append(log, b"goes on")


async def test_positions_outside_the_log_are_the_callers_mistake() -> None:
    async with acquired(ROOT, RecordingDisk()) as log:
        await append(log, b"one")
        assert await log.fetch([]) == []
        with pytest.raises(AssertionError):
            await log.fetch([log.end])


async def test_more_than_a_little_is_read_by_a_thread_although_it_is_in_memory() -> None:
    disk = FaultyDisk(RecordingDisk())
    async with acquired(ROOT, disk) as log:
        positions = [await append(log, b"x" * 200_000) for _ in range(READ_ON_LOOP_BYTES // 200_000 + 5)]
        await log.fetch(positions[:1])
        before = disk.calls["read"]
        assert len(await log.fetch(positions[:5])) == 5
        assert disk.calls["read"] == before
        assert [frame.position for frame in await log.fetch(positions)] == positions
        assert disk.calls["read"] > before
