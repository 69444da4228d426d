"""Bounded waiting for conditions that have no event of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

WAIT_S = 30
"""How long any wait may take, in seconds. Generous, because the machine may be busy."""


def until_seen(condition: Callable[[], object]) -> None:
    """Wait, in a thread of its own, until the condition holds. Raises TimeoutError after WAIT_S."""
    ends = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError
        time.sleep(0.001)


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds. Raises TimeoutError after WAIT_S."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.001)
