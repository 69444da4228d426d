"""Runs a partition's upkeep beside its cycles: messages do not wait while a checkpoint is being written.

Upkeep is a task of its own. It has the state to itself, between two cycles, except while it waits for the
disk inside `waiting`: then the cycles go on. When the disk has answered, upkeep asks for its next turn, and
the partition's task gives it one after the next cycle. So only one of the two tasks works on the state at any
time, and upkeep never sees changes whose commit is under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine

from broker.partition.disk_timeout import Patience


class BesideCycles:
    """One piece of upkeep at most. Owned by the partition's task, which makes all calls but `waiting`."""

    __slots__ = ("_ask", "_back", "_task", "_turn", "patience")

    def __init__(self, ask: Callable[[], None], patience: Patience) -> None:
        """`ask` is called when upkeep wants a turn; the owner then calls `go_on`. `patience` is for upkeep's
        waits for the disk, since the owner may wait for it at the same time."""
        self._ask, self.patience = ask, patience
        self._task: asyncio.Task[bool] | None = None
        self._turn: asyncio.Future[None] | None = None
        """What upkeep waits for when it wants a turn."""
        self._back: asyncio.Future[None] | None = None
        """What the owner waits for during a turn."""

    @property
    def is_under_way(self) -> bool:
        """Whether upkeep has begun and not ended."""
        return self._task is not None

    @property
    def wants_turn(self) -> bool:
        """Whether it waits for `go_on`."""
        return self._turn is not None

    async def begin(self, work: Coroutine[None, None, bool]) -> bool:
        """Begin upkeep, which has the first turn. Returns what it returns when it has ended, or False when it
        waits for the disk. Raises what it raises."""
        assert self._task is None, "one piece at a time"
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(lambda _: self._give_back())
        return await self._take_turns(self._task)

    async def go_on(self) -> bool:
        """Give upkeep the turn that it wants, if it does. Returns and raises as `begin`."""
        if self._task is None or self._turn is None:
            return False
        self._turn.set_result(None)
        self._turn = None
        return await self._take_turns(self._task)

    async def _take_turns(self, task: asyncio.Task[bool]) -> bool:
        self._back = asyncio.get_running_loop().create_future()
        await self._back
        if not task.done():
            return False
        self._task = None
        return task.result()

    def _give_back(self) -> None:
        if self._back is not None and not self._back.done():
            self._back.set_result(None)

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Used by upkeep while it waits for the disk: lets the cycles go on, and ends in a turn. If the block
        does not wait, upkeep keeps its turn.

        Does nothing if the owner itself does upkeep, which it does before it closes the log.
        """
        if self._task is None:
            yield
            return
        turn, handle = self._back, asyncio.get_running_loop().call_soon(self._give_back)
        try:
            yield
        finally:
            if turn is not None and not turn.done():
                handle.cancel()
            elif self._task is not None:
                self._turn = asyncio.get_running_loop().create_future()
                self._ask()
                await self._turn

    async def end(self) -> None:
        """End upkeep: the state is about to be discarded, or the log to be closed. Returns when nothing of it
        is left. Its errors do not count any more."""
        task = self._cancel()
        if task is not None:
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # marks it as retrieved

    def close(self) -> None:
        """Nothing more will begin, and what is under way is not waited for."""
        self._cancel()
        self.patience.close()

    def _cancel(self) -> asyncio.Task[bool] | None:
        task, self._task, self._turn = self._task, None, None
        if task is not None:
            task.cancel()
        return task
