"""storage/zeros_ahead.py: zeros are written ahead of commits, and what happens when that is slow or fails."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from storage import zeros_ahead
from storage.commit_jobs import Append
from storage.errors import CommitFailed
from storage.file_log import FileLog
from storage.pools import ZEROS_THREADS
from storage.segment import FILL_STEP_BYTES_MIN
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import append, contents, on_faulty_disk
from tests.support.recording_disk import RecordingDisk

WITHIN_S = 30.0
NEVER_S = 3_600.0
ROOT = Path("/data")
SEGMENT = ".segment"


async def filled(log: FileLog) -> None:
    """Return when no zeros are being written."""
    if log._zeros is not None:
        async with asyncio.timeout(WITHIN_S):
            await log._zeros.wait()


def segment_bytes(disk: FaultyDisk, log: FileLog) -> int:
    """The size of the log's active segment."""
    assert log._opened is not None
    return disk.size(log._opened.active.fd)


async def until_hanging(disk: FaultyDisk) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not disk.held:  # noqa: ASYNC110 (what is waited for is a plain value)
            await asyncio.sleep(0.002)


async def low(log: FileLog, disk: FaultyDisk) -> None:
    """Commit until zeros are due, and let their thread hang before it has written any."""
    disk.hang("open_write", SEGMENT)
    while log._zeros is None:
        await append(log, bytes(1_000))
        assert log.end < FILL_STEP_BYTES_MIN, "zeros are due when half of them are used up"
    await until_hanging(disk)


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> list[Append]:
    """The commits that go through threads."""
    found: list[Append] = []
    run = Append.run

    def noting(job: Append) -> None:
        found.append(job)
        run(job)

    monkeypatch.setattr(Append, "run", noting)
    return found


async def test_large_commits_of_a_busy_log_find_room_too(in_threads: list[Append]) -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with on_faulty_disk(ROOT, disk, segment_bytes_max=16 << 20) as log:
        while not log.trim_points:
            await append(log, bytes(1_000_000))
            await filled(log)
        in_threads.clear()
        while len(log.trim_points) == 1:
            await append(log, bytes(1_000_000))
            await filled(log)
        assert len(in_threads) == 1, "the one that begins the next segment"


async def test_the_commits_of_a_busy_log_find_zeros_written_ahead_of_them(in_threads: list[Append]) -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with on_faulty_disk(ROOT, disk, segment_bytes_max=1 << 20) as log:
        for _ in range(750):
            await append(log, bytes(4_000))
            await filled(log)
        assert len(log.trim_points) == 2
        assert len(in_threads) == 3, "only the first commit of each segment"
        assert len(await contents(log)) == 750


async def test_the_zeros_of_a_busy_log_take_few_steps() -> None:
    """Each step costs as much CPU as dozens of messages."""
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with on_faulty_disk(ROOT, disk, segment_bytes_max=4 << 20) as log:
        while not log.trim_points:
            await append(log, bytes(40_000))
            await filled(log)
        before = disk.calls["open_write"]
        while len(log.trim_points) == 1:
            await append(log, bytes(40_000))
            await filled(log)
        steps = disk.calls["open_write"] - before - 1
        assert steps <= 5, "512 KiB, three of 1 MiB, and the rest; besides, the extent is written"


async def test_commits_go_on_over_the_zeros_that_are_there_and_wait_for_more_only_if_they_need_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zeros_ahead, "LATE_S", NEVER_S)
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with on_faulty_disk(ROOT, disk) as log:
        await low(log, disk)
        await append(log, b"fits")
        too_large = asyncio.create_task(append(log, bytes(FILL_STEP_BYTES_MIN)))
        await asyncio.sleep(0.01)
        assert not too_large.done()
        disk.release()
        await asyncio.wait_for(too_large, WITHIN_S)
        assert (await contents(log))[-2:] == [[b"fits"], [bytes(FILL_STEP_BYTES_MIN)]]


async def test_while_zeros_are_late_the_event_loop_does_not_write_to_their_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zeros_ahead, "LATE_S", 0)
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with on_faulty_disk(ROOT, disk) as log:
        await low(log, disk)
        writes = disk.calls["write"]
        waits = asyncio.create_task(append(log, b"fits"))
        await asyncio.sleep(0.01)
        assert not waits.done() and disk.calls["write"] == writes
        disk.release()
        await asyncio.wait_for(waits, WITHIN_S)


