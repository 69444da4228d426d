"""Group commit over many logs: what is submitted in one turn of the event loop is synced together.

A job is one file's share. If it only writes where there is room and syncs, the disk's `CommitQueue` does that
for all files of the turn together, and without a thread of the interpreter. Other work (a file that grows, a
new segment), and all work on a disk without such a queue, goes to a few threads, several files each: while
the event loop is busy, a hop to such a thread and back costs more than the write. The event loop itself
writes nothing, because a write may wait: on a frozen file system, each one does.

One job's failure affects no other. The caller ensures that no two jobs of one file are under way at once. A
submitted job runs to its end and its `finish` is called even if the caller is cancelled meanwhile, because
what has begun cannot be undone. The caller waits for that end unless the job was let go (`Job.is_let_go`).

*A lull*: a caller with little to commit may wait until what is being synced has been (`at_lull`). More
gathers meanwhile, and all callers that have waited go on together, so that their files are synced together,
SHARED_JOBS_MAX at a time.

*A disk that hangs* delays only the files for which it does not answer. While a job has been in the queue for
longer than SLOW_S, the queue gets nothing more, because its own threads may be stuck, and what it has not
begun goes to threads here. A thread that has been busy for longer than STUCK_S gives up the jobs of its
assignment that it has not begun, and another thread takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import structlog

from storage.commit_queue import CommitQueue, CommitShare
from storage.disk import Disk
from storage.errors import CommitFailed

FILES_PER_ASSIGNMENT_MAX = 4
"""How many files a thread syncs one after the other, while the commits behind them wait."""

SHARED_JOBS_MAX = 8
"""Of many jobs that begin together, so many are synced together. The disk syncs the first ones while the
event loop prepares the others, and their senders have their answers while it syncs the others."""

SLOW_S = 0.25
"""If the queue takes longer for a job, only threads use the disk."""
STUCK_S = 1.0
"""If an assignment takes longer, its thread counts as stuck and is replaced."""
STUCK_MAX = 64
"""How many replaced threads may be stuck at once."""

LULL_S = 0.003
"""The longest wait for a lull, for when the disk is slow."""

Share = tuple[int, Sequence[bytes], int, bool]
"""What the queue does for a job: the file's descriptor, the buffers to write, their offset, and whether to
sync the file then."""

_log = structlog.get_logger()


class Job(Protocol):
    """The work on one file."""

    @property
    def is_let_go(self) -> bool:
        """Whether a cancelled caller need not wait for the job's end. `finish` is called in any case."""

    def begin(self) -> Share | None:
        """What the queue can do for the job; None if it needs a thread. Called in the event loop. May
        raise."""

    def run(self) -> None:
        """Do the work in a thread, and sync. Called instead of what `begin` gave, or after `write_error`. May
        raise."""

    def write_error(self, error: OSError) -> Exception | None:
        """The error to raise if the queue could not write; None to try `run`. Called in the event loop."""

    def sync_error(self, error: OSError) -> Exception:
        """The error to raise if the queue could write, but not sync."""

    def finish(self, error: Exception | None) -> None:
        """Record how the job ended. Called in the event loop in every case, before the caller continues. If
        it raises, the caller gets CommitFailed, whatever the disk has done."""


class _Entry:
    """A job under way. The event loop owns its fields, except that a thread owns `error` while it has the
    job."""

    __slots__ = ("began", "done", "ended", "error", "job")

    def __init__(self, job: Job, ended: Callable[[Exception | None], None], began: float) -> None:
        self.job = job
        self.ended = ended
        self.began = began
        """The time in seconds, by the event loop's clock."""
        self.error: Exception | None = None
        self.done = False


class _Assignment:
    """Jobs that one thread carries out, one after the other."""

    __slots__ = ("began", "ended", "entries", "is_stuck", "is_taken")

    def __init__(self, entries: Iterable[_Entry], began: float) -> None:
        self.entries = deque(entries)
        """Jobs not yet begun. The thread takes them from the front; the event loop takes back the rest."""
        self.ended: deque[_Entry] = deque()
        """Jobs that the thread has carried out, but whose callers have not been told."""
        self.began = began
        self.is_taken = False
        """A thread has begun it. Set by the thread."""
        self.is_stuck = False


