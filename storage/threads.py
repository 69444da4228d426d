"""Blocking work in threads, awaited to its end; and background tasks whose death is reported."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")

OwnerFailed = Callable[[str, BaseException], None]
"""Called with the name of a background task that has died, and its error. Its owner cannot keep its promises any more."""


async def run_to_end(executor: Executor | None, function: Callable[[], T]) -> T:
    """Run a function in a thread and wait for its end, also when cancelled meanwhile: a thread cannot be called back.

    Executor None is the event loop's own. The cancellation is raised afterwards, in place of the function's result.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, function)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # taken note of: the caller hears of the cancellation instead
        raise


def start_background(work: Coroutine[Any, Any, None], name: str, failed: OwnerFailed) -> asyncio.Task[None]:
    """Start a task that nobody awaits. If it raises, `failed` is called; cancelling it is no failure."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            failed(name, error)

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(ended)
    return task


def report_to_loop(name: str, error: BaseException) -> None:
    """The default for `failed`: the event loop's exception handler reports the death."""
    asyncio.get_running_loop().call_exception_handler({"message": f"the background task {name} has died", "exception": error})
