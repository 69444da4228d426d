"""Peeking through all partitions page by page, for clients of `$management` (AMQP contract 7.3.3, 10.7).

A page begins after the last message that the client has seen, by sequence number and therefore by partition.
As long as every partition answers promptly, that number is all the broker needs, and the partitions are asked
and shown in order. A page that takes longer than a moment asks all that are left at once, and what they show
still comes in order. After LATE_S it consists of the answers that have come, however many partitions have not
answered: these are late. Until they answer again, the pages of all clients leave them to the end, and wait
for the first of them only if they would be empty otherwise. The broker then remembers how much of each
partition this client has been shown, and shows the rest on a later page. So paging reaches every message
exactly once.

A partition that is being opened is not late: a page that has room for its messages waits until it is open.

Few pages are built at a time in the whole broker. A page that has nothing to show but what late partitions
may hold waits for them in a place of its own kind, so clients that look at a partition that hangs do not keep
others from looking at any other. Nobody holds a place while partitions are opened.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, field

import structlog

from broker.identifiers import PARTITION_SHIFT, partition_of
from broker.message.annotations import peeked_messages
from broker.messaging.page_places import PagePlaces
from broker.messaging.peeking import ASK_ALL_S, LATE_S, PAGE_WITHIN_S, note_late, peek_partition
from broker.namespace.entity import Entity
from broker.namespace.health import CLOSED, OPENING
from broker.operations.browsing import Peek, Peeked

log = structlog.get_logger("peek")

WALKS_MAX = 16
"""How many walks with a late partition are remembered for one client; beyond that, the oldest is
forgotten."""
SHARE_BYTES_MIN = 16 * 1024
"""When several partitions are asked at once, each may show its share of the page's bytes, or this many if
that is more. So they read and hold hardly more together than one partition does alone."""


@dataclass(slots=True)
class Page:
    """The content of one response."""

    messages: list[bytes] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    """Partitions that could not be asked, or did not answer."""
    opening: list[int] = field(default_factory=list)
    """Partitions that are being opened, and whose messages belong on the page. It is to be built anew."""
    is_for_late: bool = False
    """There is nothing to show but what late partitions may hold, and nobody has waited for them."""


class _Walk:
    """One client's way through the partitions."""

    __slots__ = ("due", "is_straight", "places")

    def __init__(self, places: dict[int, int], due: list[int], *, is_straight: bool) -> None:
        self.places = places
        """The first sequence number that has not been shown, by partition."""
        self.due = due
        """Partitions that may have more to show, in order."""
        self.is_straight = is_straight
        """Whether no partition was left behind, so that the last number shown says where to go on."""

    @classmethod
    def begin(cls, start: int, partitions: int) -> _Walk:
        """A walk through all messages from a sequence number on."""
        numbers = range(min(partition_of(start), partitions), partitions)
        places = {number: max(start, number << PARTITION_SHIFT) for number in numbers}
        return cls(places, list(numbers), is_straight=True)

    def copy(self) -> _Walk:
        return _Walk(self.places.copy(), self.due.copy(), is_straight=self.is_straight)


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
        ends_s = asyncio.get_running_loop().time() + PAGE_WITHIN_S
        while True:
            async with places.prompt:
                page = await self._page(*about, waits_for_late=False)
            if not page.opening:
                break
            await _opened(entity, subqueue, page.opening, ends_s)
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
        """Build a page. The walk goes on only with a page that is shown to the client."""
        before = self._walks.get(start)
        walk = _Walk.begin(start, entity.description.partitions) if before is None else before.copy()
        gathering = _Gathering(walk, entity, subqueue, start, count, size_max)
        await gathering.run(waits_for_late=waits_for_late)
        page, last = gathering.page, gathering.last
        if not (page.opening or page.is_for_late):
            self._walks.pop(start, None)
            if any(number < partition_of(last) for number in walk.due):
                walk.is_straight = False
            if not walk.is_straight:
                self._walks[last + 1] = walk
                if len(self._walks) > WALKS_MAX:
                    self._walks.popitem(last=False)
        return page


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
        self._asked: dict[int, tuple[asyncio.Task[Peeked | None], Peek]] = {}
        """What each partition was asked, and the task that waits for the answer; until it is on the page."""

    async def run(self, *, waits_for_late: bool) -> None:
        """Ask the partitions that are due until the page is complete. `waits_for_late`: wait for late
        partitions if the page would be empty otherwise."""
        page, walk = self.page, self._walk
        walk.due = walk.due or list(walk.places)  # everything was shown: look for new messages
        late = self._entity.router.late
        prompt: list[int] = []
        left: list[int] = []
        for number in walk.due:
            (left if number in late else prompt).append(number)
        try:
            if await self._gather(prompt) or page.messages or page.opening:
                return
            left += [number for number in self._asked if number not in left]
            if waits_for_late:
                await self._first_of(left)
            else:
                page.is_for_late = bool(left)
        finally:
            asked = [task for task, _ in self._asked.values()]
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _gather(self, numbers: Collection[int]) -> bool:
        """Put on the page what these partitions show, in their order, for LATE_S at most; returns whether the
        page is complete. First ask one after the other, which reads no more than is shown, and soon all that
        are left at once."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        waiting, unasked = deque(numbers), deque(numbers)
        while waiting:
            passed_s, number = loop.time() - began_s, waiting[0]
            if passed_s >= ASK_ALL_S:
                parts = len(unasked)
                while unasked:
                    self._ask(unasked.popleft(), parts)
            if number not in self._asked:
                if unasked:
                    unasked.popleft()
                self._ask(number)
            task, _ = self._asked[number]
            limit_s = ASK_ALL_S if unasked else LATE_S
            await asyncio.wait([task], timeout=max(limit_s - passed_s, 0))
            if task.done():
                if self._is_complete_with(number):
                    return True
                if number not in self._walk.due:
                    waiting.popleft()
                # Otherwise it has shown its share of the page and has more: ask it again.
            elif not unasked and loop.time() - began_s >= LATE_S:
                return self._go_without_late(waiting)
        return False

    def _go_without_late(self, numbers: Collection[int]) -> bool:
        """Put on the page what those of these partitions show that have answered; returns whether the page is
        complete. The others are late, or are being opened."""
        states = self._entity.health()
        opening: list[int] = []
        for number in numbers:
            task, peek = self._asked[number]
            if not task.done():
                if states[number] in (CLOSED, OPENING):
                    opening.append(number)
                else:
                    note_late(self._entity, number, peek)
        for number in numbers:
            answered = self._asked[number][0].done()
            if answered and (self._is_complete_with(number) or number in self._walk.due):
                return True
        self.page.opening = opening
        return False

    async def _first_of(self, numbers: Collection[int]) -> None:
        """Put on the page what the first of these partitions shows that answers and has something to show."""
        for number in numbers:
            if number not in self._asked:
                self._ask(number, len(numbers))
        while self._asked and not self.page.messages:
            tasks = [task for task, _ in self._asked.values()]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for number in sorted(number for number, (task, _) in self._asked.items() if task.done()):
                if self._is_complete_with(number):
                    return

    def _ask(self, number: int, parts: int = 1) -> None:
        """Ask a partition for as much as the page has room for, or its part of that."""
        wanted, room = self._count - len(self.page.messages), self._size_max - self._size
        bytes_max = max(min(max(room // parts, SHARE_BYTES_MIN), room), 1)
        peek = Peek(self._subqueue, self._walk.places[number], wanted, bytes_max=bytes_max)
        task = asyncio.create_task(_within(PAGE_WITHIN_S, self._entity, number, peek), name="peek")
        self._asked[number] = task, peek

    def _is_complete_with(self, number: int) -> bool:
        """Put a partition's answer on the page, as far as there is room; returns whether the page is
        complete: full, or its next message is in the same partition."""
        page, walk = self.page, self._walk
        task, peek = self._asked.pop(number)
        room, peeked = self._size_max - self._size, task.result()
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
        is_of_share = peek.bytes_max is not None and peek.bytes_max < room
        return (peeked.more and not is_of_share) or len(page.messages) == self._count


async def _opened(entity: Entity, subqueue: str, numbers: Collection[int], until_s: float) -> None:
    """Wait until these partitions are open or have failed to open. Those that still open at `until_s`, in the
    loop's time, are late."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until_s):
            await asyncio.gather(*(entity.wake(number) for number in numbers))
    states = entity.health()
    for number in numbers:
        if states[number] in (CLOSED, OPENING):
            note_late(entity, number, Peek(subqueue, number << PARTITION_SHIFT, 1))


async def _within(seconds: float, entity: Entity, number: int, peek: Peek) -> Peeked | None:
    """Peek at a partition; returns None if it is down or takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await peek_partition(entity, number, peek)
    except TimeoutError:
        log.warning("peek.partition_late", entity=entity.name, partition=number)
        return None
