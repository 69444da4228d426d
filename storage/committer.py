"""Group commit over many logs: what is submitted together is written and synced by a few threads, several files each.

Jobs submitted in one turn of the event loop, or while all threads are busy, are handed to the threads in batches: one
hop to a thread and one back for several files, for with the event loop busy each hop costs more than the write. A job's failure is
its own. The caller sees to it that no two jobs of one file are under way at once.

A job that was submitted is carried to its end and its `finish` called, also when the caller is cancelled meanwhile:
what a thread has begun to write cannot be taken back.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from typing import Protocol

FILES_PER_BATCH_MAX = 4
"""A batch's files are synced one after the other; the commits behind them wait."""


class Job(Protocol):
    """One file's share of a round."""

    def run(self) -> None:
        """Do it; called in a thread. What it raises is raised to the caller of `Committer.run`."""

    def finish(self, error: Exception | None) -> None:
        """Take note of how `run` ended; called in the event loop, in any case, before the caller goes on."""


class _Entry:
    """A job on its way. Its fields but `error` (the thread's) are owned by the event loop."""

    __slots__ = ("done", "ended", "error", "job")

    def __init__(self, job: Job, ended: asyncio.Future[None]) -> None:
        self.job = job
        self.ended = ended
        self.error: Exception | None = None
        self.done = False


class Committer:
    """A few threads that write and sync. Used from one event loop."""

    def __init__(self, threads: int) -> None:
        self._threads_max = threads
        self._threads: list[threading.Thread] = []
        self._idle = threads
        self._waiting: deque[_Entry] = deque()
        self._batches: queue.SimpleQueue[list[_Entry] | None] = queue.SimpleQueue()
        self._dispatch_due = False

    async def run(self, job: Job) -> None:
        """Have a thread run the job. Raises what it raises."""
        loop = asyncio.get_running_loop()
        entry = _Entry(job, loop.create_future())
        self._waiting.append(entry)
        if not self._dispatch_due:
            self._dispatch_due = True
            loop.call_soon(self._dispatch, loop)
        try:
            await entry.ended
        except asyncio.CancelledError:
            while not entry.done:
                entry.ended = loop.create_future()
                with contextlib.suppress(asyncio.CancelledError):
                    await entry.ended
            raise
        if entry.error is not None:
            raise entry.error

    def _dispatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give what waits to the idle threads, in even shares."""
        self._dispatch_due = False
        waiting = self._waiting
        while waiting and self._idle:
            share = min(FILES_PER_BATCH_MAX, -(-len(waiting) // self._idle))
            self._idle -= 1
            if len(self._threads) < self._threads_max - self._idle:
                self._start_thread(loop)
            self._batches.put([waiting.popleft() for _ in range(share)])

    def _start_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        thread = threading.Thread(target=self._work, args=(loop,), name=f"storage-commit-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (batch := self._batches.get()) is not None:
            for entry in batch:
                try:
                    entry.job.run()
                except Exception as error:  # the outermost frame of the job: its owner makes a state of it
                    entry.error = error
            loop.call_soon_threadsafe(self._finished, loop, batch)

    def _finished(self, loop: asyncio.AbstractEventLoop, batch: list[_Entry]) -> None:
        self._idle += 1
        for entry in batch:
            entry.done = True
            entry.job.finish(entry.error)
            if not entry.ended.done():
                entry.ended.set_result(None)
        if self._waiting and not self._dispatch_due:
            self._dispatch_due = True
            loop.call_soon(self._dispatch, loop)  # behind the callers that go on now and may submit at once

    async def close(self) -> None:
        """Stop the threads; no job is under way."""
        assert not self._waiting and self._idle == self._threads_max, "every log is closed before"
        for _ in self._threads:
            self._batches.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
