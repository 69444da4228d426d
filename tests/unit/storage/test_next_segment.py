"""The next segment is begun while nobody waits for it, and what happens when that fails or hangs."""

from __future__ import annotations

import asyncio
import errno
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from storage.commit_jobs import Append, RollAhead
from storage.errors import CommitFailed, DiskFailed
from storage.file_log import FileLog
from storage.recovery import EARLY_FRAMES, EARLY_SHARE
from storage.segment import SEGMENT_HEADER_BYTES
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import contents, flat, on_faulty_disk
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")
WITHIN_S = 30.0
SEGMENT_BYTES = 1 << 20
BODY = bytes(100_000)
SEGMENT = ".segment"


def opened(disk: FaultyDisk) -> AbstractAsyncContextManager[FileLog]:
    return on_faulty_disk(ROOT, disk, segment_bytes_max=SEGMENT_BYTES)


async def until_idle(log: FileLog) -> None:
    """Return when neither a commit nor zeros nor a segment are being written."""
    async with asyncio.timeout(WITHIN_S):
        # What is waited for are plain values.
        while log.is_busy or (log._zeros is not None and not log._zeros.has_ended):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def append_at_once(log: FileLog, body: bytes = BODY, *, more_waits: bool = False) -> None:
    """Commit as a short cycle does, or as its task if that is not possible; returns when it is durable."""
    commit, ended = log.begin(), asyncio.get_running_loop().create_future()
    commit.add(1, [body])

    def told(error: Exception | None) -> bool:
        ended.set_result(error)
        return more_waits

    if not log.append_at_once(commit, told):
        await log.append(commit)
    else:
        error = await asyncio.wait_for(ended, WITHIN_S)
        if error is not None:
            raise error


async def until_rolled(log: FileLog) -> None:
    while not log.trim_points:
        await append_at_once(log)
        await until_idle(log)


async def test_no_commit_waits_for_a_segment_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    in_threads, run = list[Append](), Append.run

    def noting(job: Append) -> None:
        in_threads.append(job)
        run(job)

    disk = FaultyDisk(RecordingDisk(queued=True))
    async with opened(disk) as log:
        await until_rolled(log)
        monkeypatch.setattr(Append, "run", noting)
        stored = len(await contents(log))
        while len(log.trim_points) < 3:
            await append_at_once(log)
            await until_idle(log)
            stored += 1
        assert not in_threads
        found, end = flat(await contents(log)), log.end
    async with opened(disk) as log:
        assert log.end == end and flat(await contents(log)) == found == [BODY] * stored


@pytest.mark.parametrize(
    ("size", "more_waits", "early_frames"),
    [(4_000, False, EARLY_FRAMES), (10_000, False, None), (4_000, True, 0), (100_000, False, 0)],
)
async def test_it_begins_early_while_nothing_waits(
    size: int, more_waits: bool, early_frames: int | None
) -> None:
    """What waits for a commit would wait for that as well. Large frames gain nothing."""
    body = bytes(size)
    async with opened(FaultyDisk(RecordingDisk(queued=True))) as log:
        assert log._opened is not None
        bound, start, frame = log._opened.segment_bytes_max - SEGMENT_HEADER_BYTES, log.start, 0
        while not log.trim_points:
            await append_at_once(log, body, more_waits=more_waits)
            frame = log._opened.active.frame_bytes or frame
            await until_idle(log)
        left = bound - (log.trim_points[0] - start)
    early = SEGMENT_BYTES // EARLY_SHARE if early_frames is None else early_frames * frame
    assert early <= left < early + frame


@pytest.mark.parametrize("is_confined", [False, True])
async def test_on_a_disk_with_little_room_no_segment_begins_ahead(
    is_confined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = list[RollAhead]()
    monkeypatch.setattr(RollAhead, "run", lambda job: begun.append(job))
    monkeypatch.setattr(FileLog, "may_fill", is_confined)
    async with opened(FaultyDisk(RecordingDisk(queued=True))) as log:
        opened_log = log._opened
        assert opened_log is not None
        opened_log.is_confined = is_confined
        while opened_log.active.used + len(BODY) < opened_log.segment_bytes_max:
            await append_at_once(log)
            await until_idle(log)
        assert not begun


async def test_the_next_segment_begins_when_the_client_has_been_told() -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with opened(disk) as log:
        while not log.trim_points:
            disk.hang("rename", SEGMENT)  # the name of a new segment
            await append_at_once(log)
            if log.is_busy:
                async with asyncio.timeout(WITHIN_S):
                    while not disk.held:  # noqa: ASYNC110 (a thread counts)
                        await asyncio.sleep(0.001)
                commit = log.begin()
                commit.add(1, [b"behind it"])
                assert not log.append_at_once(commit, lambda _: False)
                waiting = asyncio.create_task(log.append(commit))
                await asyncio.sleep(0.005)
                assert not waiting.done()
                disk.release()
                await asyncio.wait_for(waiting, WITHIN_S)
            disk.release()
            await until_idle(log)
        assert flat(await contents(log))[-1] == b"behind it"


async def test_a_disk_without_room_for_the_next_segment_is_left_to_the_commit_that_needs_it() -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with opened(disk) as log:
        disk.fail("create", errno.ENOSPC, path_part=SEGMENT)
        async with asyncio.timeout(WITHIN_S):
            while not disk.has_failed:
                await append_at_once(log)
                await until_idle(log)
        assert not log.trim_points
        stored = len(await contents(log))
        await until_rolled(log)
        assert len(await contents(log)) > stored


async def test_a_next_segment_that_cannot_be_synced_fails_the_log_before_another_commit() -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with opened(disk) as log:
        stored = 0
        disk.fail("sync_directory", path_part=log._directory.name)
        with pytest.raises(CommitFailed):
            async with asyncio.timeout(WITHIN_S):
                while True:
                    await append_at_once(log)
                    stored += 1
                    await until_idle(log)
        assert disk.has_failed
        await log.acquire()
        assert flat(await contents(log)) == [BODY] * stored, "what was told to be durable is there"
        await append_at_once(log)


async def test_a_next_segment_that_hangs_and_was_fenced_is_waited_for_by_the_next_owner() -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with opened(disk) as log:
        stored = 0
        disk.hang("rename", SEGMENT)
        while not log.is_busy:
            await append_at_once(log)
            stored += 1
            if log._zeros is not None:
                await log._zeros.wait()
        async with asyncio.timeout(WITHIN_S):
            while not disk.held:  # noqa: ASYNC110 (a thread counts)
                await asyncio.sleep(0.001)
        log.fence()
        assert not log.is_busy
        with pytest.raises(DiskFailed):
            await asyncio.wait_for(log.close(), WITHIN_S)
        acquiring = asyncio.create_task(log.acquire())
        await asyncio.sleep(0.02)
        assert not acquiring.done()
        disk.release()
        await asyncio.wait_for(acquiring, WITHIN_S)
        assert flat(await contents(log)) == [BODY] * stored
        await append_at_once(log)
