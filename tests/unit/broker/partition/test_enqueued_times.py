"""Enqueued times never go back, and catch up at half speed with a clock that was set back."""

from __future__ import annotations

from broker.partition.enqueued_times import EnqueuedTimes
from tests.support.partition_harness import Harness


async def test_enqueued_times_go_on_at_half_speed_until_a_clock_that_was_set_back_has_caught_up() -> None:
    harness = Harness()
    start_ms = harness.clock.now_ms()
    await harness.send(b"0")
    harness.clock.step(-10_000)
    for _ in range(5):
        await harness.send(b"x")
        await harness.advance(5_000)
    stamps = [each - start_ms for each in (await harness.peek()).enqueued_at_ms]
    assert stamps == [0, 0, 2_500, 5_000, 5_000, 10_000]
    await harness.send(b"y")
    assert (await harness.peek()).enqueued_at_ms[-1] == harness.clock.now_ms() == start_ms + 15_000


def test_enqueued_times_do_not_stand_still_when_cycles_come_faster_than_they_are_counted() -> None:
    stamps, latest = EnqueuedTimes(), 100_000
    for passed in range(1, 1_001):
        latest = stamps.stamp(latest, passed, 50_000 + passed)
    assert latest == 100_000 + 999 // 2
    assert stamps.stamp(latest, 1_001, 200_000) == 200_000, "forward it follows at once"


async def test_enqueued_times_do_not_run_backwards_when_the_clock_does() -> None:
    harness = Harness()
    await harness.send(b"a")
    before_ms = harness.clock.now_ms()
    await harness.restart()
    harness.clock.step(-10_000)
    await harness.send(b"b")
    assert (await harness.peek()).enqueued_at_ms == [before_ms, before_ms]
