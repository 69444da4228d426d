"""The only place that reads the time. Everything else is given a Clock, or a number it took from one.

A clock has two hands, both in milliseconds:

*Wall time* (`now_ms`), since the Unix epoch: what is stored, what clients are shown, schedules, and the expiry of tokens and
certificates. It follows the machine's clock, so it may step forward or back at any moment.

*Monotonic time* (`monotonic_ms`), from a start that means nothing: whatever lasts. Locks, times to live, idle times, duplicate windows,
pauses and retries count on it, so a step of the wall clock neither frees nor freezes anything. It goes on while the machine is suspended
(CLOCK_BOOTTIME), as it does for the clients on other machines. The timers of the event loop may stand still meanwhile: they only wake
somebody up, who then looks here, and `ClockWatch` tells when to do so.

The two never mix: a moment in monotonic time is shown to a client as that moment plus `Clock.now_ms() - Clock.monotonic_ms()`, at the
time it is shown. A moment that was stored in wall time becomes monotonic when it is read back.
"""

from __future__ import annotations

import time
from typing import Protocol


def elapsed_s() -> float:
    """Seconds on a clock that no one sets: to measure how long work takes, never to say when something is due."""
    return time.perf_counter()


def worked_s() -> float:
    """Seconds of processor time that this thread has used: how long its work takes, whatever else the machine does meanwhile."""
    return time.thread_time()


class Clock(Protocol):
    """Two hands; see above."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the Unix epoch. May step, also back."""

    def monotonic_ms(self) -> int:
        """Milliseconds that have passed; the start means nothing. Never goes back."""


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    _MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    """Systems without CLOCK_BOOTTIME have a monotonic clock that goes on during a suspend, or none that does."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(self._MONOTONIC) // 1_000_000


class ManualClock:
    """A clock that tests move by hand. Its hands are far apart, so that a test shows where they are mixed up."""

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic_ms: int = 5_000_000) -> None:
        self._now_ms, self._monotonic_ms = now_ms, monotonic_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        self._now_ms += milliseconds
        self._monotonic_ms += milliseconds

    def step(self, milliseconds: int) -> None:
        """Set the wall clock; no time passes."""
        self._now_ms += milliseconds


def wall_ahead_ms(clock: Clock) -> int:
    """What to add to a moment in monotonic time to have it in wall time, as of now."""
    return clock.now_ms() - clock.monotonic_ms()


STEP_MS_MIN = 250
"""A smaller step passes unnoticed: time synchronisation slews the clock by less than a millisecond in a second."""
SUSPEND_MS_MIN = 1_000
INTERRUPTED_MS = 50
"""Between reading one hand and the other; if it took longer, the difference says nothing."""


class ClockWatch:
    """Notices that the wall clock was set, or that the machine was suspended. To be asked every second or so."""

    __slots__ = ("_before", "_clock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before = self._read()

    def look(self) -> tuple[int, int]:
        """How far the wall clock was set since the last look, negative for back, and how long timers stood still; 0 for neither."""
        before, read = self._before, self._read()
        self._before = read or before
        if before is None or read is None:
            return 0, 0
        step_ms, suspended_ms = read[0] - before[0], read[1] - before[1]
        return step_ms if abs(step_ms) >= STEP_MS_MIN else 0, suspended_ms if suspended_ms >= SUSPEND_MS_MIN else 0

    def _read(self) -> tuple[int, int] | None:
        """How far wall time is ahead of monotonic time, and that of the time by which the event loop's timers run."""
        before = self._clock.monotonic_ms()
        now_ms, timer_ms = self._clock.now_ms(), time.monotonic_ns() // 1_000_000
        after = self._clock.monotonic_ms()
        return (now_ms - after, after - timer_ms) if after - before <= INTERRUPTED_MS else None
