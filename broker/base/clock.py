"""The only module that reads the time. All other code gets a Clock, or a number read from one.

A clock gives two times, both in milliseconds:

*Wall time* (`now_ms`), since the Unix epoch: for stored times, times shown to clients, schedules, and the
expiry of tokens and certificates. It follows the machine's clock, so it may step forward or back at any
moment.

*Monotonic time* (`monotonic_ms`), from an arbitrary start: for durations. Locks, times to live, idle times,
duplicate windows, pauses and retries use it, so a step of the wall clock neither ends nor freezes them. It
advances while the machine is suspended (CLOCK_BOOTTIME), as time does for clients on other machines. The
event loop's timers may stop during a suspend, but they only wake tasks, which then read this clock, and
`ClockWatch` notices a suspend.

Never mix the two. To show a monotonic time to a client, add the present `Clock.now_ms() -
Clock.monotonic_ms()`. A stored wall time is converted to monotonic time when it is read back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

elapsed_s: Final[Callable[[], float]] = time.perf_counter
"""Seconds on a clock that is never set: for measuring how long work takes, never for deadlines."""
worked_s: Final[Callable[[], float]] = time.thread_time
"""Seconds of processor time that this thread has used: measures its work, whatever else the machine does
meanwhile."""


class Clock(Protocol):
    """Wall time and monotonic time; see the module docstring."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the Unix epoch. May step forward or back."""

    def monotonic_ms(self) -> int:
        """Monotonic time in milliseconds, from an arbitrary start. Never goes back."""


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    _MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    """Without CLOCK_BOOTTIME this is the system's monotonic clock, whether or not it advances during a
    suspend."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(self._MONOTONIC) // 1_000_000


class ManualClock:
    """A clock that tests move by hand. Its two times are far apart, so that a test fails if code mixes them
    up."""

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
        """Step the wall clock; no time passes."""
        self._now_ms += milliseconds


def wall_ahead_ms(clock: Clock) -> int:
    """How far wall time is ahead of monotonic time now: add it to a monotonic time to get wall time."""
    return clock.now_ms() - clock.monotonic_ms()


STEP_MS_MIN = 250
"""Smaller steps are ignored, because time synchronisation slews the clock by less than a millisecond per
second."""
SUSPEND_MS_MIN = 1_000
INTERRUPTED_MS = 50
"""The longest pause allowed between reading the two times. After a longer one their difference means
nothing."""


class ClockWatch:
    """Notices when the wall clock was set or the machine was suspended. Call `look` about once a second."""

    __slots__ = ("_before", "_clock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before = self._read()

    def look(self) -> tuple[int, int]:
        """How far the wall clock has stepped since the last look (negative if back), and how long timers
        stood still, both in ms; 0 if neither happened."""
        before, read = self._before, self._read()
        self._before = read or before
        if before is None or read is None:
            return 0, 0
        step_ms, suspended_ms = read[0] - before[0], read[1] - before[1]
        return step_ms if abs(
            step_ms
        ) >= STEP_MS_MIN else 0, suspended_ms if suspended_ms >= SUSPEND_MS_MIN else 0

    def _read(self) -> tuple[int, int] | None:
        """How far wall time is ahead of monotonic time, and monotonic time ahead of the event loop's timers;
        None if the reading was interrupted."""
        before = self._clock.monotonic_ms()
        now_ms, timer_ms = self._clock.now_ms(), time.monotonic_ns() // 1_000_000
        after = self._clock.monotonic_ms()
        return (now_ms - after, after - timer_ms) if after - before <= INTERRUPTED_MS else None
