"""The timer fires at the first time that is due, once."""

from __future__ import annotations

import asyncio

from broker.base.clock import ManualClock
from broker.partition.due_timer import DueTimer
from tests.support.waiting import WAIT_S


async def test_it_fires_once_at_the_first_time_and_can_be_set_again() -> None:
    clock, fired = ManualClock(), asyncio.Event()
    timer = DueTimer(clock, fired.set)
    now_ms = clock.monotonic_ms()
    timer.set(None, None)
    assert timer.due_ms is None
    timer.set(now_ms + 60_000, None, now_ms + 90_000)
    assert timer.due_ms == now_ms + 60_000
    timer.set(now_ms + 70_000)
    assert timer.due_ms == now_ms + 60_000, "one that is too early is left to fire"
    timer.set(now_ms - 1)
    await asyncio.wait_for(fired.wait(), WAIT_S)
    assert timer.due_ms is None


async def test_a_cancelled_timer_does_not_fire() -> None:
    clock, fired = ManualClock(), list[bool]()
    timer = DueTimer(clock, lambda: fired.append(True))
    timer.set(clock.monotonic_ms())
    timer.cancel()
    await asyncio.sleep(0.001)
    assert not fired and timer.due_ms is None
