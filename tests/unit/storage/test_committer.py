"""storage/committer.py: jobs for many files, each carried to its end."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from storage.commit_queue import CommitQueue, CommitShare
from storage.committer import FILES_PER_ASSIGNMENT_MAX, SHARED_JOBS_MAX, Committer, Share
from storage.errors import CommitFailed
from tests.support.faulty_disk import FaultyDisk
from tests.support.recording_disk import RecordingDisk

NEEDS_THREAD, FAILS = -1, -2


class Recorded:
    """A job that waits until it may go on, and records what happens to it."""

    def __init__(
        self,
        fd: int = NEEDS_THREAD,
        error: Exception | None = None,
        gate: threading.Event | None = None,
        data: bytes = b"",
    ) -> None:
        """`fd`: FAILS raises the error in `begin`."""
        self.fd = fd
        self.data = data
        self.error = error
        self.gate = gate
        self.started = threading.Event()
        self.events: list[str] = []
        self.thread: int | None = None
        self.finished_with: list[Exception | None] = []
        self.is_let_go = False

    def begin(self) -> Share | None:
        self.events.append("begin")
        if self.error is not None and self.fd == FAILS:
            raise self.error
        return (self.fd, [self.data] if self.data else (), 0, True) if self.fd >= 0 else None

    def run(self) -> None:
        self.events.append("run")
        self.thread = threading.get_ident()
        self.started.set()
        if self.gate is not None:
            assert self.gate.wait(10)
        if self.error is not None:
            raise self.error

    def write_error(self, error: OSError) -> Exception | None:
        self.events.append("not written")
        return None if error.errno == errno.ENOSPC else RuntimeError(f"write failed: {error.errno}")

    def sync_error(self, error: OSError) -> Exception:
        return RuntimeError(f"sync failed: {error.errno}")

    def finish(self, error: Exception | None) -> None:
        self.events.append("finish")
        self.finished_with.append(error)


async def test_without_a_queue_all_is_done_in_a_thread() -> None:
    committer = Committer(RecordingDisk(), 2)
    job = Recorded(fd=5)
    await committer.run(job)
    assert job.events == ["run", "finish"] and job.finished_with == [None]
    assert job.thread != threading.get_ident()
    await committer.close()


async def test_with_a_queue_a_job_that_does_not_wait_needs_no_thread() -> None:
    disk = RecordingDisk(queued=True)
    fd = disk.create(Path("/file"))
    disk.write(fd, [b"x"], 0)
    committer = Committer(disk, 2)
    jobs = [Recorded(fd=fd, data=b"data"), Recorded(fd=fd), Recorded(fd=NEEDS_THREAD)]
    await asyncio.gather(*map(committer.run, jobs))
    assert [job.events for job in jobs] == [
        ["begin", "finish"],
        ["begin", "finish"],
        ["begin", "run", "finish"],
    ]
    assert disk.contents(Path("/file")) == b"data"
    await committer.close()
    await committer.run(Recorded(fd=fd))
    await committer.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_write_that_fails_in_the_queue_is_tried_in_a_thread_if_the_job_says_so(error: int) -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    fd = disk.create(Path("/file"))
    disk.fail("write", error)
    committer = Committer(disk, 1)
    job = Recorded(fd=fd, data=b"data")
    if error == errno.ENOSPC:
        await committer.run(job)
        assert job.events == ["begin", "not written", "run", "finish"]
    else:
        with pytest.raises(RuntimeError, match="write failed"):
            await committer.run(job)
        assert job.events == ["begin", "not written", "finish"]
    await committer.close()


async def test_what_a_stuck_queue_has_not_begun_goes_to_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.committer.SLOW_S", 0.02)
    disk = _CountedDisk()
    queue, committer = disk.queue, Committer(disk, 1)
    jobs = [Recorded(fd=7) for _ in range(4)]
    tasks = [asyncio.create_task(committer.run(job)) for job in jobs]
    await _turns()
    assert queue.submitted == [[1], [2, 3, 4]]
    queue.unbegun = [3, 4]
    async with asyncio.timeout(20):
        await asyncio.gather(*tasks[2:])
    assert [job.events for job in jobs] == [["begin"], ["begin"], *2 * [["begin", "run", "finish"]]]
    queue.end(1, 2)
    async with asyncio.timeout(20):
        await asyncio.gather(*tasks)
    assert await committer.close()


@pytest.mark.parametrize("fd", [NEEDS_THREAD, FAILS])
async def test_what_a_job_raises_reaches_its_caller_alone(fd: int) -> None:
    committer = Committer(RecordingDisk(queued=True), 1)
    good, bad = Recorded(), Recorded(fd=fd, error=ValueError("mine"))
    results = await asyncio.gather(committer.run(good), committer.run(bad), return_exceptions=True)
    assert results[0] is None and isinstance(results[1], ValueError)
    assert bad.finished_with == [results[1]]
    await committer.close()


@pytest.mark.parametrize("queued", [True, False])
async def test_a_job_whose_end_cannot_be_recorded_has_failed_and_no_other(queued: bool) -> None:
    """Symptom: neither its caller nor those that ended with it were told anything."""

    class Bug(Recorded):
        def finish(self, error: Exception | None) -> None:
            raise ValueError("a bug")

    disk = RecordingDisk(queued=queued)
    fd = disk.create(Path("/file")) if queued else NEEDS_THREAD
    committer = Committer(disk, 1)
    jobs = [Bug(fd), Recorded(fd), Bug(fd, error=CommitFailed("by the disk")), Recorded(fd)]
    running = (committer.run(job) for job in jobs)
    results = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 20)
    assert [type(result) for result in results] == [CommitFailed, type(None)] * 2
    await committer.close()


async def test_a_caller_that_does_not_wait_is_told_how_its_job_has_ended() -> None:
    disk = RecordingDisk(queued=True)
    committer = Committer(disk, 1)
    error, told = ValueError("mine"), list[Exception | None]()
    all_told = asyncio.Event()

    def tell(error: Exception | None) -> None:
        told.append(error)
        if len(told) == 3:
            all_told.set()

    committer.begin(Recorded(fd=FAILS, error=error), tell)
    assert told == [error], "it could end at once"
    committer.begin(Recorded(fd=disk.create(Path("/file"))), tell)
    async with asyncio.timeout(20):
        while len(told) < 2:  # noqa: ASYNC110 (the loop reads from the queue)
            await asyncio.sleep(0)
        committer.begin(Recorded(fd=NEEDS_THREAD, error=error), tell)
        await all_told.wait()
    assert told == [error, None, error]
    await committer.close()


async def test_what_begins_in_the_call_that_brings_the_lull_is_synced_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.committer.LULL_S", 60)
    disk = _CountedDisk()
    queue, committer, ended = disk.queue, Committer(disk, 1), list[Exception | None]()
    committer.begin(Recorded(fd=7), ended.append)
    for _ in range(3):
        assert committer.at_lull(lambda: committer.begin(Recorded(fd=7), ended.append))
    queue.end(1)
    async with asyncio.timeout(20):
        while len(queue.submitted) < 2:  # noqa: ASYNC110 (the loop reads from the queue)
            await asyncio.sleep(0)
    assert queue.submitted == [[1], [2, 3, 4]] and ended == [None]
    queue.end(2, 3, 4)
    await _turns()
    assert await committer.close()


async def test_what_begins_together_is_synced_together() -> None:
    disk = _CountedDisk()
    queue, committer, ended = disk.queue, Committer(disk, 1), list[Exception | None]()
    committer.begin_together([lambda: committer.begin(Recorded(fd=7), ended.append)] * 3)
    await _turns()
    assert queue.submitted == [[1, 2, 3]]
    queue.end(1, 2, 3)
    await _turns()
    committer.begin_together([lambda: committer.begin(Recorded(fd=7), ended.append)])
    assert queue.submitted == [[1, 2, 3], [4]], "one job by itself waits for no turn"
    queue.end(4)
    await _turns()
    assert ended == [None] * 4 and await committer.close()


async def test_of_many_that_begin_together_the_disk_has_the_first_while_the_others_begin() -> None:
    disk = _CountedDisk()
    queue, committer, ended = disk.queue, Committer(disk, 1), list[Exception | None]()
    submitted_before: list[int] = []

    def begin() -> None:
        submitted_before.append(sum(map(len, queue.submitted)))
        committer.begin(Recorded(fd=7), ended.append)

    shared, all_jobs = SHARED_JOBS_MAX, 2 * SHARED_JOBS_MAX + 3
    committer.begin_together([begin] * all_jobs)
    await _turns()
    assert list(map(len, queue.submitted)) == [shared, shared, 3]
    assert submitted_before == [0] * shared + [shared] * shared + [2 * shared] * 3
    queue.end(*range(1, shared + 1))
    await _turns()
    assert len(ended) == shared, "these do not wait for the others"
    queue.end(*range(shared + 1, all_jobs + 1))
    await _turns()
    assert ended == [None] * all_jobs and await committer.close()


async def test_what_has_begun_is_synced_even_if_another_raises() -> None:
    disk = _CountedDisk()
    queue, committer, ended = disk.queue, Committer(disk, 1), list[Exception | None]()

    def fail() -> None:
        raise ValueError("a bug")

    def begin() -> None:
        committer.begin(Recorded(fd=7), ended.append)

    with pytest.raises(ValueError, match="a bug"):
        committer.begin_together([begin, begin, fail])
    await _turns()
    assert queue.submitted == [[1, 2]]
    queue.end(1, 2)
    await _turns()
    begin()
    assert queue.submitted == [[1, 2], [3]], "no dispatch is due any more, so one job waits for no turn"
    queue.end(3)
    await _turns()
    assert ended == [None] * 3 and await committer.close()


async def test_a_failed_sync_of_the_queue_is_the_files_own() -> None:
    inner = RecordingDisk(queued=True)
    disk = FaultyDisk(inner)
    good, bad = disk.create(Path("/good")), disk.create(Path("/bad"))
    disk.fail("sync", errno.EDQUOT, path_part="bad")
    committer = Committer(disk, 1)
    results = await asyncio.gather(
        committer.run(Recorded(fd=good)), committer.run(Recorded(fd=bad)), return_exceptions=True
    )
    assert results[0] is None and str(results[1]) == f"sync failed: {errno.EDQUOT}"
    await committer.close()


class _TakesOne:
    """A queue that takes one share at a time."""

    def __init__(self, inner: CommitQueue) -> None:
        self._inner = inner
        self.ready_fd = inner.ready_fd
        self.ended = inner.ended
        self.close = inner.close

    def submit(self, shares: Sequence[CommitShare]) -> int:
        return self._inner.submit(shares[:1])


class _NarrowDisk(RecordingDisk):
    def commit_queue(self) -> CommitQueue | None:
        queue = super().commit_queue()
        assert queue is not None
        return _TakesOne(queue)  # type: ignore[return-value]


async def test_what_the_queue_does_not_take_goes_to_a_thread() -> None:
    disk = _NarrowDisk(queued=True)
    fds = [disk.create(Path(f"/{number}")) for number in range(3)]
    committer = Committer(disk, 2)
    jobs = [Recorded(fd=fd) for fd in fds]
    await asyncio.gather(*map(committer.run, jobs))
    # The first job finds the disk idle and goes alone; the queue takes one of the two that go together.
    assert [job.events for job in jobs] == [
        ["begin", "finish"],
        ["begin", "finish"],
        ["begin", "run", "finish"],
    ]
    await committer.close()


class _Starved:
    """A queue that finds no memory in the first call of each method."""

    def __init__(self, inner: CommitQueue) -> None:
        self._inner, self._starved = inner, set[str]()
        self.ready_fd, self.close = inner.ready_fd, inner.close

    def _starve(self, call: str) -> None:
        if call not in self._starved:
            self._starved.add(call)
            raise MemoryError

    def submit(self, shares: Sequence[CommitShare]) -> int:
        self._starve("submit")
        return self._inner.submit(shares)

    def ended(self) -> list[tuple[int, int, bool]]:
        self._starve("ended")
        return self._inner.ended()

    def take_back(self) -> list[int]:
        self._starve("take_back")
        return self._inner.take_back()


class _StarvedDisk(RecordingDisk):
    def commit_queue(self) -> CommitQueue | None:
        queue = super().commit_queue()
        assert queue is not None
        return _Starved(queue)


async def test_a_queue_without_memory_loses_no_job() -> None:
    disk = _StarvedDisk(queued=True)
    committer = Committer(disk, 2)
    jobs = [Recorded(fd=disk.create(Path(f"/{number}"))) for number in range(2)]
    for job in jobs:
        await asyncio.wait_for(committer.run(job), 10)
    assert [job.events for job in jobs] == [["begin", "run", "finish"], ["begin", "finish"]]
    assert all(job.finished_with == [None] for job in jobs)
    await committer.close()


async def test_jobs_are_shared_among_the_threads_a_few_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.committer.STUCK_S", 60)
    committer = Committer(RecordingDisk(), 3)
    gate = threading.Event()
    jobs = [Recorded(gate=gate) for _ in range(30)]
    running = asyncio.gather(*map(committer.run, jobs))
    for job in jobs[: 3 * FILES_PER_ASSIGNMENT_MAX : FILES_PER_ASSIGNMENT_MAX]:
        assert await asyncio.to_thread(job.started.wait, 10)
    gate.set()
    await running
    per_thread = [
        sum(job.thread == thread for job in jobs[: 3 * FILES_PER_ASSIGNMENT_MAX])
        for thread in {job.thread for job in jobs}
    ]
    assert per_thread == [FILES_PER_ASSIGNMENT_MAX] * 3
    await committer.close()


@pytest.mark.parametrize("error", [None, ValueError("lost")])
async def test_a_job_is_carried_to_its_end_when_its_caller_is_cancelled_even_twice(
    error: Exception | None,
) -> None:
    committer = Committer(RecordingDisk(), 1)
    gate = threading.Event()
    job = Recorded(gate=gate, error=error)
    task = asyncio.create_task(committer.run(job))
    assert await asyncio.to_thread(job.started.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert job.events == ["run", "finish"] and job.finished_with == [error]
    await committer.close()


async def test_a_job_that_was_let_go_is_not_waited_for_and_finishes_all_the_same() -> None:
    committer = Committer(RecordingDisk(), 1)
    gate = threading.Event()
    job = Recorded(gate=gate)
    task = asyncio.create_task(committer.run(job))
    assert await asyncio.to_thread(job.started.wait, 10)
    job.is_let_go = True
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert job.events == ["run"]
    assert not await committer.close(), "a job is under way"
    gate.set()
    async with asyncio.timeout(20):
        while not job.finished_with:  # noqa: ASYNC110 (the job tells nobody)
            await asyncio.sleep(0.001)
    assert await committer.close()


async def test_jobs_that_hang_hold_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.committer.STUCK_S", 0.02)
    committer = Committer(RecordingDisk(), 2)
    gate = threading.Event()
    hanging = [Recorded(gate=gate) for _ in range(6)]
    others = [Recorded() for _ in range(6)]
    tasks = [
        asyncio.create_task(committer.run(job)) for pair in zip(hanging, others, strict=True) for job in pair
    ]
    await asyncio.wait_for(asyncio.gather(*tasks[1::2]), 20)
    assert not any(task.done() for task in tasks[::2])
    gate.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert await committer.close()


async def test_while_a_sync_is_late_the_queue_gets_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.committer.SLOW_S", 0.01)
    disk = FaultyDisk(RecordingDisk(queued=True))
    late, other = (disk.create(Path(f"/{name}")) for name in ("late", "other"))
    disk.hang("sync", "/late")
    committer = Committer(disk, 1)
    hanging = asyncio.create_task(committer.run(Recorded(fd=late)))
    await asyncio.sleep(0.05)
    job = Recorded(fd=other)
    await asyncio.wait_for(committer.run(job), 20)
    assert job.events == ["run", "finish"]
    disk.release()
    await asyncio.wait_for(hanging, 20)
    job = Recorded(fd=other)
    await committer.run(job)
    assert job.events == ["begin", "finish"]
    assert await committer.close()


class _Counted:
    """A queue that records how many shares each call submits, and reports them when it is told to."""

    def __init__(self) -> None:
        self.submitted: list[list[int]] = []
        self.due: list[tuple[int, int, bool]] = []
        self.unbegun: list[int] = []
        self.ready_fd = os.eventfd(0, os.EFD_NONBLOCK)

    def submit(self, shares: Sequence[CommitShare]) -> int:
        self.submitted.append([share[0] for share in shares])
        return len(shares)

    def end(self, *numbers: int) -> None:
        self.due += [(number, 0, True) for number in numbers]
        os.eventfd_write(self.ready_fd, 1)

    def ended(self) -> list[tuple[int, int, bool]]:
        os.eventfd_read(self.ready_fd)
        ended, self.due = self.due, []
        return ended

    def take_back(self) -> list[int]:
        taken, self.unbegun = self.unbegun, []
        return taken

    def close(self) -> None:
        os.close(self.ready_fd)


class _CountedDisk(RecordingDisk):
    def __init__(self) -> None:
        super().__init__(queued=True)
        self.queue = _Counted()

    def commit_queue(self) -> CommitQueue | None:
        return self.queue


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _lull(committer: Committer) -> None:
    """Return when the lull comes; at once if there is none to wait for."""
    comes = asyncio.Event()
    if committer.at_lull(comes.set):
        await comes.wait()


async def test_those_who_wait_for_a_lull_wait_for_the_syncs_of_now_and_are_synced_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.committer.LULL_S", 60)
    disk = _CountedDisk()
    queue, committer = disk.queue, Committer(disk, 1)

    async def run_in_lull() -> None:
        await _lull(committer)
        await committer.run(Recorded(fd=7))

    assert not committer.at_lull(lambda: None)  # nothing is being synced
    tasks = [asyncio.create_task(committer.run(Recorded(fd=7))) for _ in range(3)]
    await _turns()
    assert queue.submitted == [[1], [2, 3]]
    tasks += [asyncio.create_task(run_in_lull()) for _ in range(3)]
    await _turns()
    tasks.append(asyncio.create_task(committer.run(Recorded(fd=7))))  # it does not wait, and delays nobody
    await _turns()
    queue.end(1, 2)
    async with asyncio.timeout(20):
        await asyncio.gather(*tasks[:2])
    await _turns()
    assert queue.submitted == [[1], [2, 3], [4]]
    queue.end(3)
    async with asyncio.timeout(20):
        await tasks[2]
    await _turns()
    assert queue.submitted == [[1], [2, 3], [4], [5, 6, 7]]
    queue.end(4, 5, 6, 7)
    async with asyncio.timeout(20):
        await asyncio.gather(*tasks)
    assert await committer.close()


async def test_of_those_who_come_in_one_turn_the_first_goes_on_and_the_others_wait_for_its_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.committer.LULL_S", 60)
    disk = _CountedDisk()
    queue, committer = disk.queue, Committer(disk, 1)
    running = asyncio.create_task(committer.run(Recorded(fd=7)))
    await _turns()
    queue.end(1)
    async with asyncio.timeout(20):
        await running
    came: list[int] = []
    assert [committer.at_lull(partial(came.append, number)) for number in range(3)] == [False, True, True]
    running = asyncio.create_task(committer.run(Recorded(fd=7)))
    await _turns()
    assert queue.submitted == [[1], [2]] and came == []
    queue.end(2)
    async with asyncio.timeout(20):
        await running
    await _turns()
    assert came == [1, 2]
    assert not committer.at_lull(partial(came.append, 3)), "the next turn has its own first"
    assert committer.at_lull(partial(came.append, 4))
    async with asyncio.timeout(20):
        with pytest.raises(ValueError, match="mine"):
            await committer.run(Recorded(fd=FAILS, error=ValueError("mine")))  # the first syncs nothing
    assert came == [1, 2, 4] and await committer.close()


async def test_a_disk_that_hangs_holds_nobody_up_who_waits_for_a_lull(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.committer.SLOW_S", 0.02)
    disk = _CountedDisk()
    committer = Committer(disk, 1)
    hanging = asyncio.create_task(committer.run(Recorded(fd=7)))
    await _turns()
    async with asyncio.timeout(20):
        while not committer._is_slow(asyncio.get_running_loop().time()):
            await _lull(committer)
    monkeypatch.setattr("storage.committer.LULL_S", 60)
    assert not committer.at_lull(lambda: None)
    disk.queue.end(1)
    async with asyncio.timeout(20):
        await hanging
    assert await committer.close()


class _NoThreads:
    """A system that does not start the next threads for commits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
        """`refused`: how many threads it does not start, from now on."""
        self.refused = refused
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if self.refused and thread.name.startswith("storage-commit"):
                self.refused -= 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)


