"""Keeps the extents of logs in use up to date, so that a last segment that loses its end is noticed.

A commit does not write to its log's extent (`extent.py`), which would double its cost. So only the segment
itself knows what was committed since it began, and a file that was cut off or zeroed behind a whole frame
looks like a log that ends there. Therefore a background task records in each extent how far the log is
durable, for a few logs per second, however much traffic there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

INTERVAL_MS = 2_000
"""How often the task looks for logs whose extent is out of date."""
PACE_S = 0.05
"""The pause between two extents. Each costs a write and a sync, and commits must not queue behind them."""
LATE_S = 0.25
"""How long to wait for one extent before turning to the next log."""


class Recorded(Protocol):
    """The part of a log that this file needs."""

    @property
    def is_end_recorded(self) -> bool:
        """Whether the extent is up to date."""

    async def record_end(self) -> None:
        """Bring the extent up to date. Raises nothing if the disk refuses."""


class EndRecord:
    """The logs whose ends must be recorded. Owned by the event loop."""

    def __init__(self, in_use: Iterable[Recorded], interval_ms: int) -> None:
        """`in_use` iterates over the logs that are being written to at that moment."""
        self._in_use, self._interval_s = in_use, interval_ms / 1_000
        self._put_away: set[Recorded] = set()
        self._under_way: dict[Recorded, asyncio.Task[None]] = {}
        """Logs whose ends are being recorded."""

    def put_away(self, log: Recorded) -> None:
        """The log is not in use for now."""
        if not log.is_end_recorded:
            self._put_away.add(log)

    async def keep(self) -> None:
        """Record ends until no log is in use. A log whose disk hangs does not delay the others."""
        while logs := {*self._in_use, *self._put_away}:
            await asyncio.sleep(self._interval_s)
            self._put_away.clear()
            for log in logs.union(self._in_use):
                if not log.is_end_recorded and log not in self._under_way:
                    await asyncio.wait([self._begin(log)], timeout=LATE_S)
                    await asyncio.sleep(PACE_S)

    def _begin(self, log: Recorded) -> asyncio.Task[None]:
        task = self._under_way[log] = asyncio.create_task(log.record_end(), name="storage-end")
        task.add_done_callback(lambda _: self._under_way.pop(log))
        return task
