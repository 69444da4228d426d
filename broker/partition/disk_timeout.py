"""Limits how long a partition waits for its disk.

A failing disk reports an error, but a hanging disk reports nothing and keeps its callers waiting forever. So
a partition's task waits for its log only in a `with` block of its `Patience`. When a block lasts too long,
`Patience` calls the owner, which decides whether to end the block (`give_up`), so that it raises `Hung`, or
to keep waiting.

The timer checks twice, a moment apart, so that a process that was suspended first receives the answers that
arrived meanwhile. One timer is enough for all blocks, because most of them end long before it fires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from storage.errors import StorageError
from storage.log import Checkpoint, Commit, Frame, Log, Parts, Position, RoomLock

SECOND_LOOK_S = 0.05


class Hung(StorageError):
    """The disk has not answered in time. It may or may not have done, or still do, what it was asked."""


class Patience:
    """Watches one block at a time. Owned by a partition's task."""

    __slots__ = (
        "_cancel",
        "_cancelling",
        "_given_up",
        "_is_at_rest",
        "_is_second_look",
        "_limit_s",
        "_loop",
        "_owner",
        "_task",
        "_timer",
        "_until",
    )

    def __init__(self, limit_ms: int, owner: Callable[[], None]) -> None:
        """`owner` is called in the event loop, once for each block that exceeds the limit."""
        self._limit_s = limit_ms / 1_000
        self._owner = owner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        """The task inside the block, or None."""
        self._cancel: Callable[[], object] | None = None
        """Ends the current wait; None if nobody waits."""
        self._until = 0.0
        self._cancelling = 0
        self._given_up = False
        self._is_second_look = False
        self._is_at_rest = False

    def __enter__(self) -> None:
        task = self._task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._cancelling = task.cancelling()
        self.begin(task.cancel)

    def begin(self, give_up: Callable[[], object]) -> None:
        """Watch somebody who waits without a block, until `end`: `give_up` is called in place of raising
        Hung."""
        loop = self._loop = asyncio.get_running_loop()
        self._cancel = give_up
        self._given_up = self._is_second_look = False
        self._until = loop.time() + self._limit_s
        if self._timer is None:
            self._timer = loop.call_at(self._until, self._look)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task, self._cancel = self._task, None, None
        if not self._given_up:
            return
        assert task is not None
        if (
            task.uncancel() <= self._cancelling
            and kind is not None
            and issubclass(kind, asyncio.CancelledError)
        ):
            raise self._error() from None

    def end(self) -> None:
        """The wait that `begin` has announced is over."""
        self._cancel = None

    @property
    def hung(self) -> Hung | None:
        """What the latest block raises, or has raised, if it was given up."""
        return self._error() if self._given_up else None

    def _error(self) -> Hung:
        return Hung(f"the disk has not answered within {self._limit_s:g} s")

    def again(self) -> None:
        """Restart the time limit, because the block has made progress."""
        assert self._loop is not None
        self._until = self._loop.time() + self._limit_s
        self._is_second_look = False

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """In this block nothing waits for the disk, so no time passes. The time limit restarts at its end."""
        self._is_at_rest = True
        try:
            yield
        finally:
            self._is_at_rest = False
            self.again()

    def give_up(self) -> None:
        """Make the current block, if any, raise Hung."""
        if self._cancel is not None and not self._given_up:
            self._given_up = True
            self._cancel()

    def close(self) -> None:
        """Stop the timer. Call this when no more blocks will be entered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._cancel is None:
            return
        assert self._loop is not None
        if self._is_at_rest:
            self._timer = self._loop.call_later(self._limit_s, self._look)
        elif self._loop.time() < self._until:
            self._timer = self._loop.call_at(self._until, self._look)
        elif not self._is_second_look:
            self._is_second_look = True
            self._timer = self._loop.call_later(SECOND_LOOK_S, self._look)
        else:
            self._owner()


class PatientLog:
    """What upkeep uses of a log. Awaited methods raise Hung when the disk takes too long. See
    `storage.log.Log`.

    Upkeep needs it because it also computes between two calls, for any length of time.
    """

    def __init__(self, log: Log, patience: Patience) -> None:
        self._log, self._patience = log, patience

    @property
    def end(self) -> Position:
        return self._log.end

    @property
    def start(self) -> Position:
        return self._log.start

    @property
    def trim_points(self) -> Sequence[Position]:
        return self._log.trim_points

    @property
    def checkpoints(self) -> Sequence[Position]:
        return self._log.checkpoints

    @property
    def has_damaged_checkpoint(self) -> bool:
        return self._log.has_damaged_checkpoint

    @property
    def checkpoint_base(self) -> Position | None:
        return self._log.checkpoint_base

    @property
    def checkpoint_bytes(self) -> int:
        return self._log.checkpoint_bytes

    def begin(self) -> Commit:
        return self._log.begin()

    @property
    def is_full(self) -> bool:
        return self._log.is_full

    @property
    def is_confined(self) -> bool:
        return self._log.is_confined

    @property
    def is_scarce(self) -> bool:
        return self._log.is_scarce

    def keep_room(self, lasting: int, passing: int) -> None:
        self._log.keep_room(lasting, passing)

    @property
    def making_room(self) -> RoomLock:
        return self._log.making_room

    async def room(self) -> int:
        with self._patience:
            return await self._log.room()

    async def append(self, commit: Commit, urgent: bool = False, *, frees: bool = False) -> None:
        with self._patience:
            await self._log.append(commit, urgent, frees=frees)

    async def fetch(self, positions: Sequence[Position]) -> list[Frame]:
        with self._patience:
            return await self._log.fetch(positions)

    async def fetch_parts(self, parts: Parts) -> list[bytes]:
        with self._patience:
            return await self._log.fetch_parts(parts)

    async def save_checkpoint(self, checkpoint: Checkpoint, *, is_complete: bool = False) -> None:
        with self._patience:
            await self._log.save_checkpoint(checkpoint, is_complete=is_complete)

    async def trim(self, position: Position) -> None:
        with self._patience:
            await self._log.trim(position)

    async def roll(self) -> None:
        with self._patience:
            await self._log.roll()
