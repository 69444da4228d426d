"""Spreads pieces of work over the turns of the event loop when many of them begin together.

Each piece takes a few milliseconds at most, but hundreds may be woken in one turn, such as all partitions of
a topic with a thousand subscriptions. Once those that have begun in a turn have used some milliseconds, the
others wait for the next one. They begin in the order in which they came.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from broker.base.clock import elapsed_s

PACE_S = 0.004
"""How long pieces of work may begin in one turn of the loop, counted from the first one."""
WOKEN_AT_ONCE = 16
"""How many of those that wait are woken in one turn. Those for which it is too late then wait again."""


class Pace:
    """Used in the event loop."""

    __slots__ = ("_began_s", "_is_ending", "_numbers", "_seconds", "_waiting", "_woken")

    def __init__(self, seconds: Callable[[], float] = elapsed_s) -> None:
        """`seconds` is the clock. The event loop's own is too coarse, since uvloop counts milliseconds."""
        self._seconds = seconds
        self._began_s: float | None = None
        """When the first piece of work began in this turn; None if none has."""
        self._is_ending = False
        """`_turn_ended` is called in the next turn."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """A heap of those that wait, by their numbers: who is woken and comes too late keeps its place."""
        self._numbers = 0
        self._woken = 0
        """How many have been woken, and have not run since."""

    async def begin(self) -> None:
        """Wait until a piece of work may begin. It is to begin at once then."""
        if self.may_begin():
            return
        self._numbers += 1
        number = self._numbers
        while True:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (number, turn))
            try:
                await turn
            except asyncio.CancelledError:
                self._woken -= not turn.cancelled()
                self._end_turn()  # others may have waited for this one to begin
                raise
            self._woken -= 1
            if self._may_begin():
                return

    def may_begin(self) -> bool:
        """Whether a piece of work may begin without a wait. If so, it is to begin at once."""
        return not (self._waiting or self._woken) and self._may_begin()

    def _may_begin(self) -> bool:
        if self._began_s is None:
            self._began_s = self._seconds()
            self._end_turn()
            return True
        return self._seconds() - self._began_s < PACE_S

    def _end_turn(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            asyncio.get_running_loop().call_soon(self._turn_ended)

    def _turn_ended(self) -> None:
        self._began_s, self._is_ending = None, False
        woken = 0
        while self._waiting and woken < WOKEN_AT_ONCE:
            _, turn = heapq.heappop(self._waiting)
            if not turn.done():  # it was not cancelled
                turn.set_result(None)
                woken += 1
        self._woken += woken