async def test_zeros_that_wait_for_a_thread_are_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeros_ahead, "LATE_S", 0)
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with on_faulty_disk(ROOT, disk) as log:
        may_work = threading.Event()
        busy = [log._shared.pools.zeros.submit(may_work.wait) for _ in range(ZEROS_THREADS)]
        try:
            while log._zeros is None:
                await append(log, bytes(1_000))
            await asyncio.wait_for(append(log, b"fits"), WITHIN_S)
            assert not log._zeros.has_ended and not any(each.done() for each in busy)
        finally:
            may_work.set()


async def test_zeros_are_not_written_over_frames_that_a_full_disk_has_moved_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file system that copies on write may be full when zeros are overwritten. The file is then cut off."""
    monkeypatch.setattr(zeros_ahead, "LATE_S", NEVER_S)
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with on_faulty_disk(ROOT, disk) as log:
        await low(log, disk)
        disk.fail("write", errno.ENOSPC, path_part=SEGMENT)
        await append(log, b"cuts the file off")
        over_the_zeros = asyncio.create_task(append(log, b"x" * FILL_STEP_BYTES_MIN))
        await asyncio.sleep(0.01)
        assert not over_the_zeros.done()
        disk.release()
        await asyncio.wait_for(over_the_zeros, WITHIN_S)
        assert (await contents(log))[-2:] == [[b"cuts the file off"], [b"x" * FILL_STEP_BYTES_MIN]]


async def test_without_a_thread_commits_write_their_own_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("storage-zeros"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with on_faulty_disk(ROOT, disk) as log:
        async with asyncio.timeout(WITHIN_S):
            for _ in range(30):
                await append(log, bytes(1_000))
        assert len(await contents(log)) == 30
    assert not log.under_way


@pytest.mark.parametrize("fails", [False, True])
async def test_a_new_segment_begins_without_the_zeros_of_the_one_before(fails: bool) -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with on_faulty_disk(ROOT, disk) as log:
        await low(log, disk)
        if fails:
            disk.fail("write", errno.EIO, path_part=SEGMENT)
        disk.release()
        if fails:
            with pytest.raises(CommitFailed, match="could not be filled"):
                await asyncio.wait_for(log.roll(), WITHIN_S)
            await log.acquire()
        else:
            await asyncio.wait_for(log.roll(), WITHIN_S)
        assert log._zeros is None
        await append(log, b"later")
        assert (await contents(log))[-1] == [b"later"]


async def test_a_log_whose_zeros_could_not_be_synced_is_not_written_to_until_it_is_acquired_again() -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with on_faulty_disk(ROOT, disk) as log:
        await low(log, disk)
        before = await contents(log)
        disk.fail("sync", errno.EIO, path_part=SEGMENT)
        disk.release()
        await filled(log)
        with pytest.raises(CommitFailed, match="could not be filled"):
            await append(log, b"too late")
        with pytest.raises(CommitFailed, match="acquired again"):
            log.begin()
        await log.acquire()
        await append(log, b"later")
        assert await contents(log) == [*before, [b"later"]]


@pytest.mark.parametrize("operation", ["write", "open_write"])
async def test_without_room_for_zeros_the_log_goes_on_as_long_as_its_commits_fit(operation: str) -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with on_faulty_disk(ROOT, disk) as log:
        await low(log, disk)
        if operation == "open_write":
            disk.fail("open_write", errno.EMFILE, path_part=SEGMENT)
        else:
            disk.shorten(100, path_part=SEGMENT)
            disk.fail("write", errno.ENOSPC, path_part=SEGMENT)
        size = segment_bytes(disk, log)
        disk.release()
        await filled(log)
        assert segment_bytes(disk, log) == size
        await append(log, b"fits")
        await append(log, bytes(FILL_STEP_BYTES_MIN))
        assert (await contents(log))[-2:] == [[b"fits"], [bytes(FILL_STEP_BYTES_MIN)]]


@pytest.mark.parametrize("ends", ["close", "put_away", "roll"])
async def test_a_file_is_closed_only_when_nothing_is_being_written_to_it(ends: str) -> None:
    recording = RecordingDisk(queued=True)
    disk = FaultyDisk(recording)
    async with on_faulty_disk(ROOT, disk) as log:
        await low(log, disk)
        assert log._opened is not None
        active = log._opened.active
        task = asyncio.create_task(getattr(log, ends)())
        await asyncio.sleep(0.01)
        assert not task.done() and active.is_open
        disk.release()
        await asyncio.wait_for(task, WITHIN_S)
        assert not active.is_open
        if ends == "put_away":
            await append(log, b"later")
            assert (await contents(log))[-1] == [b"later"]
        else:
            assert len(recording.contents(active.segment.path)) == active.used, "the zeros are cut off"
