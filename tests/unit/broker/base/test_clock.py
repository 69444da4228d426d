"""broker/base/clock.py: wall time, monotonic time, and detecting that the wall clock was set."""

from __future__ import annotations

import time

import pytest

from broker.base.clock import INTERRUPTED_MS, STEP_MS_MIN, ClockWatch, ManualClock, SystemClock, wall_ahead_ms

HOUR_MS = 3_600_000


def test_the_system_clock_tells_wall_time_and_a_time_that_never_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SystemClock()
    assert abs(clock.now_ms() - time.time() * 1000) < 10_000
    before = clock.monotonic_ms()
    real = time.time_ns()
    monkeypatch.setattr(
        time, "time_ns", lambda: real - HOUR_MS * 1_000_000
    )  # the machine's clock was set back
    assert abs(clock.now_ms() - (real // 1_000_000 - HOUR_MS)) < 10_000, "wall time follows"
    assert before <= clock.monotonic_ms() < before + 60_000


def test_a_moment_in_monotonic_time_is_shown_in_the_wall_time_of_now() -> None:
    clock = ManualClock(now_ms=10_000, monotonic_ms=400)
    assert 450 + wall_ahead_ms(clock) == 10_050
    clock.step(HOUR_MS)
    assert 450 + wall_ahead_ms(clock) == 10_050 + HOUR_MS


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, STEP_MS_MIN])
def test_a_step_is_noticed_once_and_with_its_size(step_ms: int) -> None:
    clock = ManualClock()
    watch = ClockWatch(clock)
    clock.advance(2_000)
    assert watch.look()[0] == 0
    clock.step(step_ms)
    clock.advance(1_000)
    assert [watch.look()[0] for _ in range(2)] == [step_ms, 0]


def test_what_time_synchronisation_slews_is_no_step_however_much_it_adds_up_to() -> None:
    clock = ManualClock()
    watch = ClockWatch(clock)
    for _ in range(1_000):
        clock.step(1)
        assert watch.look()[0] == 0


def test_time_in_which_timers_stood_still_is_noticed() -> None:
    """As in a suspend, the manual clock moves on while the clock of the event loop's timers stands still."""
    clock = ManualClock()
    watch = ClockWatch(clock)
    assert watch.look() == (0, 0)
    clock.advance(HOUR_MS)
    step_ms, suspended_ms = watch.look()
    assert step_ms == 0 and HOUR_MS - 60_000 < suspended_ms <= HOUR_MS
    assert watch.look() == (0, 0)


class Interrupted(ManualClock):
    """Something else runs between the reads of the two clocks."""

    pause_ms = 10 * INTERRUPTED_MS

    def now_ms(self) -> int:
        now_ms = super().now_ms()
        self.advance(self.pause_ms)
        return now_ms


def test_a_pause_between_the_two_hands_is_not_taken_for_a_step() -> None:
    clock = Interrupted()
    watch = ClockWatch(clock)
    assert watch.look() == (0, 0)
    clock.pause_ms = 0
    assert watch.look() == (0, 0)
    clock.pause_ms = 10 * INTERRUPTED_MS
    assert watch.look() == (0, 0)
    clock.pause_ms = 0
    clock.step(HOUR_MS)
    assert watch.look()[0] == HOUR_MS
