"""Places for clients that read pages of messages: the broker reads few pages at a time, so that they take
little memory.

A partition that is late, because its disk is slow or hangs, has its pages read in places of their own. Its
readers keep nobody from reading any other partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.identifiers import PARTITION_SHIFT
from broker.messaging.peeking import LATE_S, note_late
from broker.namespace.entity import Entity
from broker.operations.browsing import Peek

PAGES_AT_ONCE = 8
"""Places of each kind. The pages in them hold at most 4 MiB together, plus the last message of each, and
those of range readers 16 MiB."""

T = TypeVar("T")


class PagePlaces:
    """The places of the whole broker. Each connection reads one page at a time besides
    (`Connection.browse_page`)."""

    __slots__ = ("late", "prompt")

    def __init__(self) -> None:
        self.prompt = asyncio.Semaphore(PAGES_AT_ONCE)
        """Held for LATE_S at most, while a partition is asked for a page."""
        self.late = asyncio.Semaphore(PAGES_AT_ONCE)
        """The same for partitions that are known to be late, until they have answered or are down."""

    def of(self, *, late: bool) -> asyncio.Semaphore:
        """The places for partitions that are late, or for all others."""
        return self.late if late else self.prompt

    async def read(self, entity: Entity, subqueue: str, number: int, page: Callable[[], Awaitable[T]]) -> T:
        """Read a page of one partition. If that is late, the page is read anew in a place for late ones, so
        `page` must change nothing before it has the answer. Raises what `page` raises."""
        if number not in entity.router.late:
            try:
                async with self.prompt, asyncio.timeout(LATE_S):
                    return await page()
            except TimeoutError:
                note_late(entity, number, Peek(subqueue, number << PARTITION_SHIFT, 1))
        async with self.late:
            return await page()
