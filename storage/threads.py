"""Runs blocking work in threads and waits for its end; reports background tasks that have died."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor, Future, wait
from typing import Any, TypeVar

T = TypeVar("T")
K = TypeVar("K")

OwnerFailed = Callable[[str, BaseException], None]
"""Called with the name of a background task that has died, and its error. Its owner no longer works."""


class UnderWay:
    """Counts work on the disk that has begun and cannot be cancelled. Owned by the event loop.

    A waiter stays until such work has ended, even if it is cancelled. After `let_go`, a cancelled waiter
    leaves at once. The work continues, and the next user of the files awaits `ended` first.
    """

    __slots__ = ("_count", "_hanging", "_none", "is_let_go")

    def __init__(self, hanging: set[UnderWay] | None = None) -> None:
        """While it is let go, it is in the set `hanging`."""
        self._count, self._hanging = 0, hanging
        self._none: asyncio.Event | None = None
        """Set when nothing is under way. Created when somebody waits for that, because an event takes 800
        bytes per log."""
        self.is_let_go = False
        """Cancelled waiters leave at once. False again when everything under way has ended."""

    def __bool__(self) -> bool:
        return self._count > 0

    def begin(self) -> None:
        """One piece of work has begun."""
        self._count += 1

    def end(self) -> None:
        """One piece of work has ended."""
        self._count -= 1
        if not self._count:
            if self.is_let_go and self._hanging is not None:
                self._hanging.discard(self)
            self.is_let_go = False
            if self._none is not None:
                self._none.set()
                self._none = None

    def let_go(self) -> bool:
        """Let cancelled waiters leave; False if nothing is under way."""
        self.is_let_go = self._count > 0
        if self.is_let_go and self._hanging is not None:
            self._hanging.add(self)
        return self.is_let_go

    async def ended(self) -> None:
        """Return once nothing is under way."""
        if self._count:
            if self._none is None:
                self._none = asyncio.Event()
            await self._none.wait()


async def run_to_end(
    executor: Executor | None, function: Callable[[], T], under_way: UnderWay | None = None
) -> T:
    """Run a function in a thread and wait for its end, even when cancelled: a thread cannot be cancelled.

    None stands for the event loop's own executor. If the caller was cancelled, that is raised after the
    function's end, in place of its result. With `under_way`, a cancelled caller stops waiting after `let_go`.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, function)
    if under_way is not None:
        under_way.begin()
        future.add_done_callback(lambda ended: _end(ended, under_way))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done() and not (under_way is not None and under_way.is_let_go):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if future.done() and not future.cancelled():
            future.exception()  # marks it as retrieved: the caller gets the cancellation instead
        raise


async def within(limit_s: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. If it takes too long or the caller is cancelled, it continues and its result is
    dropped. Raises TimeoutError."""
    task = asyncio.create_task(work)
    task.add_done_callback(mark_retrieved)
    if not (await asyncio.wait([task], timeout=limit_s))[0]:
        raise TimeoutError(f"no answer within {limit_s:g} s")
    return task.result()


def ask_each(
    things: Iterable[K], ask: Callable[[K], T], timeout_s: float, name: str
) -> dict[K, T | BaseException]:
    """What `ask` says of each thing, or the error that it has raised; TimeoutError for those that take too
    long. Blocks.

    All are asked at once, each in a thread that ends with the process even if the disk never answers.
    """
    asked: dict[K, Future[T]] = {thing: Future() for thing in things}

    def answer(thing: K, future: Future[T]) -> None:
        try:
            future.set_result(ask(thing))
        except BaseException as error:  # the caller decides what it means
            future.set_exception(error)

    for thing, future in asked.items():
        threading.Thread(target=answer, args=(thing, future), name=f"{name} {thing}", daemon=True).start()
    wait(asked.values(), timeout=timeout_s)
    return {
        thing: (future.exception() or future.result())
        if future.done()
        else TimeoutError(f"no answer within {timeout_s:g} s")
        for thing, future in asked.items()
    }


def mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Done callback for a future that nobody may be awaiting: mark its exception as retrieved."""
    if not future.cancelled():
        future.exception()


def _end(future: asyncio.Future[T], under_way: UnderWay) -> None:
    under_way.end()
    mark_retrieved(future)


def start_background(work: Coroutine[Any, Any, None], name: str, failed: OwnerFailed) -> asyncio.Task[None]:
    """Start a task that nobody awaits. If it raises, `failed` is called; cancelling it is not a failure."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            failed(name, error)

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(ended)
    return task


def report_to_loop(name: str, error: BaseException) -> None:
    """The default for `failed`: the event loop's exception handler reports the death."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"the background task {name} has died", "exception": error}
    )
