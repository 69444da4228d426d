"""broker/base/sifted_heap.py: the least number comes first, and no call handles more than a few
numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator

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
