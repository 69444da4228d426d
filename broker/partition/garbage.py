"""How much garbage a partition's log may hold: little at rest, more while much is being written. Pure.

Giving disk space back costs a checkpoint and a few syncs, however much it frees. While much is written, the
bound is the garbage of some seconds of traffic, so the cost hardly slows the traffic down. Once the traffic
ends, the bound falls to a minimum. To notice that end, the partition looks at its log some time after each
write, until nothing was written between two looks.
"""

from __future__ import annotations

from collections.abc import Callable

PER_LOOK = 4
"""The garbage that is tolerated, as a multiple of what was written, and of what was removed, between two
looks."""


class GarbageBound:
    """The bound for one log, and when to look at it next. In milliseconds of monotonic time and positions of
    the log."""

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
        self, bytes_min: int, bytes_max: int, every_ms: int, end: int, live_bytes: Callable[[], int]
    ) -> None:
        """`bytes_min` and `bytes_max` bound the garbage at rest and under any load; a log is looked at
        `every_ms`. `end` is the log's.

        `live_bytes` tells how much of the log is live: consumers that empty a queue write little, and make
        much garbage.
        """
        self._bytes_min = min(bytes_min, bytes_max)
        self._bytes_max = bytes_max
        self._every_ms = every_ms
        self._seen_end = end
        self._live_bytes = live_bytes
        self._seen_live = live_bytes()
        self.bytes = bytes_max
        """Bytes of garbage that are tolerated."""
        self.due_ms: int | None = 0
        """When to look next, None while nothing is written. A log that was just opened is looked at, for it
        may come from a crash."""

    def look(self, now_ms: int, end: int) -> bool:
        """Called after each batch, with the log's end. True if it is time to look at the log; the bound has
        been adapted then."""
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
        self.bytes = min(max(PER_LOOK * max(written, removed), self._bytes_min), self._bytes_max)
        self.due_ms = now_ms + self._every_ms if written else None
        return True

    def discount(self, written: int) -> None:
        """Upkeep itself has written so many bytes: they are no traffic."""
        self._seen_end += written
