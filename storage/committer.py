"""Group commit over many logs: what is submitted in one turn of the event loop is synced together.

A job is one file's share. Where it can be sure not to wait, it writes at once, in the event loop, and its
file is synced by the disk's `SyncQueue`: all files of the turn with one system call, and no thread. What may
wait (a file that grows, a new segment) and everything on a disk without such a queue goes to a few threads,
several files each, for with the event loop busy each hop to a thread and back costs more than the write.

A job's failure is its own. The caller sees to it that no two jobs of one file are under way at once. A job
that was submitted is carried to its end and its `finish` called, also when the caller is cancelled meanwhile:
what was begun cannot be taken back. The caller waits for that end, unless the job was let go
(`Job.is_let_go`).

*A disk that does not answer* holds up the files it does not answer for, and no others. While a sync has been
under way for longer than SLOW_S, nothing is written in the event loop: the write might wait as well. A thread
that has been busy for longer than STUCK_S gives up the jobs of its batch that it has not begun, and another
thread takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Iterable
from itertools import count
from typing import Protocol

import structlog

from storage.disk import Disk, SyncQueue

FILES_PER_BATCH_MAX = 4
"""A thread's files are synced one after the other; the commits behind them wait."""

SLOW_S = 0.25
"""A disk that takes longer for a sync is written to by threads alone."""
STUCK_S = 1.0
"""A thread that takes longer for its batch is replaced …"""
STUCK_MAX = 64
"""… so many times, until one of the replaced threads is back."""

NEEDS_THREAD = -1
ENDED = -2

_log = structlog.get_logger()


class Job(Protocol):
    """One file's share of a round."""

    @property
    def is_let_go(self) -> bool:
        """Whether a caller that is cancelled leaves the job alone; its `finish` is called all the same."""

    def begin(self) -> int:
        """Do what does not wait, in the event loop: gives the file to sync, or ENDED, or NEEDS_THREAD. May
        raise."""

    def run(self) -> None:
        """Do what `begin` did not, and sync, in a thread. May raise."""

    def sync_error(self, error: OSError) -> Exception:
        """What it means that the sync of the file which `begin` gave has failed."""

    def finish(self, error: Exception | None) -> None:
        """Take note of how the job ended; called in the event loop, in any case, before the caller goes
        on."""


class _Entry:
    """A job on its way. Its fields but `error` (a thread's, while it has the job) are owned by the event
    loop."""

    __slots__ = ("began", "done", "ended", "error", "job")

    def __init__(self, job: Job, ended: asyncio.Future[None], began: float) -> None:
        self.job = job
        self.ended = ended
        self.began = began
        """By the loop's clock."""
        self.error: Exception | None = None
        self.done = False


class _Batch:
    """Jobs that one thread carries out, one after the other."""

    __slots__ = ("began", "ended", "entries", "is_stuck")

    def __init__(self, entries: Iterable[_Entry], began: float) -> None:
        self.entries = deque(entries)
        """Those that nobody has begun. The thread takes them from the front; the event loop takes back what
        is left."""
        self.ended: deque[_Entry] = deque()
        """Those that the thread has carried out, and whose callers have not heard of it."""
        self.began = began
        self.is_stuck = False


