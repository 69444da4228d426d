"""Counts event loop turns while something else runs."""

from __future__ import annotations

import asyncio
import contextlib


class Ticker:
    """Takes part in every turn of the loop during the block."""

    def __init__(self) -> None:
        self.turns = 0

    async def __aenter__(self) -> Ticker:
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _tick(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)
