"""The signals that a partition's task waits for."""

from __future__ import annotations

import asyncio

from broker.partition.signals import Once, Signal, Soon


async def test_work_that_came_before_the_wait_ends_it_at_once() -> None:
    signal = Signal()
    signal.set()
    await asyncio.wait_for(signal.wait(), 1)


async def test_work_that_comes_during_the_wait_ends_it_once_however_often_it_is_told() -> None:
    signal = Signal()
    waiter = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    signal.set()
    signal.set()
    await asyncio.wait_for(waiter, 1)
    signal.clear()
    again = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    assert not again.done()
    signal.set()
    await asyncio.wait_for(again, 1)


async def test_a_wait_that_is_cancelled_leaves_nothing_behind() -> None:
    signal = Signal()
    waiter = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait([waiter])
    signal.set()
    await asyncio.wait_for(signal.wait(), 1)


async def test_what_has_happened_once_ends_every_wait_for_it_before_and_after() -> None:
    once = Once()
    waiters = [asyncio.create_task(once.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    await asyncio.wait(waiters[:1])
    once.set()
    once.set()
    await asyncio.wait_for(asyncio.gather(*waiters[1:], once.wait()), 1)


async def test_what_is_to_be_done_soon_is_done_once_in_the_next_turn_and_again_when_asked_again() -> None:
    done = list[int]()
    soon = Soon(lambda: done.append(len(done)))
    soon()
    soon()
    assert not done
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == [0]
    soon()
    await asyncio.sleep(0)
    assert done == [0, 1]
