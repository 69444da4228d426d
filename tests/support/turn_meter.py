"""Measures how much processor time the turns of an event loop take.

A callback that schedules itself again runs once in each turn. What the loop's thread has used since the last
time is what the callbacks and tasks between two polls of the sockets took. Only this thread's processor time
counts, so a busy machine makes no turn longer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager


class TurnMeter:
    """Measures while it is inside `measuring`, or between `begin` and `end`. Used in the loop's thread. The
    loop does not sleep meanwhile."""

    def __init__(self) -> None:
        self.turns = 0
        """How many turns were measured."""
        self.longest_ms = 0.0
        """Processor time of the longest turn."""
        self._last_ns: int | None = None
        self._handle: asyncio.Handle | None = None

    @contextmanager
    def measuring(self) -> Iterator[TurnMeter]:
        """Measure all turns that begin inside the block."""
        self.begin()
        try:
            yield self
        finally:
            self.end()

    def begin(self) -> None:
        """Start measuring."""
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def end(self) -> None:
        """Stop measuring."""
        assert self._handle is not None, "it was started"
        self._handle.cancel()
        self._handle = self._last_ns = None

    def _turn(self) -> None:
        now_ns = time.thread_time_ns()
        if self._last_ns is not None:
            self.turns += 1
            self.longest_ms = max(self.longest_ms, (now_ns - self._last_ns) / 1e6)
        self._last_ns = now_ns
        self._handle = asyncio.get_running_loop().call_soon(self._turn)
