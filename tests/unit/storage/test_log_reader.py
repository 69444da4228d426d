"""Reading a log. test_file_log.py shows what its owner sees of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import CorruptRecord
from tests.support.logs import acquired, append, contents
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")
LOG = ROOT / "logs" / "orders%231" / "0000"


async def test_replay_names_the_file_in_which_it_met_damage_that_came_after_the_acquire() -> None:
    disk = RecordingDisk()
    async with acquired(ROOT, disk, segment_bytes_max=400) as log:
        positions = [await append(log, b"x" * 100) for _ in range(6)]
        path = sorted(disk.names(LOG))[1]
        disk.contents(LOG / path)[300] ^= 1
        with pytest.raises(CorruptRecord) as refused:
            await contents(log)
        assert refused.value.path == str(LOG / path)
        assert len(await contents(log, positions[4])) == 2


async def test_frames_are_fetched_from_several_segments_and_replayed_from_the_middle_of_one() -> None:
    async with acquired(ROOT, RecordingDisk()) as log:
        positions = []
        for number in range(6):
            if number == 3:
                await log.roll()
            positions.append(await append(log, b"%d" % number))
        assert len(log.trim_points) == 1
        frames = await log.fetch([positions[1], positions[4]])
        assert [bytes(record.body) for frame in frames for record in frame.records()] == [b"1", b"4"]
        assert await contents(log, positions[2]) == [[b"2"], [b"3"], [b"4"], [b"5"]]
        assert await log.fetch([]) == []
