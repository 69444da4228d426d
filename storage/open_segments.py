"""Which logs have the file that they write to open: at most so many, and none that was not written to for a while.

A partition writes to one file for ever, and there may be more partitions than a process may have descriptors. A log takes its
place here before it opens the file. If all places are taken, the log that was not written to for longest puts its file away, one that
is not at work if there is one. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol


class Holder(Protocol):
    """A log."""

    @property
    def is_busy(self) -> bool:
        """Its file is being used."""

    async def put_away(self) -> None:
        """Close the file and give the place back, once it is not being used any more. Does not raise for the disk's sake."""


class OpenSegments:
    """The places, with the time when each was last used."""

    def __init__(self, places: int, idle_ms: int, taken: Callable[[], None]) -> None:
        """`taken` is called whenever a log takes a place: from then on `close_idle` has something to do."""
        self._places = max(1, places)
        self._idle_s = idle_ms / 1_000
        self._taken = taken
        self._logs: OrderedDict[Holder, float] = OrderedDict()
        """The longest unused one first."""
        self._one_at_a_time = asyncio.Lock()

    def __iter__(self) -> Iterator[Holder]:
        return iter(self._logs)

    async def take(self, log: Holder) -> None:
        """Have a place, which may have to be waited for. Whoever has none waits here; no log that has one ever does, so it goes on."""
        if log in self._logs:
            self.used(log)
            return
        async with self._one_at_a_time:
            while len(self._logs) >= self._places:
                await self._make_room()
            self._logs[log] = asyncio.get_running_loop().time()
        self._taken()

    def used(self, log: Holder) -> None:
        """The log writes to its file."""
        self._logs[log] = asyncio.get_running_loop().time()
        self._logs.move_to_end(log)

    def give(self, log: Holder) -> None:
        """The log's file is closed. Nothing happens if it had no place."""
        self._logs.pop(log, None)

    async def _make_room(self) -> None:
        for log in self._logs:
            if not log.is_busy:
                break
        else:
            log = next(iter(self._logs))
        await log.put_away()

    async def close_idle(self) -> None:
        """Close what was not used for the idle time, until nothing is open."""
        while self._logs:
            log, used_at = next(iter(self._logs.items()))
            idle_s = asyncio.get_running_loop().time() - used_at
            if idle_s < self._idle_s:
                await asyncio.sleep(self._idle_s - idle_s)
            elif log.is_busy:
                self.used(log)
            else:
                await log.put_away()
