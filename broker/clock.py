"""The only place that reads the time. Everything else is given a Clock, or a number it took from one."""

from __future__ import annotations

import time
from typing import Protocol


def elapsed_s() -> float:
    """Seconds on a clock that no one sets: to measure how long work takes, never to say when something is due."""
    return time.perf_counter()


class Clock(Protocol):
    """Wall clock in milliseconds since the Unix epoch, never running backwards."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The machine's clock, held still while the machine's own steps back (locks, TTL and schedules stay monotonic)."""

    def __init__(self) -> None:
        self._latest_ms = 0

    def now_ms(self) -> int:
        now_ms = time.time_ns() // 1_000_000
        if now_ms > self._latest_ms:
            self._latest_ms = now_ms
        return self._latest_ms


class ManualClock:
    """A clock that tests move by hand."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
