"""Blocking work in threads, awaited to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


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
