"""OneAtATime: a lock that can also be taken without waiting, if it is free. asyncio's can be taken only by a
coroutine."""

from __future__ import annotations

import asyncio
from types import TracebackType


class OneAtATime:
    """Passes from one holder to the next in the order in which they came. Lives in one event loop."""

    __slots__ = ("_waiters", "is_taken")

    def __init__(self) -> None:
        self.is_taken = False
        self._waiters: list[asyncio.Future[None]] = []

    def take_if_free(self) -> bool:
        """Take it if nobody has it; returns whether it was free. Whoever takes it calls `give_back`."""
        if self.is_taken:
            return False
        self.is_taken = True
        return True

    def give_back(self) -> None:
        """Pass it to the next one who waits for it."""
        while self._waiters:
            waiter = self._waiters.pop(0)
            if not waiter.done():  # a caller that was cancelled does not want it any more
                waiter.set_result(None)
                return
        self.is_taken = False

    async def __aenter__(self) -> None:
        if self.take_if_free():
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it was passed to a caller that was cancelled at the same time
                self.give_back()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()
