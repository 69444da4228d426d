"""broker/base/sifted_heap.py: the least number comes first, and no call handles more than a few
numbers."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from typing import Any

import pytest

from broker.base import sifted_heap
from broker.base.sifted_heap import SIFTED_AT_ONCE, SiftedHeap


class Counted(set[int]):
    """Live numbers; counts the look-ups."""

    looks = 0

    def __contains__(self, number: object) -> bool:
        self.looks += 1
        return super().__contains__(number)


def drained(heap: SiftedHeap[int], live: set[int]) -> Iterator[int]:
    while heap:
        number = heap.pop()
        if set.__contains__(live, number):
            yield number


def test_numbers_come_in_order_and_stale_ones_leave_a_few_at_a_time() -> None:
    chance = random.Random(7)
    numbers = list(range(20_000))
    chance.shuffle(numbers)
    heap, live = SiftedHeap[int](), Counted(numbers)
    for number in numbers:
        heap.push(number)
    for number in numbers[:18_000]:
        live.discard(number)
        live.looks = 0
        heap.tidy(live, len(live))
        assert live.looks <= SIFTED_AT_ONCE, "to look at all of them stops everybody for half a second"
        if number % 5 == 0:  # new numbers arrive meanwhile
            live.add(number + 100_000)
            heap.push(number + 100_000)
    assert len(heap) < 3 * len(live)
    assert heap.least() == heap.first <= min(live) and set(heap) >= live
    assert list(drained(heap, live)) == sorted(live)


def test_the_heap_keeps_pace_with_an_owner_who_adds_many_at_once() -> None:
    heap, live = SiftedHeap[int](), set[int]()
    for start in range(0, 400_000, 4_000):
        for number in range(start, start + 4_000):
            heap.push(number)
        live = {start}
        heap.tidy(live, len(live), 4_000)
        assert len(heap) < 20_000
    heap.clear()
    assert not heap and not list(heap)


def test_a_number_that_was_gone_and_is_back_comes_out() -> None:
    heap, live = SiftedHeap[int](), set(range(1_000))
    for number in range(1_000):
        heap.push(number)
    live = {998}
    heap.tidy(live, 1)
    live.add(5)
    heap.push(5)
    while len(heap) > 3:
        before = len(heap)
        heap.tidy(live, 2)
        if len(heap) == before:
            break
    assert sorted(set(drained(heap, live))) == [5, 998]


def test_an_empty_heap_has_no_least_number() -> None:
    heap: SiftedHeap[int] = SiftedHeap()
    assert heap.least() is None and not heap


@pytest.mark.parametrize("count", [1, 4, 11, 12, 13, 50, 99, 100, 101])
@pytest.mark.parametrize("end", [0, 1, 3, 12, 99, 100, 200])
def test_of_the_lowest_numbers_only_those_below_the_end_leave(count: int, end: int) -> None:
    heap = SiftedHeap[int]()
    for number in random.Random(count).sample(range(100), 100):
        heap.push(number)
    lower = list(range(min(count, end, 100)))
    assert heap.pop_below(end, count) == lower
    assert [heap.pop() for _ in range(len(heap))] == list(range(len(lower), 100))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_lowest_number_comes_first_and_no_list_gets_long(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(sifted_heap, "HEAP_MAX", 16)
    chance = random.Random(seed)
    hidden: list[Any] = []
    heap, model = SiftedHeap[int](hidden.extend), list[int]()
    live, most = set[int](), 0
    for _ in range(3_000):
        if chance.random() < 0.55:
            number = chance.randrange(1_000)
            live.add(number)
            heap.push(number)
            heapq.heappush(model, number)
        elif chance.random() < 0.3:
            numbers = [chance.randrange(1_000) for _ in range(chance.randrange(8))]
            live.update(numbers)
            heap.push_each(numbers)
            model = sorted(model + numbers)
        elif chance.random() < 0.2:
            end, count = chance.randrange(1_000), chance.randrange(6)
            lower = [number for number in sorted(model) if number < end][:count]
            assert heap.pop_below(end, count) == lower
            model = sorted(model)[len(lower) :]
        elif heap and chance.random() < 0.9:
            assert heap.least() == heap.first == model[0]
            assert heap.pop() == heapq.heappop(model)
        elif chance.random() < 0.5:
            stale_max = chance.randrange(6)
            found = heap.least_found({number: number for number in live}.get, stale_max)
            while stale_max and model and model[0] not in live:
                heapq.heappop(model)
                stale_max -= 1
            assert found == (model[0] if model else None)
        else:
            live = {number for number in live if chance.random() < 0.3}
            stale_before = sorted(number for number in heap if number not in live)
            heap.tidy(live, len(live))
            left = sorted(heap)
            assert [number for number in left if number in live] == sorted(
                number for number in model if number in live
            ), "only stale ones are sifted out"
            assert len(stale_before) >= sum(number not in live for number in left)
            model = left
        # Symptom: a list of three million numbers held the loop for 12 ms when it grew.
        lists = [heap._numbers, *(heap._old or ())]
        most = max(most, len(lists))
        assert all(len(each) <= 16 for each in lists) and len(heap) == len(model)
        assert all(
            any(each is shown for shown in hidden) for each in [heap, *lists, *filter(None, [heap._old])]
        )
    assert most > 3
    while heap:
        heap.shorten(5)
    assert heap._old is None
