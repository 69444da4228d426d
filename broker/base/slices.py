"""Long work on the event loop, done in slices, so that whoever has a message under way hardly notices.

All who share one `Slices` take turns: in one turn of the event loop no more than one slice runs, however many
clients ask at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

SLICE_S = 0.003
"""How long a slice lasts, and one step more."""


class Slices:
    """The turns of one kind of work. Used in the event loop."""

    def __init__(self, slice_s: float = SLICE_S, seconds: Callable[[], float] | None = None) -> None:
        """`seconds`: the clock; the event loop's own unless given."""
        self._slice_s, self._seconds = slice_s, seconds
        self._turn = asyncio.Lock()

    async def of(self, steps: Iterable[T]) -> AsyncIterator[list[T]]:
        """What the steps give, a slice at a time. A step must be short: 1 ms at most. The caller may wait
        between slices."""
        seconds = self._seconds or asyncio.get_running_loop().time
        remaining = iter(steps)
        more = True
        while more:
            found: list[T] = []
            async with self._turn:
                end = seconds() + self._slice_s
                more = False
                for each in remaining:
                    found.append(each)
                    if seconds() >= end:
                        more = True
                        break
                await asyncio.sleep(
                    0
                )  # with the turn in hand: the next slice, whoever's it is, comes in another turn of the loop
            if found:
                yield found

    async def run(self, steps: Iterable[object]) -> None:
        """Take all steps, a slice at a time."""
        async for _ in self.of(steps):
            pass
