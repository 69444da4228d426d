"""What a partition's task waits for (`Signal`), what others wait for in a partition (`Once`), and what goes
on without the task (`Soon`).

The first two replace asyncio.Event, whose queue alone takes 760 bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Signal:
    """Set to announce work; awaited by the one task that does it. Lives in one event loop."""

    __slots__ = ("_waiter", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        """Whether work was announced that has not been taken up."""
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Announce work: end the current wait, or the next one."""
        self.is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """The work has been taken up."""
        self.is_set = False

    async def wait(self) -> None:
        """Return when there is work. Only one task may wait at a time."""
        if self.is_set:
            return
        assert self._waiter is None, "one task waits"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Soon:
    """Calls something in the next turn of the event loop, once, however often it is asked to until then. To
    wake a task for it takes three times as many calls."""

    __slots__ = ("_call", "_is_due")

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._is_due = False

    def __call__(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._now)

    def _now(self) -> None:
        self._is_due = False
        self._call()


class Once:
    """An event that happens once, for any number of waiters. Lives in one event loop."""

    __slots__ = ("_happened", "_waiters")

    def __init__(self) -> None:
        self._happened = False
        self._waiters: list[asyncio.Future[None]] = []

    def set(self) -> None:
        """It has happened. Safe to call again."""
        self._happened = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Return once it has happened."""
        if not self._happened:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
