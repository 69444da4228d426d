"""What a partition's task sleeps on: asyncio.Event for one waiter, without its lock, its list of waiters and its cost per wait."""

from __future__ import annotations

import asyncio


class Wake:
    """Set by whoever has work; waited for by the one task that does it. Lives in one event loop."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """There is work: end the wait, or the next one."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """The work is taken up."""
        self._is_set = False

    async def wait(self) -> None:
        """Return when there is work. For one task at a time."""
        if self._is_set:
            return
        assert self._waiter is None, "one task waits"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
