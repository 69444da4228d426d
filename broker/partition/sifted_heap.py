"""A heap whose owner may lose numbers without telling it: they are sifted out, a few at a time. Pure.

To make a heap of a million numbers anew takes half a second. So once most of the numbers are stale, the heap
is set aside as it is, and its numbers go one by one into a new one if they are still live. Until that is
done, both are in use. The last number of a heap can be taken without touching the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator

SIFTED_AT_ONCE = 64
"""Numbers that one `tidy` looks at, unless more were added: some 20 microseconds."""
_SLACK = 64
"""Below this many stale numbers nothing is worth tidying."""


class SiftedHeap:
    """Numbers, of which the least comes first. One may be in it twice."""

    __slots__ = ("_aside", "_numbers")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._aside: list[int] | None = None
        """The heap that is being sifted."""

    def __bool__(self) -> bool:
        return bool(self._numbers or self._aside)

    def __len__(self) -> int:
        return len(self._numbers) + len(self._aside or ())

    def __iter__(self) -> Iterator[int]:
        """All numbers, in no order."""
        yield from self._numbers
        yield from self._aside or ()

    @property
    def first(self) -> int:
        """The least number. There must be one."""
        return self._least()[0]

    def push(self, number: int) -> None:
        """Add a number."""
        heapq.heappush(self._numbers, number)

    def pop(self) -> int:
        """Take out the least number. There must be one."""
        return heapq.heappop(self._least())

    def clear(self) -> None:
        """Forget all numbers."""
        self._numbers.clear()
        self._aside = None

    def shorten(self, count: int) -> None:
        """Forget so many numbers, whichever they are. For one that nobody uses any more."""
        del self._numbers[-count:]
        if self._aside:
            del self._aside[-count:]

    def tidy(self, live: Container[int], live_count: int, changed: int = 1) -> None:
        """Keep the heap in proportion to the numbers that are live: called by who has lost or added `changed`
        of them."""
        if not self._aside:
            if len(self._numbers) <= _SLACK + 2 * live_count:
                return
            self._aside, self._numbers = self._numbers, []
        aside = self._aside
        for _ in range(min(max(SIFTED_AT_ONCE, 4 * changed), len(aside))):
            number = aside.pop()
            if number in live:
                heapq.heappush(self._numbers, number)
        if not aside:
            self._aside = None

    def _least(self) -> list[int]:
        numbers, aside = self._numbers, self._aside
        if not aside:
            return numbers
        return aside if not numbers or aside[0] < numbers[0] else numbers
