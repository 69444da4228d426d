"""Has zeros written, or allocated, ahead of a log's commits by a thread, while the commits go on.

A commit that finds no room behind the last frame goes through a thread and waits for a file that grows and
for a journal commit of the file system: ten times as long as others, and longer while the event loop is busy,
because the thread needs the interpreter lock after every system call. `segment.py` decides which zeros are
due.

A commit waits until the zeros have ended in two cases. A write to a file waits for another write to the same
file, so nothing is written to a file whose zeros are late because the disk is slow or hangs: that would hold
up the thread that writes the commits of all files. And a
file system that copies on write may find no space to overwrite zeros: the file is then cut off behind its
last frame, and later frames could lie where the thread still writes.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from storage.disk import Disk
from storage.errors import CommitFailed
from storage.segment import ActiveSegment, Zeros
from storage.threads import UnderWay

LATE_S = 0.05
"""Zeros are late when writing them takes longer than this. The time that they wait for a thread does not
count, because it delays no write to the file."""


class ZerosAhead:
    """Zeros being written to one segment. Owned by the event loop."""

    __slots__ = (
        "_active",
        "_began",
        "_future",
        "_job",
        "_loop",
        "_under_way",
        "_zeros",
        "error",
        "has_ended",
    )

    def __init__(
        self,
        active: ActiveSegment,
        zeros: Zeros,
        disk: Disk,
        executor: Executor,
        *,
        syncs: bool,
        under_way: UnderWay,
    ) -> None:
        """Begin. `syncs` makes zeros that are written durable before any frame is written over them.

        Raises RuntimeError if the store has been closed; then nothing has begun.
        """
        self._active, self._zeros, self._under_way = active, zeros, under_way
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None
        """When the thread began to write; None before that. Set by the thread."""
        self.has_ended = False
        self.error: CommitFailed | None = None
        """Why the segment must not be written to any more (durability rule 4)."""
        self._job = executor.submit(self._write, disk, syncs)
        self._future = asyncio.wrap_future(self._job, loop=self._loop)
        under_way.begin()
        self._future.add_done_callback(self._ended)

    def _write(self, disk: Disk, syncs: bool) -> None:
        """Runs in a thread."""
        self._began = self._loop.time()
        self._zeros.write(disk, syncs)

    @property
    def is_late(self) -> bool:
        """Whether a write to the file might have to wait."""
        began = self._began
        return not self.has_ended and began is not None and self._loop.time() - began > LATE_S

    @property
    def may_hit_frames(self) -> bool:
        """Whether the zeros may be written over the next frames, because the file was cut off meanwhile."""
        return not self.has_ended and not self._active.is_before(self._zeros)

    def let_pass(self, size: int) -> bool:
        """Whether a commit of `size` bytes need not wait for them, and they have not failed."""
        if self.has_ended:
            return self.error is None
        return self._active.has_room(size) and not (self.is_late or self.may_hit_frames)

    def give_up_unbegun(self) -> None:
        """Give the zeros up if no thread has begun to write them. `wait` then returns soon."""
        self._job.cancel()

    async def wait(self) -> None:
        """Return when the thread is done."""
        if not self.has_ended:
            await asyncio.wait([self._future])

    def _ended(self, future: asyncio.Future[None]) -> None:
        self.has_ended = True
        self._under_way.end()
        error = None if future.cancelled() else future.exception()
        if error is None and not future.cancelled():
            self._active.zeros_written(self._zeros)
        elif isinstance(error, CommitFailed):
            self.error = error  # any other error has changed nothing, and a commit that needs room finds out
