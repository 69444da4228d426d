"""A lock that passes from one holder to the next, and that can be taken at once if it is free."""

from __future__ import annotations

import asyncio

import pytest

from storage.one_at_a_time import OneAtATime
from tests.support.waiting import WAIT_S


async def test_whoever_waits_gets_it_in_turn_and_nobody_takes_it_at_once_before_them() -> None:
    lock, came = OneAtATime(), list[int]()

    async def take(number: int) -> None:
        async with lock:
            came.append(number)
            await asyncio.sleep(0)

    assert lock.take_if_free() and not lock.take_if_free()
    tasks = [asyncio.create_task(take(number)) for number in range(3)]
    await asyncio.sleep(0)
    lock.give_back()
    assert not lock.take_if_free(), "it was passed on"
    await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)
    assert came == [0, 1, 2] and not lock.is_taken and lock.take_if_free()


@pytest.mark.parametrize("passed", [False, True])
async def test_a_cancelled_waiter_does_not_keep_it(passed: bool) -> None:
    lock = OneAtATime()
    assert lock.take_if_free()

    async def take() -> None:
        async with lock:
            await asyncio.sleep(0)

    first, second = asyncio.create_task(take()), asyncio.create_task(take())
    await asyncio.sleep(0)
    if passed:  # it gets the lock and is cancelled at the same time
        lock.give_back()
        first.cancel()
    else:
        first.cancel()
        lock.give_back()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(first, WAIT_S)
    await asyncio.wait_for(second, WAIT_S)
    assert not lock.is_taken