class Committer:
    """Writes and syncs. Used from one event loop."""

    def __init__(self, disk: Disk, threads: int) -> None:
        self._disk = disk
        self._threads_max = threads
        self._threads: list[threading.Thread] = []
        self._free_threads = threads
        self._waiting: deque[_Entry] = deque()
        self._assignments: queue.SimpleQueue[_Assignment | None] = queue.SimpleQueue()
        self._out: set[_Assignment] = set()
        """The assignments that threads are working on or will take; there should be a thread for each."""
        self._stuck = 0
        """How many replaced threads are still busy."""
        self._look: asyncio.TimerHandle | None = None
        self._dispatch_due = False
        self._queue: CommitQueue | None = None
        self._is_queue_sought = False
        self._late_look: asyncio.TimerHandle | None = None
        self._number = 0
        """Of the latest job that the queue was to have."""
        self._to_submit: list[CommitShare] = []
        self._queued: dict[int, _Entry] = {}
        """The jobs that the queue has, or is to have in this turn, by number."""
        self._waiting_for_lull: list[Callable[[], None]] = []
        self._lull_timer: asyncio.TimerHandle | None = None
        self._lull_after = 0
        """The lull comes once all syncs up to this number have ended."""
        self._first_goes = False
        """In this turn, somebody was told not to wait for a lull, and will begin in the next one."""

    async def run(self, job: Job) -> None:
        """Carry the job out. Raises what the job raises."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def tell(_: Exception | None) -> None:
            if not ended.done():
                ended.set_result(None)

        entry = self._enter(loop, job, tell)
        try:
            await ended
        except asyncio.CancelledError:
            while not entry.done and not job.is_let_go:
                ended = loop.create_future()
                with contextlib.suppress(asyncio.CancelledError):
                    await ended
            raise
        if entry.error is not None:
            raise entry.error

    def begin(self, job: Job, ended: Callable[[Exception | None], None]) -> None:
        """Carry the job out for a caller that does not wait: `ended` is called at its end, with what it has
        raised. That may happen before this returns. `ended` raises nothing."""
        self._enter(asyncio.get_running_loop(), job, ended)

    def _enter(
        self, loop: asyncio.AbstractEventLoop, job: Job, ended: Callable[[Exception | None], None]
    ) -> _Entry:
        if not self._is_queue_sought:
            self._seek_queue(loop)
        entry = _Entry(job, ended, loop.time())
        self._begin(loop, entry)
        return entry

    def at_lull(self, begin: Callable[[], None]) -> bool:
        """If files are being synced, call `begin` once those of now have been, or after LULL_S. It begins
        work that can gather more until then. Returns False if there is nothing to wait for, or the disk is
        slow. Of several callers in one turn of the event loop, the first goes on, and the others wait for its
        sync."""
        loop = asyncio.get_running_loop()
        if self._queue is None or self._is_slow(loop.time()):
            return False
        last = self._number
        if len(self._queued) == len(self._to_submit):  # what is not submitted yet can be joined
            if not self._first_goes:
                self._first_goes = True
                loop.call_soon(self._first_has_gone)
                return False
            last += 1  # the number that its sync gets
        if self._lull_timer is None:
            self._lull_timer = loop.call_later(LULL_S, self._end_lull_wait, loop)
            self._lull_after = last
        self._waiting_for_lull.append(begin)
        return True

    def _first_has_gone(self) -> None:
        self._first_goes = False

    def _end_lull_wait(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._lull_timer is not None:
            self._lull_timer.cancel()
            self._lull_timer = None
        waiting, self._waiting_for_lull = self._waiting_for_lull, []
        self.begin_together(waiting)

    def begin_together(self, begins: Sequence[Callable[[], None]]) -> None:
        """Call all of these now. The jobs that they begin are synced together, SHARED_JOBS_MAX at a time."""
        dispatches = len(begins) > 1 and not self._dispatch_due
        if dispatches:
            self._dispatch_due = True  # so that no job counts as alone
            loop = asyncio.get_running_loop()
            loop.call_soon(self._dispatch, loop)  # after them: what they begin is synced together
        for begin in begins:
            if len(self._to_submit) >= SHARED_JOBS_MAX:
                self._submit()
            begin()

    def _begin(self, loop: asyncio.AbstractEventLoop, entry: _Entry) -> None:
        """Begin a job in the event loop, or leave it to a thread."""
        share = None
        try:
            if self._queue is not None and not self._is_slow(entry.began):
                share = entry.job.begin()
        except Exception as error:
            entry.error = error
        if share is None and self._waiting_for_lull and not self._queued:
            self._end_lull_wait(loop)  # they wait for a job of the queue, and this one is none
        if entry.error is not None:
            self._end(entry)
            return
        if share is None:
            self._waiting.append(entry)
        else:
            number = self._number = self._number + 1
            is_alone = not self._queued and not self._dispatch_due
            self._queued[number] = entry
            self._to_submit.append((number, *share))
            # The disk is idle and there is no other job, so waiting for the next turn would gain nothing.
            if is_alone:
                self._submit()
                if not self._waiting:
                    return
        self._dispatch_soon(loop)

    def _is_slow(self, now: float) -> bool:
        """Whether the queue has had a job for so long that it may be stuck."""
        return bool(self._queued) and now - next(iter(self._queued.values())).began > SLOW_S

    def _end(self, entry: _Entry) -> None:
        entry.done = True
        try:
            entry.job.finish(entry.error)
        except Exception as bug:  # other jobs are told in the same call
            _log.exception("commit.bug")
            entry.error = CommitFailed(f"the end of a commit could not be recorded: {bug!r}")
        entry.ended(entry.error)

    def _dispatch_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Dispatch once every task that is ready to run has submitted its job."""
        if not self._dispatch_due:
            self._dispatch_due = True
            loop.call_soon(self._dispatch, loop)

    def _dispatch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._dispatch_due = False
        if self._to_submit:
            self._submit()
        waiting = self._waiting
        while waiting and self._free_threads:
            share = min(FILES_PER_ASSIGNMENT_MAX, -(-len(waiting) // self._free_threads))
            self._free_threads -= 1
            assignment = _Assignment([waiting.popleft() for _ in range(share)], loop.time())
            self._out.add(assignment)
            if len(self._threads) < len(self._out):
                self._start_thread(loop)
            self._assignments.put(assignment)
        if self._out and self._look is None:
            self._look = loop.call_later(STUCK_S, self._replace_stuck, loop)

    def _replace_stuck(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand the jobs that stuck threads have not begun to other threads, and start missing threads."""
        self._look = None
        now = loop.time()
        for assignment in list(self._out):
            # What no thread has taken has no thread to replace: it waits for the next one.
            if (
                not assignment.is_taken
                or assignment.is_stuck
                or now - assignment.began < STUCK_S
                or self._stuck >= STUCK_MAX
            ):
                continue
            assignment.is_stuck = True
            self._report(assignment)
            self._stuck += 1
            self._free_threads += 1
            with contextlib.suppress(IndexError):  # the thread may take the last job at the same time
                while True:
                    self._waiting.append(assignment.entries.popleft())
        while len(self._threads) < len(self._out) and self._start_thread(loop):
            pass
        if not all(assignment.is_stuck for assignment in self._out):
            self._look = loop.call_later(STUCK_S / 2, self._replace_stuck, loop)
        if self._waiting:
            self._dispatch_soon(loop)

    # --- by the disk's queue ---

    def _seek_queue(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_queue_sought = True
        self._queue = self._disk.commit_queue()
        if self._queue is not None:
            loop.add_reader(self._queue.ready_fd, self._queue_answers)

    def _submit(self) -> None:
        """Give the queue the jobs that have begun. Threads get those that it does not accept."""
        assert self._queue is not None
        shares, self._to_submit = self._to_submit, []
        try:
            accepted = self._queue.submit(shares)
        except MemoryError:  # none was begun
            accepted = 0
        for share in shares[accepted:]:
            self._waiting.append(self._queued.pop(share[0]))
        if self._late_look is None:
            loop = asyncio.get_running_loop()
            self._late_look = loop.call_later(SLOW_S, self._look_for_late, loop)

    def _look_for_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """If the queue is stuck, give what it has not begun to threads."""
        self._late_look = None
        if self._is_slow(loop.time()):
            assert self._queue is not None
            with contextlib.suppress(MemoryError):  # none was given up, and this is tried again
                self._waiting += [self._queued.pop(number) for number in self._queue.take_back()]
            if self._waiting:
                self._dispatch_soon(loop)
        if self._queued:
            self._late_look = loop.call_later(SLOW_S, self._look_for_late, loop)

    def _queue_answers(self) -> None:
        assert self._queue is not None
        try:
            ended = self._queue.ended()
        except MemoryError:
            return  # the descriptor stays readable, so this is called again
        for number, errno, is_written in ended:
            entry = self._queued.pop(number)
            if errno:
                error = OSError(errno, os.strerror(errno))
                entry.error = entry.job.sync_error(error) if is_written else entry.job.write_error(error)
                if entry.error is None:
                    self._waiting.append(entry)
                    self._dispatch_soon(asyncio.get_running_loop())
                    continue
            self._end(entry)
        if self._waiting_for_lull and next(iter(self._queued), self._lull_after + 1) > self._lull_after:
            self._end_lull_wait(asyncio.get_running_loop())

    # --- by threads ---

    def _start_thread(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Start a thread. If the system starts none, gives False: another thread takes the work, or this is
        tried again after STUCK_S."""
        thread = threading.Thread(
            target=self._work, args=(loop,), name=f"storage-commit-{len(self._threads)}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("disk.no_thread", threads=len(self._threads), error=str(error))
            return False
        self._threads.append(thread)
        return True

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (assignment := self._assignments.get()) is not None:
            assignment.is_taken = True
            with contextlib.suppress(IndexError):
                while True:
                    entry = assignment.entries.popleft()
                    try:
                        entry.job.run()
                    except Exception as error:  # the job's outermost frame; its owner turns it into a state
                        entry.error = error
                    assignment.ended.append(entry)
                    del entry  # its frame may take MiBs; the next assignment may be hours away
            # RuntimeError: the loop is closed, because the broker stopped without waiting for this disk.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._assignment_ended, loop, assignment)

    def _assignment_ended(self, loop: asyncio.AbstractEventLoop, assignment: _Assignment) -> None:
        self._out.discard(assignment)
        if assignment.is_stuck:
            self._stuck -= 1
        else:
            self._free_threads += 1
        self._report(assignment)
        if self._waiting:
            self._dispatch_soon(loop)

    def _report(self, assignment: _Assignment) -> None:
        while assignment.ended:
            self._end(assignment.ended.popleft())

    async def close(self) -> bool:
        """Stop the threads and close the queue. If the disk has not answered yet, leaves both as they are and
        returns False."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._late_look is not None:
            self._late_look.cancel()
            self._late_look = None
        self._end_lull_wait(asyncio.get_running_loop())
        if self._queued or self._out:
            _log.warning("disk.hangs", syncs=len(self._queued), threads=len(self._out))
            if self._queue is not None:
                asyncio.get_running_loop().remove_reader(self._queue.ready_fd)
            return False
        assert not self._waiting and self._free_threads == self._threads_max, "every log was closed before"
        for _ in self._threads:
            self._assignments.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._queue is not None:
            asyncio.get_running_loop().remove_reader(self._queue.ready_fd)
            self._queue.close()
            self._queue = None
        self._is_queue_sought = False
        return True
