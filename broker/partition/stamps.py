"""Enqueued times: wall time as a partition's messages show it. Pure.

They never go back, so that they agree with the order of the sequence numbers: receivers page and resume by either. When the wall
clock was set back, they neither stand still until it has caught up nor go back with it: they go on at half speed, so that the
clock catches up with them after twice the step at the latest.
"""

from __future__ import annotations


class Stamps:
    """Gives the enqueued time of each batch. Owned by the partition's state machine."""

    __slots__ = ("_from", "_since_ms")

    def __init__(self) -> None:
        self._from: int | None = None
        """The latest stamp when the wall clock was found behind it; None as long as it is not."""
        self._since_ms = 0
        """The monotonic time of that moment."""

    def stamp(self, latest_ms: int, now_ms: int, wall_ms: int) -> int:
        """The enqueued time at a moment, given the latest one that was used, monotonic time and wall time."""
        if wall_ms >= latest_ms:
            self._from = None
            return wall_ms
        if self._from is None:
            self._from, self._since_ms = latest_ms, now_ms
        return max(latest_ms, self._from + (now_ms - self._since_ms) // 2)
