"""Lock expiry: the delivery counts as failed and the message becomes available again."""

from __future__ import annotations

from broker.entities.descriptions import MAIN, QueueSettings
from broker.operations.receiving import Demand, Locked
from broker.partition.cycle_bounds import Bounds
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import LOCK_MS, Harness, Lapses, one

SOME = 3_000
"""For tests in which each step checks the whole state."""


async def test_a_lock_that_runs_out_counts_a_delivery_and_the_message_goes_to_who_waits() -> None:
    harness = Harness()
    await harness.send(b"a")
    await harness.receive(1)
    await harness.do(2, Demand(MAIN, 1))
    await harness.advance(LOCK_MS - 1)
    assert not any(isinstance(answer, Locked) for answer in harness.take(2))
    await harness.advance(1 + Bounds().tick_ms)
    assert one(harness.take(2), Locked).delivery_counts == [1]
    await harness.restart()
    assert (await harness.receive(1)).delivery_counts == [1]


async def test_locks_that_end_at_once_end_in_cycles_of_bounded_size() -> None:
    bounds = Bounds(ended_locks_max=500, granted_max=100)
    harness, lapses = Harness(QueueSettings(max_delivery_count=5), limits=TaskLimits(bounds=bounds)), Lapses()
    harness.task._meter = lapses
    await harness.send(*[b"x"] * SOME)
    await harness.do(1, Demand(MAIN, SOME))
    harness.clock.advance(QueueSettings().lock_duration_ms + 20)
    await harness.until_quiet()
    assert sum(lapses.locks) == SOME
    assert max(lapses.locks) <= bounds.ended_locks_max + bounds.granted_max
