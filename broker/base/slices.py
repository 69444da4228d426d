"""Long work on the event loop, done in slices, so that it hardly delays messages.

All users of one `Slices` take turns: one turn of the event loop runs at most one slice, however many clients
ask at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

from broker.base.clock import elapsed_s
from broker.base.pace import Pace

T = TypeVar("T")

SLICE_S = 0.001
"""How long a slice lasts; its last step may run over. A client that needs four or five turns of the loop for
an answer is hardly delayed."""
LONG_SLICE_S = 0.003
"""For work that clients wait for, such as opening a partition: it should be done soon even on a busy loop."""

STEPS_SLICE_S = 0.0015
"""For operations of any length, which their clients wait for, in steps of half a millisecond: an unrelated
client that needs four or five turns of the loop must have its answer within ten milliseconds."""


class Slices:
    """Lets long pieces of work take turns. Used in the event loop."""

    def __init__(self, slice_s: float = SLICE_S, seconds: Callable[[], float] = elapsed_s) -> None:
        """`seconds` is the clock. The event loop's own is too coarse, since uvloop counts milliseconds."""
        self._slice_s, self._seconds = slice_s, seconds
        self._turn = asyncio.Lock()
        self.pace = Pace(seconds)
        """For work that is mostly short, but that many begin together."""
        self.one_by_one = asyncio.Lock()
        """Held by work that holds something up until all of its steps are done. If several pieces of such
        work took turns, each would hold its own up for as long as all of them take."""

    def for_another_disk(self) -> Slices:
        """Slices that take turns with these, for work on another disk: a disk that hangs may hold up whoever
        has `one_by_one`, so each disk has its own."""
        other = Slices(self._slice_s, self._seconds)
        other._turn = self._turn
        return other

    async def of(self, steps: Iterable[T]) -> AsyncIterator[list[T]]:
        """Yield the results of the steps, a slice at a time. Each step must take at most 1 ms. The caller may
        wait between slices, and has the results of its last slice at once: only the next slice, of any
        caller, waits for another turn of the loop."""
        seconds, call_soon = self._seconds, asyncio.get_running_loop().call_soon
        remaining = iter(steps)
        while True:
            found: list[T] = []
            await self._turn.acquire()
            call_soon(self._turn.release)  # in the next turn, whatever becomes of the caller
            end = seconds() + self._slice_s
            more = False
            for each in remaining:
                found.append(each)
                if seconds() >= end:
                    more = True
                    break
            if found:
                yield found
            if not more:
                return
            await asyncio.sleep(0)

    async def run(self, steps: Iterable[object]) -> None:
        """Run all steps, a slice at a time."""
        async for _ in self.of(steps):
            pass
