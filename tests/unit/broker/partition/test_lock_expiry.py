"""Lock expiry: the delivery counts as failed and the message becomes available again."""

from __future__ import annotations

import pytest

from broker.entities.descriptions import MAIN, QueueSettings
from broker.message.changes import encode_changes
from broker.operations.receiving import Demand, Locked, ReceiveDeferred
from broker.operations.settling import Abandon, Defer
from broker.partition.changed_properties import MERGED_AT_ONCE, PROPERTY_COST
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


async def test_locks_of_one_message_each_end_a_few_at_a_time() -> None:
    """Symptom: 2,048 leases of a message each that ended after the time to live held the event loop for 36 ms
    and more."""
    bounds = Bounds(ended_leases_max=50)
    harness, lapses = Harness(limits=TaskLimits(bounds=bounds)), Lapses()
    harness.task._meter = lapses
    await harness.send(*[b"x"] * 120)
    for _ in range(120):
        await harness.receive(1)
    harness.clock.advance(LOCK_MS + 20)
    await harness.until_quiet()
    assert [each for each in lapses.locks if each] == [50, 50, 20]


async def test_delays_that_end_at_once_end_in_cycles_of_bounded_size() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(ended_locks_max=5)))
    await harness.send(*[b"x"] * 20)
    for _ in range(5):
        await harness.do(1, Abandon((await harness.receive(1, 4)).tokens, delay_ms=1_000))
    harness.clock.advance(1_020)
    locked = [20]
    while locked[-1]:
        await harness.task.step()
        harness.task.check()
        locked.append(harness.subqueues[0].locked)
    assert locked == [20, 12, 4, 0], "the lease that reaches the limit is the last one"


@pytest.mark.parametrize("together", [False, True])
async def test_locks_at_the_last_delivery_end_over_several_cycles_if_much_must_be_merged(
    together: bool,
) -> None:
    harness = Harness(QueueSettings(max_delivery_count=2))
    first = await harness.send(*[b"x"] * 40)
    settle = Defer if together else Abandon
    for number, token in enumerate((await harness.receive(1, 40)).tokens):
        changed = {f"{number} {key}": None for key in range(2_000)}
        await harness.do(1, settle([token], encode_changes(changed)))
    at_once = MERGED_AT_ONCE // (2_000 * PROPERTY_COST)
    if together:
        await harness.do(1, ReceiveDeferred(MAIN, list(range(first, first + 40))))
    else:  # each has a lock of its own
        for _ in range(40):
            await harness.receive(1)
    harness.clock.advance(LOCK_MS + 20)
    dead: list[int] = [0]
    while dead[-1] < 40:
        await harness.task.step()
        harness.task.check()
        dead.append(len(harness.subqueues[1].references))
        assert dead[-1] - dead[-2] <= at_once
    assert len(dead) > 3
