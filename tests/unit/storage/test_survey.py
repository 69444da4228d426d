"""Surveys of a log: reading goes on behind damage, and what is missing is found."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage.log import Frame
from storage.segment import SEGMENT_HEADER_BYTES
from storage.survey import Gap, Severity, frames, survey_files
from tests.support.logs import ENTITY, acquired, append, flip
from tests.support.surveyed import DISK, check, files, folder_of, written


async def test_behind_a_damaged_frame_reading_goes_on(tmp_path: Path) -> None:
    positions = await written(tmp_path)
    first, second, *_ = files(tmp_path, ".segment")
    flip(first, SEGMENT_HEADER_BYTES + positions[1] + 70)
    flip(second, 30)
    flip(second, SEGMENT_HEADER_BYTES + 8)
    survey = survey_files(DISK, folder_of(tmp_path))
    found = list(frames(DISK, survey))
    assert [frame.position for frame in found if isinstance(frame, Frame)] == [
        each for each in positions if each not in (positions[1], positions[3])
    ]
    gaps = [gap for gap in found if isinstance(gap, Gap)]
    assert [(gap.path, gap.position, gap.end) for gap in gaps] == [
        (first, positions[1], positions[2]),
        (second, positions[3], positions[4]),
    ]
    assert [gap.offset for gap in gaps] == [SEGMENT_HEADER_BYTES + positions[1], SEGMENT_HEADER_BYTES]


async def test_the_folder_of_a_log_that_is_missing_is_found(tmp_path: Path) -> None:
    await written(tmp_path)
    shutil.rmtree(tmp_path / "logs")
    [finding] = check(tmp_path)
    assert (finding.severity, finding.entity, finding.partition) == (Severity.UNUSABLE, ENTITY, 0)
    assert "all segments of the log are missing" in finding.why


async def test_an_unfinished_commit_is_no_damage(tmp_path: Path) -> None:
    left = tmp_path / "left"
    async with acquired(tmp_path / "used") as log:
        for number in range(3):
            await append(log, b"%d" % number * 100)
        end = SEGMENT_HEADER_BYTES + log.end
        shutil.copytree(tmp_path / "used", left)  # as a kill leaves it
    [path] = files(left, ".segment")
    whole = path.read_bytes()[:end]
    assert len(whole) == end
    for cut in (end - 1, end - 100, end - 150):
        path.write_bytes(whole[:cut] + bytes(1_000))
        [finding] = check(left)
        assert (finding.severity, finding.path) == (Severity.NOTE, str(path)) and finding.offset < cut
    path.write_bytes(whole + bytes(5_000))
    assert check(left) == [], "room that is not used yet"


async def test_the_extent_of_a_log_that_was_used_is_missed_however_short_the_log_is(tmp_path: Path) -> None:
    async with acquired(tmp_path) as log:
        await append(log, b"one")
    [extent] = files(tmp_path, ".extent")
    extent.unlink()
    [finding] = check(tmp_path)
    assert (finding.severity, finding.path) == (Severity.SPARE, str(extent))
    assert "the extent is missing" in finding.why
    async with acquired(tmp_path):
        pass
    assert check(tmp_path) == [], "its next owner has made it again"


async def test_a_crash_may_leave_a_log_that_holds_nothing_without_an_extent(tmp_path: Path) -> None:
    async with acquired(tmp_path):
        pass
    [extent] = files(tmp_path, ".extent")
    extent.unlink()
    assert check(tmp_path) == []
