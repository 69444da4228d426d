"""A heap that tolerates stale numbers: they are sifted out, a few at a time. Pure.

Rebuilding a heap of a million numbers takes half a second. So when most of the numbers are stale, a new heap
is begun, and the live numbers move to it one by one. Both heaps are in use until that is done.
Numbers are taken from the end of the old heap, so that the rest of it stays a heap. A heap may also hold
something else that has an order, such as tuples.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator
from typing import Any, Generic, Protocol, TypeVar

SIFTED_AT_ONCE = 64
"""Numbers that one `tidy` looks at, unless more were added: about 20 microseconds."""
_SLACK = 64
"""With fewer stale numbers than this, `tidy` does nothing."""


class Ordered(Protocol):
    """What can be compared with its like."""

    def __lt__(self, other: Any, /) -> bool: ...


T = TypeVar("T", bound=Ordered)


class SiftedHeap(Generic[T]):
    """A heap of numbers, lowest first. A number may occur twice."""

    __slots__ = ("_numbers", "_old")

    def __init__(self) -> None:
        self._numbers: list[T] = []
        self._old: list[T] | None = None
        """The heap being sifted."""

    def __bool__(self) -> bool:
        return bool(self._numbers or self._old)

    def __len__(self) -> int:
        return len(self._numbers) + len(self._old or ())

    def __iter__(self) -> Iterator[T]:
        """Yield all numbers, in no particular order."""
        yield from self._numbers
        yield from self._old or ()

    @property
    def first(self) -> T:
        """The lowest number. The heap must not be empty."""
        return self._least()[0]

    def least(self) -> T | None:
        """The lowest number; None if there is none. Cheaper than `first` behind a check."""
        if self._old:
            return self._least()[0]
        return self._numbers[0] if self._numbers else None

    def push(self, number: T) -> None:
        """Add a number."""
        heapq.heappush(self._numbers, number)

    def pop(self) -> T:
        """Remove and return the lowest number. The heap must not be empty."""
        return heapq.heappop(self._least())

    def containers(self) -> list[object]:
        """The heap and what it holds its numbers in, for an owner that has a great many heaps and hides them
        from the garbage collector."""
        return [self, self._numbers]

    def clear(self) -> None:
        """Remove all numbers."""
        self._numbers.clear()
        self._old = None

    def shorten(self, count: int) -> None:
        """Remove `count` arbitrary numbers, to free a heap that is no longer used."""
        del self._numbers[-count:]
        if self._old:
            del self._old[-count:]

    def tidy(self, live: Container[T], live_count: int, changed: int = 1) -> None:
        """Sift out some stale numbers, so that the heap stays in proportion to the live ones.

        The caller has just lost or added `changed` numbers.
        """
        if not self._old:
            if len(self._numbers) <= _SLACK + 2 * live_count:
                return
            self._old, self._numbers = self._numbers, []
        old = self._old
        for _ in range(min(max(SIFTED_AT_ONCE, 4 * changed), len(old))):
            number = old.pop()
            if number in live:
                heapq.heappush(self._numbers, number)
        if not old:
            self._old = None

    def _least(self) -> list[T]:
        numbers, old = self._numbers, self._old
        if not old:
            return numbers
        return old if not numbers or old[0] < numbers[0] else numbers
