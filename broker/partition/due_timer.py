"""Wakes a partition's task when something falls due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.base.clock import Clock


class DueTimer:
    """One timer in the event loop. If it is set too early it is left to fire, and its owner sets it again."""

    __slots__ = ("_clock", "_due", "_handle", "due_ms")

    def __init__(self, clock: Clock, due: Callable[[], None]) -> None:
        """`due` is called when the time has come."""
        self._clock, self._due = clock, due
        self._handle: asyncio.TimerHandle | None = None
        self.due_ms: int | None = None
        """For when it is set, in monotonic time."""

    def set(self, *dues_ms: int | None) -> None:
        """Fire at the first of these times, or earlier. None does not count."""
        due_ms: int | None = None
        for each in dues_ms:
            if each is not None and (due_ms is None or each < due_ms):
                due_ms = each
        if due_ms is None or (self.due_ms is not None and self.due_ms <= due_ms):
            return
        self.cancel()
        delay_ms = max(0, due_ms - self._clock.monotonic_ms())
        self.due_ms = due_ms
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self._fire)

    def cancel(self) -> None:
        """Do not fire."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self.due_ms = None

    def _fire(self) -> None:
        self._handle = self.due_ms = None
        self._due()
