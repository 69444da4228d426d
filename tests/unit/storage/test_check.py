"""Checking logs and documents: everything damaged or missing is found and located. A log that is being
written is not damaged."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from storage.catalogue import Catalogue
from storage.check import Progress, check_documents, check_log, log_folders
from storage.disk import LocalDisk
from storage.document_file import file_name_of
from storage.log import Frame, Position
from storage.segment import SEGMENT_HEADER_BYTES
from storage.survey import Finding, Gap, LogFolder, Severity, frames, survey_files
from tests.support.logs import ENTITY, acquired, append, checkpoint_of, flip, small_store

DISK = LocalDisk()


async def written(root: Path, *, trim: bool = False) -> list[Position]:
    """Write twelve commits, three to a segment, with two checkpoints, the last one at the end; returns the
    commits' positions."""
    positions: list[Position] = []
    async with acquired(root, segment_bytes_max=700) as log:
        for number in range(12):
            positions.append(await append(log, b"%02d" % number * 30))
            if number in (7, 11):
                await log.save_checkpoint(checkpoint_of(log.end, b"state"))
        if trim:
            await log.trim(positions[4])
    return positions


def folder_of(root: Path) -> LogFolder:
    [folder] = log_folders(DISK, root)
    return folder


def check(root: Path) -> list[Finding]:
    return check_log(DISK, folder_of(root), lambda seconds: None, Progress())


def files(root: Path, suffix: str) -> list[Path]:
    return sorted(path for path in root.rglob(f"*{suffix}") if path.is_file())


@pytest.mark.parametrize("trim", [False, True], ids=["whole", "trimmed"])
async def test_every_bit_that_is_turned_is_found_where_it_is(tmp_path: Path, trim: bool) -> None:
    await written(tmp_path, trim=trim)
    assert check(tmp_path) == []
    for path in [*files(tmp_path, ".segment"), *files(tmp_path, ".checkpoint"), *files(tmp_path, ".extent")]:
        size = path.stat().st_size
        assert size > 80
        for offset in [*range(0, size, 31), size - 1]:
            flip(path, offset)
            found = check(tmp_path)
            flip(path, offset)
            assert found, (path.name, offset)
            assert {finding.path for finding in found} == {str(path)} and {
                finding.partition for finding in found
            } == {0}
            assert all(
                finding.offset <= offset and (not finding.size or offset < finding.offset + finding.size)
                for finding in found
            )
            expected = Severity.UNUSABLE if path.suffix == ".segment" else Severity.SPARE
            assert {finding.severity for finding in found} == {expected}, (path.name, offset, found)
    assert check(tmp_path) == []


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


@pytest.mark.parametrize("trim", [False, True], ids=["whole", "trimmed"])
async def test_every_file_that_is_missing_or_cut_off_is_found(tmp_path: Path, trim: bool) -> None:
    await written(tmp_path / "good", trim=trim)
    [_, newest] = files(tmp_path / "good", ".checkpoint")
    everything = [*files(tmp_path / "good", ".segment"), newest, *files(tmp_path / "good", ".extent")]
    for number, good in enumerate(everything):
        for cut in [None, *range(0, good.stat().st_size, 150), good.stat().st_size - 1]:
            root = tmp_path / f"{number}-{cut}"
            shutil.copytree(tmp_path / "good", root)
            path = root / good.relative_to(tmp_path / "good")
            if cut is None:
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[:cut])
            found = check(root)
            assert [finding for finding in found if finding.severity is not Severity.NOTE], (path.name, cut)
            if good.suffix == ".segment" and cut is not None and cut >= SEGMENT_HEADER_BYTES:
                [finding] = found
                assert finding.path == str(path) and finding.offset <= cut
            shutil.rmtree(root)


async def test_the_folder_of_a_log_that_is_missing_is_found(tmp_path: Path) -> None:
    await written(tmp_path)
    shutil.rmtree(tmp_path / "logs")
    [finding] = check(tmp_path)
    assert (finding.severity, finding.entity, finding.partition) == (Severity.UNUSABLE, ENTITY, 0)
    assert "all segments of the log are missing" in finding.why


async def test_an_unfinished_commit_is_no_damage(tmp_path: Path) -> None:
    async with acquired(tmp_path) as log:
        for number in range(3):
            await append(log, b"%d" % number * 100)
        [path] = files(tmp_path, ".segment")
        end = SEGMENT_HEADER_BYTES + log.end
    whole = path.read_bytes()[:end]
    assert len(whole) == end
    for cut in (end - 1, end - 100, end - 150):
        path.write_bytes(whole[:cut] + bytes(1_000))
        [finding] = check(tmp_path)
        assert (finding.severity, finding.path) == (Severity.NOTE, str(path)) and finding.offset < cut
    path.write_bytes(whole + bytes(5_000))
    assert check(tmp_path) == [], "room that is not used yet"


async def test_a_log_that_is_written_to_rolled_checkpointed_trimmed_and_acquired_meanwhile_is_sound(
    tmp_path: Path,
) -> None:
    store = small_store(tmp_path, segment_bytes_max=20_000)
    log = store.log(ENTITY, 0)
    await log.acquire()
    await append(log, b"first")
    checks: list[list[Finding]] = []
    ended = threading.Event()

    def pause(seconds: float) -> None:
        ended.wait(0.02)

    def keep_checking() -> None:
        while not ended.is_set() or len(checks) < 3:
            checks.append(check_log(DISK, folder_of(tmp_path), pause, Progress()))

    checking = asyncio.create_task(asyncio.to_thread(keep_checking))
    try:
        for number in range(600):
            position = await append(log, b"%04d" % number * (number % 400 + 1))
            if number % 60 == 50:
                await log.save_checkpoint(checkpoint_of(log.end, b"state"))
                await log.trim(position)
            if number % 150 == 149:
                await log.acquire()
    finally:
        ended.set()
        await checking
    assert (
        len(checks) >= 3
        and [finding for found in checks for finding in found if finding.severity is not Severity.NOTE] == []
    )
    await log.close()
    await store.close()


async def test_documents_are_checked_file_by_file(tmp_path: Path) -> None:
    await Catalogue(tmp_path / "catalogue", DISK).put("orders", b"an order" * 9)
    document = tmp_path / "catalogue" / file_name_of("orders")
    copy = document.with_suffix(".copy")

    def found() -> list[tuple[Severity, str | None, str]]:
        documents = check_documents(DISK, [tmp_path], lambda seconds: None, Progress())
        assert (
            bool(documents.contents)
            == any(each.severity is not Severity.UNUSABLE for each in documents.findings)
            or not documents.findings
        )
        return [(each.severity, each.entity, each.path) for each in documents.findings]

    assert found() == []
    for offset in range(document.stat().st_size):
        flip(document, offset)
        assert found() == [(Severity.SPARE, "orders", str(document))]
        flip(document, offset)
    flip(document, 40)
    flip(copy, 50)
    assert found() == [(Severity.UNUSABLE, "orders", str(document)), (Severity.UNUSABLE, "orders", str(copy))]
    flip(document, 40)
    copy.unlink()
    assert found() == [(Severity.SPARE, "orders", str(copy))]
