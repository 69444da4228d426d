"""Limits how much garbage a partition's log may hold: little at rest, more under heavy writes. Pure.

Returning disk space costs a checkpoint and a few syncs, however much it frees. Under heavy writes the bound
is the garbage of some seconds of traffic, so the cost hardly slows the traffic. Once the traffic ends, the
bound falls to a minimum. To notice the end, the partition looks at its log some time after each write, until
nothing was written between two looks.
"""

from __future__ import annotations

from collections.abc import Callable

PER_LOOK = 4
"""Garbage tolerated, as a multiple of the bytes written or removed between two looks, whichever are more."""


class GarbageBound:
    """The bound for one log, and when to look at the log next. Times are in ms of monotonic time; `end` is a
    log position."""

    __slots__ = (
        "_bytes_max",
        "_bytes_min",
        "_every_ms",
        "_live_bytes",
        "_seen_end",
        "_seen_live",
        "bytes",
        "due_ms",
    )

    def __init__(
        self,
        bytes_min: Callable[[], int],
        bytes_max: int,
        every_ms: int,
        end: int,
        live_bytes: Callable[[], int],
    ) -> None:
        """`bytes_min` returns the garbage allowed at rest, which may depend on the disk's room. `bytes_max`:
        garbage allowed under any load. `every_ms`: time between two looks. `end`: the end of the log.

        `live_bytes` returns how much of the log is live: consumers that empty a queue write little but create
        much garbage.
        """
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._every_ms = every_ms
        self._seen_end = end
        self._live_bytes = live_bytes
        self._seen_live = live_bytes()
        self.bytes = bytes_max
        """Bytes of garbage tolerated."""
        self.due_ms: int | None = 0
        """When to look next; None while nothing is written. A newly opened log is looked at, because a crash
        may have left garbage in it."""

    def look(self, now_ms: int, end: int) -> bool:
        """Call this after each cycle with the log's end. Returns True, after adapting the bound, if it is
        time to look at the log."""
        if self.due_ms is None:
            if end != self._seen_end:
                self.due_ms = now_ms + self._every_ms
            return False
        if now_ms < self.due_ms:
            return False
        if self.due_ms == 0:
            self.due_ms = now_ms + self._every_ms
            return False
        written, self._seen_end = end - self._seen_end, end
        live_bytes = self._live_bytes()
        removed, self._seen_live = max(written + self._seen_live - live_bytes, 0), live_bytes
        self.bytes = min(max(PER_LOOK * max(written, removed), self._bytes_min()), self._bytes_max)
        self.due_ms = now_ms + self._every_ms if written else None
        return True

    def discount(self, written: int) -> None:
        """Leave bytes written by upkeep itself out of the traffic."""
        self._seen_end += written
