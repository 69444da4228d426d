"""A partition whose files are missing says which ones and how to go on, whichever record tells that they
existed; the commands can help."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.entities.descriptions import MAIN
from broker.maintenance.check import check_folders
from broker.maintenance.repair import Repair
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete
from storage.log import Checkpoint
from storage.survey import Severity
from tests.support.logs import acquired, append
from tests.support.partition_asking import ask
from tests.support.recording_disk import RecordingDisk
from tests.support.waiting import until
from tests.unit.broker.partition.test_on_files import everything, partition


async def written(root: Path) -> dict[int, bytes]:
    """Write a log of several segments, trimmed at its beginning; returns the messages that it holds."""
    async with partition(root) as task:
        expected: dict[int, bytes] = {}
        for number in range(120):
            bodies = [b"%d %d " % (number, each) * 150 for each in range(5)]
            sent = await ask(task, Send(bodies, None))
            assert isinstance(sent, Sent)
            expected.update(enumerate(bodies, sent.first))
        locked = await ask(task, Demand(MAIN, 200))
        assert isinstance(locked, Locked)
        await ask(task, Complete(locked.tokens))
        for number in locked.sequence_numbers:
            del expected[number]
        await until(lambda: task._log.start > 0)
    return expected


def segments(root: Path) -> list[Path]:
    return sorted(root.glob("logs/*/0003/*.segment"))


def extent(root: Path) -> Path:
    return next(root.glob("catalogue/logs/*/0003.extent"))


def first_segments_and_extent(root: Path) -> Path:
    for path in [*segments(root)[:-2], extent(root)]:
        path.unlink()
    return segments(root)[0].parent


def middle_segment(root: Path) -> Path:
    path = segments(root)[-2]
    path.unlink()
    return path


def checkpoints_of_a_trimmed_log(root: Path) -> Path:
    for path in root.glob("logs/*/0003/*.checkpoint"):
        path.unlink()
    return segments(root)[0].parent


LOSSES: dict[str, Callable[[Path], Path]] = {
    "first segments and extent": first_segments_and_extent,
    "middle segment": middle_segment,
    "all checkpoints": checkpoints_of_a_trimmed_log,
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_it_fails_with_the_name_of_what_is_missing_and_the_commands_save_the_rest(
    tmp_path: Path, loss: str
) -> None:
    expected = await written(tmp_path)
    assert len(segments(tmp_path)) > 3
    named = LOSSES[loss](tmp_path)
    with capture_logs() as lines:
        async with partition(tmp_path) as task:
            await task.opened()
            assert task.health == "damaged"
    assert "partition.bug" not in [line["event"] for line in lines]
    [failed] = [line for line in lines if line["event"] == "partition.failed"]
    assert str(named).rpartition("-")[0] in failed["error"] and "partibus repair" in failed["advice"]

    findings = check_folders([tmp_path]).findings
    assert [
        each.partition
        for each in findings
        if each.severity is Severity.UNUSABLE and each.partition is not None
    ]
    await asyncio.to_thread(repaired, tmp_path)
    async with partition(tmp_path) as task:
        there = await everything(task)
        assert (
            task.health == "healthy"
            and there
            and all(expected.get(number, body) == body for number, body in there.items())
        )


def repaired(root: Path) -> None:
    work = Repair([root])
    work.open()
    try:
        work.carry_out(work.plan())
    finally:
        work.close()


async def test_without_an_extent_a_log_in_good_order_has_no_findings_that_matter(tmp_path: Path) -> None:
    expected = await written(tmp_path)
    extent(tmp_path).unlink()
    copy = tmp_path.with_name("copy")
    shutil.copytree(tmp_path, copy)
    assert not [
        each
        for each in check_folders([copy]).findings
        if each.severity is Severity.UNUSABLE and each.partition is not None
    ]
    async with partition(copy) as task:
        assert await everything(task) == expected


async def test_a_power_cut_undoes_no_commit_that_let_a_segment_be_trimmed() -> None:
    disk = RecordingDisk()
    async with acquired(Path("/data"), disk, fsync="never", segment_bytes_max=1_000) as log:
        for _ in range(5):
            await append(log, b"x" * 600)
        await log.save_checkpoint(Checkpoint(log.end, ()))
        await log.save_checkpoint(Checkpoint(log.end, ()))
        settled = await append(log, b"all of it is settled")
        await log.trim(log.trim_points[-1])
        assert log.start > 0
        copy = disk.after_power_cut()
    async with acquired(Path("/data"), copy) as log:
        assert log.start > 0 and log.end > settled