async def test_a_thread_that_cannot_be_started_is_tried_again_or_another_one_does_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.committer.STUCK_S", 0.02)
    threads = _NoThreads(monkeypatch, 2)
    committer = Committer(RecordingDisk(), 2)
    with capture_logs() as lines:
        await asyncio.wait_for(committer.run(Recorded()), 20)
    assert [line["event"] for line in lines] == ["disk.no_thread"] * 2
    threads.refused = 1
    await asyncio.wait_for(asyncio.gather(*(committer.run(Recorded()) for _ in range(10))), 20)
    assert await committer.close()


@pytest.mark.parametrize("one_hangs", [False, True])
async def test_threads_start_again_however_long_the_system_has_started_none(
    monkeypatch: pytest.MonkeyPatch, one_hangs: bool
) -> None:
    monkeypatch.setattr("storage.committer.STUCK_S", 0.01)
    monkeypatch.setattr("storage.committer.STUCK_MAX", 3)
    committer = Committer(RecordingDisk(), 2)
    gate = threading.Event()
    hanging: list[asyncio.Task[None]] = []
    if one_hangs:
        hanging.append(asyncio.create_task(committer.run(hangs := Recorded(gate=gate))))
        assert await asyncio.to_thread(hangs.started.wait, 10)
    threads = _NoThreads(monkeypatch, 20)
    try:
        jobs = [Recorded() for _ in range(10)]
        for job in jobs:
            job.is_let_go = True  # so that the test ends if no thread is started
        await asyncio.wait_for(asyncio.gather(*map(committer.run, jobs)), 20)
        assert not threads.refused and not any(each.done() for each in hanging)
    finally:
        gate.set()
    await asyncio.wait_for(asyncio.gather(*hanging), 20)
    assert await committer.close()


async def test_threads_are_started_when_there_is_work_and_end_with_the_committer() -> None:
    before = threading.active_count()
    committer = Committer(RecordingDisk(), 8)
    assert threading.active_count() == before
    await committer.run(Recorded())
    assert threading.active_count() == before + 1
    await committer.close()
    assert threading.active_count() == before
