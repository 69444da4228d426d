"""Bounds how many logs keep their active file open, and for how long without a commit.

Each partition has a file that it writes to, and there may be more partitions than a process may have
descriptors. So a log takes a place here before it opens its file. If all places are taken, the least recently
used log closes its file; logs that are not busy come first. Owned by the event loop.

A log whose disk hangs keeps its place, but nobody waits for that log alone: after LATE_S, another log is
asked as well.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

LATE_S = 0.25
"""How long a log has to close its file before another log is asked as well."""


class Holder(Protocol):
    """The part of a log that this file needs."""

    @property
    def is_busy(self) -> bool:
        """Whether the log's file is in use."""

    async def put_away(self) -> None:
        """Wait until the file is not in use, close it, and give the place back. Does not raise if the disk
        fails."""


class OpenSegments:
    """The places, and when each was last used."""

    def __init__(self, places: int, idle_ms: int, taken: Callable[[], None]) -> None:
        """`taken` is called whenever a log takes a place, so that `close_idle` can be started."""
        self._places = max(1, places)
        self._idle_s = idle_ms / 1_000
        self._taken = taken
        self._logs: OrderedDict[Holder, float] = OrderedDict()
        """When each log last used its place; the least recently used log comes first."""
        self._one_at_a_time = asyncio.Lock()
        self._leaving: dict[Holder, asyncio.Task[None]] = {}
        """Logs that are closing their files to make room."""

    def __iter__(self) -> Iterator[Holder]:
        return iter(self._logs)

    async def take(self, log: Holder) -> None:
        """Get a place for a log, waiting until there is one. A log that has a place never waits here, so
        there is no deadlock.

        A cancelled caller leaves at once, whatever it waits for.
        """
        if log in self._logs:
            self.used(log)
            return
        async with self._one_at_a_time:
            is_late = False
            while len(self._logs) >= self._places:
                is_late = await self._make_room(is_late)
            self._logs[log] = asyncio.get_running_loop().time()
        self._taken()

    def used(self, log: Holder) -> None:
        """The log writes to its file."""
        self._logs[log] = asyncio.get_running_loop().time()
        self._logs.move_to_end(log)

    def give(self, log: Holder) -> None:
        """Give the log's place back, because its file is closed. Does nothing if the log has no place."""
        self._logs.pop(log, None)

    async def _make_room(self, is_late: bool) -> bool:
        """Have one more log close its file, and return when any log asked so far has done so. True if none
        has within LATE_S.

        `is_late`: the logs asked before are late, so a busy log may be asked as well.
        """
        log = next((each for each in self._logs if not (each.is_busy or each in self._leaving)), None)
        if log is None and (is_late or not self._leaving):
            log = next((each for each in self._logs if each not in self._leaving), None)
        if log is not None:
            self._have_leave(log)
        done, _ = await asyncio.wait(
            self._leaving.values(), timeout=LATE_S, return_when=asyncio.FIRST_COMPLETED
        )
        return not done

    def _have_leave(self, log: Holder) -> asyncio.Task[None]:
        """Begin to close a log's file; the task ends when it is closed."""
        task = self._leaving[log] = asyncio.create_task(self._have_put_away(log), name="storage-place")
        return task

    async def _have_put_away(self, log: Holder) -> None:
        try:
            await log.put_away()
        finally:
            del self._leaving[log]

    async def close_idle(self) -> None:
        """Close files that were unused for the idle time; returns when no file is open.

        A log whose disk hangs does not delay the others.
        """
        while self._logs:
            found = next((each for each in self._logs.items() if each[0] not in self._leaving), None)
            if found is None:
                await asyncio.wait(self._leaving.values(), return_when=asyncio.FIRST_COMPLETED)
                continue
            log, used_at = found
            idle_s = asyncio.get_running_loop().time() - used_at
            if idle_s < self._idle_s:
                await asyncio.sleep(self._idle_s - idle_s)
            elif log.is_busy:
                self.used(log)
            else:
                await asyncio.wait([self._have_leave(log)], timeout=LATE_S)
