"""A heap that tolerates stale numbers: they are sifted out, a few at a time. Pure.

Rebuilding a heap of a million numbers takes half a second. So when most of the numbers are stale, a new heap
is begun, and the live numbers move to it one by one. All heaps are in use until that is done.
Numbers are taken from the end of an old heap, so that the rest of it stays a heap. A heap may also hold
something else that has an order, such as tuples.

A list that grows may have to move: with three million numbers, that would block the event loop for more than
10 ms. So a new heap is also begun when one has HEAP_MAX numbers.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import repeat
from typing import Any, Generic, Protocol, TypeVar

HEAP_MAX = 1 << 16
"""Numbers in one heap. The lowest number is sought in all heaps: in forty-six with three million numbers."""
SIFTED_AT_ONCE = 64
"""Numbers that one `tidy` looks at, unless more were added: about 20 microseconds."""
_AT_ONCE_SHARE = 8
"""To put a whole heap in order takes about as long as adding this share of its numbers one by one."""
_SLACK = 64
"""With fewer stale numbers than this, `tidy` does nothing."""


class Ordered(Protocol):
    """What can be compared with its like."""

    def __lt__(self, other: Any, /) -> bool: ...


T = TypeVar("T", bound=Ordered)


def _ignore(containers: list[Any]) -> None:
    pass


class SiftedHeap(Generic[T]):
    """A heap of numbers, lowest first. A number may occur twice."""

    __slots__ = ("_hide", "_numbers", "_old", "_to_sift")

    def __init__(self, hide: Callable[[list[Any]], None] = _ignore) -> None:
        """`hide` is called with objects that the garbage collector need not look at: this one, and those that
        hold the numbers."""
        self._hide = hide
        self._numbers: list[T] = []
        """The heap that numbers are added to."""
        self._old: list[list[T]] | None = None
        """The other heaps. None is empty."""
        self._to_sift = 0
        """How many of the first ones in `_old` are being sifted."""
        hide([self, self._numbers])

    def __bool__(self) -> bool:
        return bool(self._numbers or self._old)

    def __len__(self) -> int:
        return len(self._numbers) + sum(map(len, self._old or ()))

    def __iter__(self) -> Iterator[T]:
        """Yield all numbers, in no particular order."""
        yield from self._numbers
        for old in self._old or ():
            yield from old

    @property
    def first(self) -> T:
        """The lowest number. The heap must not be empty."""
        return self._least()[0]

    def least(self) -> T | None:
        """The lowest number; None if there is none. Cheaper than `first` behind a check."""
        if self._old:
            return self._least()[0]
        return self._numbers[0] if self._numbers else None

    def least_found(self, find: Callable[[T], object | None], stale_max: int) -> T | None:
        """The lowest number that is not stale; None if there is none. `find` returns None for stale numbers.
        Removes those before it, but `stale_max` of them at most: then the next number may be stale, too."""
        for _ in range(stale_max):
            heap = self._least() if self._old else self._numbers
            if not heap:
                return None
            if find(heap[0]) is not None:
                return heap[0]
            heapq.heappop(heap)
            if not heap and self._old:
                self._drop_empty()
        return self.least()

    def push(self, number: T) -> None:
        """Add a number."""
        numbers = self._numbers
        heapq.heappush(numbers, number)
        if len(numbers) >= HEAP_MAX:
            self._begin()

    def push_each(self, numbers: Sequence[T]) -> None:
        """Add several numbers."""
        heap = self._numbers
        if len(heap) + len(numbers) >= HEAP_MAX:
            for number in numbers:
                self.push(number)
        elif _AT_ONCE_SHARE * len(numbers) < len(heap):
            for number in numbers:
                heapq.heappush(heap, number)
        elif numbers:
            heap += numbers
            heapq.heapify(heap)

    def pop_below(self, end: T, count: int) -> list[T]:
        """Remove the lowest numbers, up to `count`, as far as they are lower than `end`. Returns them,
        ascending."""
        heap = self._numbers
        if self._old:
            popped: list[T] = []
            while len(popped) < count and (least := self.least()) is not None and least < end:
                popped.append(self.pop())
            return popped
        if not heap or not heap[0] < end:
            return []
        if len(heap) > _AT_ONCE_SHARE * count:
            popped = list(map(heapq.heappop, repeat(heap, count)))
            place = bisect_left(popped, end)
            self.push_each(popped[place:])
            del popped[place:]
            return popped
        heap.sort()  # a heap, too
        place = bisect_left(heap, end, 0, min(count, len(heap)))
        popped = heap[:place]
        del heap[:place]
        return popped

    def pop(self) -> T:
        """Remove and return the lowest number. The heap must not be empty."""
        heap = self._least()
        number = heapq.heappop(heap)
        if not heap and self._old:
            self._drop_empty()
        return number

    def clear(self) -> None:
        """Remove all numbers."""
        self._numbers.clear()
        self._old, self._to_sift = None, 0

    def shorten(self, count: int) -> None:
        """Remove `count` arbitrary numbers, to free a heap that is no longer used."""
        del self._numbers[-count:]
        if self._old:
            del self._old[-1][-count:]
            self._drop_empty()

    def tidy(self, live: Container[T], live_count: int, changed: int = 1) -> None:
        """Sift out some stale numbers, so that the heap stays in proportion to the live ones.

        The caller has just lost or added `changed` numbers.
        """
        if not self._to_sift:
            if len(self._numbers) <= _SLACK + 2 * live_count and (
                self._old is None or len(self) <= _SLACK + 2 * live_count
            ):
                return
            self._begin()
            assert self._old is not None
            self._to_sift = len(self._old)
        for _ in range(max(SIFTED_AT_ONCE, 4 * changed)):
            if not self._to_sift:
                break
            assert self._old is not None
            old = self._old[self._to_sift - 1]
            number = old.pop()
            if not old:
                self._drop_empty()
            if number in live:
                self.push(number)

    def _begin(self) -> None:
        """Begin a new heap."""
        if self._old is None:
            self._old = []
            self._hide([self._old])
        if self._numbers:
            self._old.append(self._numbers)
            self._numbers = []
            self._hide([self._numbers])

    def _drop_empty(self) -> None:
        """Forget old heaps that are empty."""
        assert self._old is not None
        self._to_sift = sum(map(bool, self._old[: self._to_sift]))
        self._old = list(filter(None, self._old)) or None
        if self._old is not None:
            self._hide([self._old])

    def _least(self) -> list[T]:
        """The heap with the lowest number."""
        least = self._numbers
        for old in self._old or ():
            if not least or old[0] < least[0]:
                least = old
        return least
