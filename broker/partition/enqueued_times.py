"""Enqueued times of a partition's messages, in wall time. Pure.

Enqueued times never go back, so they agree with the order of sequence numbers: receivers can page and resume
by either. After the wall clock is set back, enqueued times advance at half speed until the clock has caught
up, which takes at most twice the step.
"""

from __future__ import annotations


class EnqueuedTimes:
    """Determines the enqueued time of each cycle. Owned by the partition's state machine."""

    __slots__ = ("_from", "_since_ms")

    def __init__(self) -> None:
        self._from: int | None = None
        """The latest enqueued time at the moment when the wall clock fell behind it; None while the clock is
        not behind."""
        self._since_ms = 0
        """The monotonic time of that moment."""

    def stamp(self, latest_ms: int, now_ms: int, wall_ms: int) -> int:
        """The enqueued time for now, given the latest enqueued time, monotonic time and wall time."""
        if wall_ms >= latest_ms:
            self._from = None
            return wall_ms
        if self._from is None:
            self._from, self._since_ms = latest_ms, now_ms
        return max(latest_ms, self._from + (now_ms - self._since_ms) // 2)
