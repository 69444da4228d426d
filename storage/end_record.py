"""Records in the extents of logs in use how far these logs are durable, so that a last segment that loses its
end is noticed.

A commit writes nothing to its log's extent (`extent.py`): that would double its cost. So what was committed
since the segment was begun would be known to the segment alone, and a file that was cut off, or zeroed,
behind a whole frame looks like one that ends there. The extents are brought up to date in the background, a
few in a second, however much traffic there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

INTERVAL_MS = 2_000
"""How long a commit's position may stay unrecorded, at least."""
PACE_S = 0.05
"""The pause between two extents: each costs a write and a sync, which commits must not wait behind."""


class Recorded(Protocol):
    """The part of a log that is needed here."""

    @property
    def is_end_recorded(self) -> bool:
        """Whether the extent knows all that is durable."""

    async def record_end(self) -> None:
        """Have the extent know it. A disk that refuses raises nothing."""


class EndRecord:
    """The logs whose ends are to be recorded. Owned by the event loop."""

    def __init__(self, in_use: Iterable[Recorded], interval_ms: int) -> None:
        """`in_use`: the logs that are written to, whenever it is iterated over."""
        self._in_use, self._interval_s = in_use, interval_ms / 1_000
        self._put_away: set[Recorded] = set()

    def put_away(self, log: Recorded) -> None:
        """The log is not in use any more, for now."""
        if not log.is_end_recorded:
            self._put_away.add(log)

    async def keep(self) -> None:
        """Record, until no log is in use."""
        while logs := {*self._in_use, *self._put_away}:
            await asyncio.sleep(self._interval_s)
            self._put_away.clear()
            for log in logs.union(self._in_use):
                if not log.is_end_recorded:
                    await log.record_end()
                    await asyncio.sleep(PACE_S)
