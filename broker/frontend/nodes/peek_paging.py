"""Peeking through all partitions page by page, for clients of `$management` (AMQP contract 7.3.3, 10.7).

A page begins after the last message that the client has seen, by sequence number and therefore by partition.
As long as every partition answers promptly, that number is all the broker needs, and the partitions are shown
in order. A late partition does not hold up the others: all others are asked, and the page consists of the
answers that arrive first. Until it answers again, the pages of all clients leave it to the end, and wait for
it only if they would be empty otherwise. The broker then remembers how much of each partition this client has
been shown, and shows the rest on a later page. So paging reaches every message exactly once.

Few pages are built at a time in the whole broker. A page that has nothing to show but what late partitions
may hold waits for them in a place of its own kind, so clients that look at a partition that hangs do not keep
others from looking at any other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field

import structlog

from broker.identifiers import PARTITION_SHIFT, partition_of
from broker.message.annotations import peeked_messages
from broker.messaging.page_places import PagePlaces
from broker.messaging.peeking import LATE_S, PAGE_WITHIN_S, note_late, peek_partition
from broker.namespace.entity import Entity
from broker.operations.browsing import Peek, Peeked

log = structlog.get_logger("peek")

WALKS_MAX = 16
"""How many walks with a late partition are remembered for one client; beyond that, the oldest is
forgotten."""


@dataclass(slots=True)
class Page:
    """The content of one response."""

    messages: list[bytes] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    """Partitions that could not be asked, or did not answer."""
    is_for_late: bool = False
    """There is nothing to show but what late partitions may hold, and nobody has waited for them."""


class _Walk:
    """One client's way through the partitions."""

    __slots__ = ("due", "is_straight", "places")

    def __init__(self, start: int, partitions: int) -> None:
        numbers = range(min(partition_of(start), partitions), partitions)
        self.places = {number: max(start, number << PARTITION_SHIFT) for number in numbers}
        """The first sequence number that has not been shown, by partition."""
        self.due = list(numbers)
        """Partitions that may have more to show, in order."""
        self.is_straight = True
        """Whether no partition was left behind, so that the last number shown says where to go on."""


class PeekWalks:
    """All walks of one client through one subqueue."""

    def __init__(self) -> None:
        self._walks: OrderedDict[int, _Walk] = OrderedDict()
        """Walks by the sequence number that the client will ask for next, except the straight ones."""

    async def page(
        self,
        entity: Entity,
        subqueue: str,
        start: int,
        count: int,
        size_max: int,
        places: PagePlaces,
    ) -> Page:
        """Return the next `count` messages from `start` on, with at most `size_max` bytes in total but at
        least one message. A place is held while the page is built: one for late partitions while
        these are all that is left. Raises Refused."""
        about = (entity, subqueue, start, count, size_max)
        async with places.prompt:
            page = await self._page(*about, waits_for_late=False)
        if page.is_for_late:
            async with places.late:
                page = await self._page(*about, waits_for_late=True)
        return page

    async def _page(
        self,
        entity: Entity,
        subqueue: str,
        start: int,
        count: int,
        size_max: int,
        *,
        waits_for_late: bool,
    ) -> Page:
        walk = self._walks.pop(start, None) or _Walk(start, entity.description.partitions)
        gathering = _Gathering(walk, entity, subqueue, start, count, size_max)
        last = start - 1
        try:
            await gathering.run(waits_for_late=waits_for_late)
            last = gathering.last
        finally:
            if any(number < partition_of(last) for number in walk.due):
                walk.is_straight = False
            if not walk.is_straight:
                self._walks[last + 1] = walk
                if len(self._walks) > WALKS_MAX:
                    self._walks.popitem(last=False)
        return gathering.page


class _Gathering:
    """Gathers one page from the partitions that are due."""

    __slots__ = ("_asked", "_count", "_entity", "_size", "_size_max", "_subqueue", "_walk", "last", "page")

    def __init__(
        self, walk: _Walk, entity: Entity, subqueue: str, start: int, count: int, size_max: int
    ) -> None:
        self.page = Page()
        self.last = start - 1
        """The last sequence number on the page; the one before `start` while it is empty."""
        self._walk, self._entity, self._subqueue = walk, entity, subqueue
        self._count, self._size_max = count, size_max
        self._size = 0
        """Bytes of the messages on the page, and of the first one that did not fit."""
        self._asked: dict[asyncio.Task[Peeked | None], tuple[int, Peek]] = {}
        """The partition, and what it was asked, by task."""

    async def run(self, *, waits_for_late: bool) -> None:
        """Ask the partitions that are due, in order, until the page is complete. `waits_for_late`: wait for
        late partitions if the page would be empty otherwise."""
        page, walk, asked = self.page, self._walk, self._asked
        walk.due = walk.due or list(walk.places)  # everything was shown: look for new messages
        late = self._entity.router.late
        unasked = deque(number for number in walk.due if number not in late)
        left = [number for number in walk.due if number in late]
        """Partitions to ask only if the others have nothing to show."""
        is_late = False
        try:
            while unasked or asked or (left and not page.messages):
                waits = any(number not in late for number, _ in asked.values())
                if left and not (unasked or waits or page.messages):
                    if not waits_for_late:
                        page.is_for_late = True
                        return
                    unasked, left, is_late = deque(left), [], True
                while unasked and (is_late or not asked):
                    self._ask(unasked.popleft())
                    waits = True
                is_limited = unasked or page.messages or not waits_for_late
                timeout = (LATE_S if waits else 0) if is_limited else None
                answered, _ = await asyncio.wait(asked, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if not answered:
                    for number, peek in asked.values():
                        note_late(self._entity, number, peek)
                    if not unasked:
                        page.is_for_late = not page.messages
                        return  # late partitions come on a later page
                    is_late = True
                for task in sorted(answered, key=lambda each: asked[each][0]):
                    if self._is_complete_with(task):
                        return
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    def _ask(self, number: int) -> None:
        """Ask a partition for as much as the page has room for."""
        wanted, bytes_max = self._count - len(self.page.messages), max(self._size_max - self._size, 1)
        peek = Peek(self._subqueue, self._walk.places[number], wanted, bytes_max=bytes_max)
        task = asyncio.create_task(_within(PAGE_WITHIN_S, self._entity, number, peek), name="peek")
        self._asked[task] = number, peek

    def _is_complete_with(self, task: asyncio.Task[Peeked | None]) -> bool:
        """Put a partition's answer on the page, as far as there is room; returns whether the page is
        complete: full, or its next message is in the same partition."""
        page, walk = self.page, self._walk
        number, peek = self._asked.pop(task)
        peeked = task.result()
        if peeked is None:
            page.down.append(number)
            walk.due.remove(number)
            return False
        messages = peeked_messages(peeked, partitioned=len(self._entity.router.handles) > 1)
        for sequence_number, message in zip(peeked.sequence_numbers, messages, strict=True):
            self._size += len(message)
            if page.messages and (self._size > self._size_max or len(page.messages) == self._count):
                return True
            page.messages.append(message)
            self.last = sequence_number
            walk.places[number] = sequence_number + 1
        if not peeked.more and len(messages) < peek.count:
            walk.due.remove(number)
        return peeked.more or len(page.messages) == self._count


async def _within(seconds: float, entity: Entity, number: int, peek: Peek) -> Peeked | None:
    """Peek at a partition; returns None if it is down or takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await peek_partition(entity, number, peek)
    except TimeoutError:
        log.warning("peek.partition_late", entity=entity.name, partition=number)
        return None
