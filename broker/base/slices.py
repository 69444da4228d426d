"""Long work on the event loop, done in slices, so that it hardly delays messages.

All users of one `Slices` take turns: one turn of the event loop runs at most one slice, however many clients
ask at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

SLICE_S = 0.003
"""How long a slice lasts; its last step may run over."""


class Slices:
    """Lets long pieces of work take turns. Used in the event loop."""

    def __init__(self, slice_s: float = SLICE_S, seconds: Callable[[], float] | None = None) -> None:
        """`seconds` is the clock; the event loop's own unless given."""
        self._slice_s, self._seconds = slice_s, seconds
        self._turn = asyncio.Lock()

    async def of(self, steps: Iterable[T]) -> AsyncIterator[list[T]]:
        """Yield the results of the steps, a slice at a time. Each step must take at most 1 ms. The caller may
        wait between slices."""
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
                )  # still holding the lock, so that the next slice runs in another turn of the loop
            if found:
                yield found

    async def run(self, steps: Iterable[object]) -> None:
        """Run all steps, a slice at a time."""
        async for _ in self.of(steps):
            pass
