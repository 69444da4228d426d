"""Checking logs and documents: everything damaged or missing is found and located. A log that is being
written is not damaged."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from storage.catalogue import Catalogue
from storage.check import Progress, check_documents, check_log
from storage.document_file import file_name_of
from storage.segment import SEGMENT_HEADER_BYTES
from storage.survey import Finding, Severity
from tests.support.logs import ENTITY, append, checkpoint_of, flip, small_store
from tests.support.surveyed import DISK, check, files, folder_of, written


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
