"""Has zeros written ahead of a log's commits by a thread, while the commits go on.

A commit that finds no room behind the last frame goes through a thread and waits for a file that grows and
for a journal commit of the file system: ten times as long as others, and longer while the event loop is busy,
because the thread needs the interpreter lock after every system call. `segment.py` decides which zeros are
due.

A write to a file waits for another write to the same file. So while zeros are late, because the disk is slow
or hangs, the event loop does not write to that file: the commit waits until the zeros have ended.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from storage.disk import Disk
from storage.errors import CommitFailed
from storage.segment import ActiveSegment, Zeros
from storage.threads import UnderWay

LATE_S = 0.05
"""Zeros that take longer are late."""


class Filling:
    """Zeros being written to one segment. Owned by the event loop."""

    __slots__ = ("_active", "_began", "_future", "_loop", "_under_way", "_zeros", "error", "has_ended")

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
        """Begin. `syncs` makes the zeros durable before any frame is written over them."""
        self._active, self._zeros, self._under_way = active, zeros, under_way
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.has_ended = False
        self.error: CommitFailed | None = None
        """Why the segment must not be written to any more (durability rule 4)."""
        under_way.begin()
        self._future = self._loop.run_in_executor(executor, zeros.write, disk, syncs)
        self._future.add_done_callback(self._ended)

    @property
    def is_late(self) -> bool:
        """Whether a write to the file might have to wait."""
        return not self.has_ended and self._loop.time() - self._began > LATE_S

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