class Committer:
    """Writes and syncs. Used from one event loop."""

    def __init__(self, disk: Disk, threads: int) -> None:
        self._disk = disk
        self._threads_max = threads
        self._threads: list[threading.Thread] = []
        self._idle = threads
        self._waiting: deque[_Entry] = deque()
        self._batches: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._out: set[_Batch] = set()
        """Batches that threads have."""
        self._stuck = 0
        """Threads that were replaced and are not back."""
        self._look: asyncio.TimerHandle | None = None
        self._dispatch_due = False
        self._sync_queue: SyncQueue | None = None
        self._sync_queue_sought = False
        self._numbers = count(1)
        self._to_sync: list[tuple[int, int]] = []
        self._syncing: dict[int, _Entry] = {}

    async def run(self, job: Job) -> None:
        """Carry the job out. Raises what it raises."""
        loop = asyncio.get_running_loop()
        if not self._sync_queue_sought:
            self._seek_sync_queue(loop)
        entry = _Entry(job, loop.create_future(), loop.time())
        self._begin(loop, entry)
        try:
            await entry.ended
        except asyncio.CancelledError:
            while not entry.done and not job.is_let_go:
                entry.ended = loop.create_future()
                with contextlib.suppress(asyncio.CancelledError):
                    await entry.ended
            raise
        if entry.error is not None:
            raise entry.error

    def _begin(self, loop: asyncio.AbstractEventLoop, entry: _Entry) -> None:
        """Begin a job here, or leave all of it to a thread."""
        try:
            fd = (
                entry.job.begin()
                if self._sync_queue is not None and not self._is_slow(entry.began)
                else NEEDS_THREAD
            )
        except Exception as error:
            entry.error = error
            fd = ENDED
        if fd == ENDED:
            self._end(entry)
            return
        if fd == NEEDS_THREAD:
            self._waiting.append(entry)
        else:
            number = next(self._numbers)
            is_alone = not self._syncing and not self._dispatch_due
            self._syncing[number] = entry
            self._to_sync.append((number, fd))
            # nobody to go together with: the disk is idle, and a turn of the loop would only be waited for
            if is_alone:
                self._submit_syncs()
                if not self._waiting:
                    return
        self._dispatch_soon(loop)

    def _is_slow(self, now: float) -> bool:
        """The disk owes an answer for so long that a write might wait for it, too."""
        return bool(self._syncing) and now - next(iter(self._syncing.values())).began > SLOW_S

    def _end(self, entry: _Entry) -> None:
        entry.done = True
        entry.job.finish(entry.error)
        if not entry.ended.done():
            entry.ended.set_result(None)

    def _dispatch_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Dispatch when everybody who can go on now has submitted what they have."""
        if not self._dispatch_due:
            self._dispatch_due = True
            loop.call_soon(self._dispatch, loop)

    def _dispatch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._dispatch_due = False
        if self._to_sync:
            self._submit_syncs()
        waiting = self._waiting
        while waiting and self._idle:
            share = min(FILES_PER_BATCH_MAX, -(-len(waiting) // self._idle))
            self._idle -= 1
            if len(self._threads) < self._threads_max - self._idle + self._stuck:
                self._start_thread(loop)
            batch = _Batch([waiting.popleft() for _ in range(share)], loop.time())
            self._out.add(batch)
            self._batches.put(batch)
        if self._out and self._look is None:
            self._look = loop.call_later(STUCK_S, self._replace_stuck, loop)

    def _replace_stuck(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let others do what stuck threads have not begun."""
        self._look = None
        now = loop.time()
        for batch in list(self._out):
            if batch.is_stuck or now - batch.began < STUCK_S or self._stuck >= STUCK_MAX:
                continue
            batch.is_stuck = True
            self._report(batch)
            self._stuck += 1
            self._idle += 1
            with contextlib.suppress(IndexError):  # the thread may take the last one meanwhile
                while True:
                    self._waiting.append(batch.entries.popleft())
        if not all(batch.is_stuck for batch in self._out):
            self._look = loop.call_later(STUCK_S / 2, self._replace_stuck, loop)
        if self._waiting:
            self._dispatch_soon(loop)

    # --- by the disk's queue ---

    def _seek_sync_queue(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sync_queue_sought = True
        self._sync_queue = self._disk.sync_queue()
        if self._sync_queue is not None:
            loop.add_reader(self._sync_queue.ready_fd, self._syncs_ended)

    def _submit_syncs(self) -> None:
        """Sync the files of this turn; those the queue does not take, a thread will."""
        assert self._sync_queue is not None
        syncs, self._to_sync = self._to_sync, []
        accepted = self._sync_queue.submit(syncs)
        for number, _ in syncs[accepted:]:
            self._waiting.append(self._syncing.pop(number))

    def _syncs_ended(self) -> None:
        assert self._sync_queue is not None
        for number, errno in self._sync_queue.ended():
            entry = self._syncing.pop(number)
            if errno:
                entry.error = entry.job.sync_error(OSError(errno, os.strerror(errno)))
            self._end(entry)

    # --- by threads ---

    def _start_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        thread = threading.Thread(
            target=self._work, args=(loop,), name=f"storage-commit-{len(self._threads)}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (batch := self._batches.get()) is not None:
            with contextlib.suppress(IndexError):
                while True:
                    entry = batch.entries.popleft()
                    try:
                        entry.job.run()
                    except (
                        Exception
                    ) as error:  # the outermost frame of the job: its owner makes a state of it
                        entry.error = error
                    batch.ended.append(entry)
                    del entry  # its frame may be some MiB, and the next batch hours away
            with contextlib.suppress(
                RuntimeError
            ):  # the loop is closed: the broker has stopped without this disk's answer
                loop.call_soon_threadsafe(self._batch_ended, loop, batch)

    def _batch_ended(self, loop: asyncio.AbstractEventLoop, batch: _Batch) -> None:
        self._out.discard(batch)
        if batch.is_stuck:
            self._stuck -= 1
        else:
            self._idle += 1
        self._report(batch)
        if self._waiting:
            self._dispatch_soon(loop)

    def _report(self, batch: _Batch) -> None:
        while batch.ended:
            self._end(batch.ended.popleft())

    async def close(self) -> bool:
        """Release threads and queue. False if the disk has not answered for a job: then all is left as it
        is."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._syncing or self._out:
            _log.warning("disk.hangs", syncs=len(self._syncing), threads=len(self._out))
            if self._sync_queue is not None:
                asyncio.get_running_loop().remove_reader(self._sync_queue.ready_fd)
            return False
        assert not self._waiting and self._idle == self._threads_max, "every log is closed before"
        for _ in self._threads:
            self._batches.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._sync_queue is not None:
            asyncio.get_running_loop().remove_reader(self._sync_queue.ready_fd)
            self._sync_queue.close()
            self._sync_queue = None
        self._sync_queue_sought = False
        return True
