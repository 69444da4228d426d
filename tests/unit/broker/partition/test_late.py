"""Operations that a slow disk delays: a lock counts if it was still held when they arrived."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, QueueSettings
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Renewed, RenewLocks, Settled
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import Harness, one

LOCK_MS = 5_000


def harness(limits: TaskLimits | None = None) -> Harness:
    return Harness(QueueSettings(lock_duration_ms=LOCK_MS, max_delivery_count=10), limits=limits)


@pytest.mark.parametrize("settle", [Complete, Abandon, Defer, DeadLetter])
async def test_a_settlement_that_arrived_in_time_counts_however_long_the_disk_took(
    settle: type[Complete | Abandon | Defer | DeadLetter],
) -> None:
    partition = harness()
    await partition.send(b"1")
    locked = await partition.receive(1)
    partition.clock.advance(LOCK_MS - 1)
    partition.post(1, settle(locked.tokens, cookie="late"))
    partition.clock.advance(60_000)  # the previous commit takes this long
    await partition.until_quiet()
    assert partition.take(1) == [Settled("late", {})]
    deliveries = (await partition.peek()).delivery_counts
    assert deliveries == ([] if settle in (Complete, DeadLetter) else [1])


async def test_a_settlement_that_arrived_too_late_is_lost_also_beside_one_that_did_not() -> None:
    partition = harness()
    await partition.send(b"1", b"2")
    first, second = await partition.receive(1), await partition.receive(2)
    partition.clock.advance(LOCK_MS - 1)
    partition.post(1, Complete(first.tokens, "in time"))
    partition.clock.advance(1)
    partition.post(2, Complete(second.tokens, "too late"))
    partition.clock.advance(1_000)
    await partition.until_quiet()
    assert partition.take(1) == [Settled("in time", {})]
    assert partition.take(2) == [Settled("too late", {0: Reason.LOCK_LOST})]
    peeked = await partition.peek()
    assert (peeked.messages, peeked.delivery_counts) == ([b"2"], [1])


async def test_a_renewal_that_arrived_in_time_counts_from_now_on() -> None:
    partition = harness()
    await partition.send(b"1")
    locked = await partition.receive(1)
    partition.clock.advance(LOCK_MS - 1)
    partition.post(1, RenewLocks(locked.tokens))
    partition.clock.advance(60_000)
    await partition.until_quiet()
    assert partition.take(1) == [Renewed(partition.clock.monotonic_ms() + LOCK_MS, None, {})]
    await partition.advance(LOCK_MS - 1)
    assert await partition.do(1, Complete(locked.tokens, "done")) == [Settled("done", {})]


async def test_what_is_left_for_a_later_cycle_keeps_its_locks_too() -> None:
    partition = harness(TaskLimits(cycle_operations_max=2))
    await partition.send(b"1", b"2", b"3")
    tokens = [(await partition.receive(1)).tokens for _ in range(3)]
    partition.clock.advance(LOCK_MS - 1)
    for number in range(6):
        partition.post(2, Send([b"more"], None, number))
    for each in tokens:
        partition.post(1, Complete(each, "late"))
    partition.clock.advance(60_000)
    await partition.until_quiet()
    assert partition.take(1) == [Settled("late", {})] * 3


async def test_a_lock_that_ended_meanwhile_ends_in_the_same_cycle_and_its_message_goes_to_who_waits() -> None:
    partition = harness()
    await partition.send(b"1", b"2")
    first, second = await partition.receive(1), await partition.receive(2)
    partition.clock.advance(LOCK_MS - 1)
    partition.post(1, Complete(first.tokens, "in time"))
    partition.post(3, Demand(MAIN, 5))
    partition.clock.advance(1_000)
    await partition.task.step()
    again = one(partition.take(3), Locked)
    assert again.sequence_numbers == second.sequence_numbers and again.delivery_counts == [1]
