"""Long work runs in slices: none of it is lost, and other tasks run in between."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

from broker.base.slices import Slices
from tests.support.ticker import Ticker


class Watch:
    """A clock that advances 1 ms with each step of the work."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def steps(self, count: int) -> Iterator[int]:
        for number in range(count):
            self.now_s += 0.001
            yield number


async def all_of(slices: Slices, steps: Iterator[int]) -> list[list[int]]:
    return [found async for found in slices.of(steps)]


async def test_work_comes_in_slices_complete_and_in_order() -> None:
    watch = Watch()
    slices = Slices(0.0045, lambda: watch.now_s)
    assert [found async for found in slices.of(watch.steps(12))] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11],
    ]
    assert [found async for found in slices.of(watch.steps(0))] == []


async def test_however_many_ask_one_turn_of_the_loop_has_one_slice() -> None:
    watch = Watch()
    slices = Slices(0.0035, lambda: watch.now_s)
    turns: list[float] = []

    async def tick() -> None:
        while True:
            turns.append(watch.now_s)
            await asyncio.sleep(0)

    async def work() -> int:
        return sum([len(found) async for found in slices.of(watch.steps(40))])

    ticking = asyncio.create_task(tick())
    assert await asyncio.gather(*(work() for _ in range(20))) == [40] * 20
    ticking.cancel()
    longest = max(later - earlier for earlier, later in itertools.pairwise(turns))
    assert longest < 0.0045 and turns[-1] > 0.7


async def test_one_who_stops_listening_leaves_the_turn_to_the_others() -> None:
    watch = Watch()
    slices = Slices(0.0015, lambda: watch.now_s)
    async for _ in slices.of(watch.steps(100)):
        break
    waiting = asyncio.create_task(all_of(slices, watch.steps(100)))
    await asyncio.sleep(0)
    waiting.cancel()
    assert [found async for found in slices.of(watch.steps(2))] == [[0, 1]]


async def test_the_results_of_a_slice_are_there_at_once_and_the_next_slice_is_in_another_turn() -> None:
    watch = Watch()
    slices = Slices(0.0035, lambda: watch.now_s)
    async with Ticker() as ticker:
        await asyncio.sleep(0)
        begun, seen = ticker.turns, []
        async for found in slices.of(watch.steps(10)):
            seen += [(ticker.turns - begun, len(found))]
    assert [count for _, count in seen] == [4, 4, 2]
    turns = [turn for turn, _ in seen]
    assert turns[0] == 0 and sorted(set(turns)) == turns
