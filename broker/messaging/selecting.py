"""Stands between a receiver with a selector and its partitions: the receiver's demand is met with messages
that the selector matches, and with no others.

Partitions know nothing of selectors. For each of them, a *scan* reads the messages from the oldest to the
latest, page by page, evaluates the selector, and locks what matches by its number. So a message is looked at
once for each receiver with a selector, however often that receiver asks; other receivers go on taking
messages meanwhile, and whoever locks a message first gets it. At the end of a partition, the scan waits until
something arrives there (`Watch`), or comes back behind it (`CameBack`).

A scan locks no more than the client wants at that moment, because what is locked by number cannot be recalled
for other receivers. It pauses with its place kept while the client wants nothing.

To its receiver, a scan looks like the partition itself: `Demand` is answered with `Locked` and `Unmet`,
`Withdraw` with `Withdrawn`, once all messages there were have been looked at. Everything else passes through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from broker.base.clock import elapsed_s
from broker.base.errors import Refused
from broker.identifiers import NO_CLIENT, PARTITION_SHIFT, ClientId
from broker.messaging.guarded_sink import guarded
from broker.messaging.page_places import PagePlaces
from broker.messaging.peeking import LATE_S, PAGE_WITHIN_S, note_late, peek_partition
from broker.namespace.entity import Entity
from broker.namespace.router import PartitionHandle
from broker.operations.browsing import Arrived, Peek, Peeked, Watch
from broker.operations.general import Detach, Failed, Unavailable
from broker.operations.interface import Answer, Operation, Sink
from broker.operations.message_states import MessageState
from broker.operations.receiving import Demand, Locked, LockExactly, Unmet, Withdraw, Withdrawn
from broker.operations.selecting import CameBack, WatchReturned
from broker.operations.settling import Release
from broker.rules.selectors import Selector

PAGE_MESSAGES = 50
"""To look at this many takes about a millisecond of the event loop."""
LOOKING_S = 0.001
"""How long the messages of a page are looked at, but for the last of them. Those behind it are read again."""
PAGE_BYTES_MAX = 256 * 1024
"""A page may exceed this by its last message."""
LOOK_AGAIN_S = 0.25
"""How long a scan waits for a partition that was late."""
RETURNED_MAX = 4_096
"""The most messages that came back and wait to be looked at, in one scan. If there are more, it begins anew
at the lowest of them."""


@dataclass(slots=True, frozen=True)
class Selection:
    """What a receiver with a selector needs besides."""

    selector: Selector
    pages: PagePlaces
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Runs a scan as a task of the receiver's connection."""
    fail: Callable[[], None]
    """An unexpected exception is being handled: end this client, and no other."""


class Scans:
    """The scans of one receiver, one for each partition of its entity. Owned by the event loop."""

    __slots__ = ("_wanted", "all")

    def __init__(
        self, entity: Entity, subqueue: str, selection: Selection, wanted: Callable[[], int]
    ) -> None:
        """`wanted` says how many messages the client can be given now."""
        self._wanted = wanted
        self.all = [
            _Scan(entity, subqueue, number, selection, self.room)
            for number in range(len(entity.router.handles))
        ]

    def room(self) -> int:
        """How many more messages may be locked now."""
        return self._wanted() - sum(scan.under_way for scan in self.all)

    def go_on(self) -> None:
        """The client may want more messages than before."""
        for scan in self.all:
            scan.go_on()

    def end(self) -> None:
        """Let go of the scans, which refer to this object: the receiver has ended."""
        self.all = []


class _Scan:
    """See the module. It has the interface of the partition that it stands for."""

    __slots__ = (
        "_client",
        "_demand",
        "_entity",
        "_failed",
        "_generation",
        "_handle",
        "_has_ended",
        "_is_at_end",
        "_is_due",
        "_is_late",
        "_is_reading",
        "_is_withdrawn",
        "_lock_cookies",
        "_locking",
        "_looking",
        "_next",
        "_number",
        "_returned",
        "_room",
        "_selection",
        "_sink",
        "_subqueue",
        "_tells_unmet",
        "_timer",
        "_watches",
        "_watches_returned",
        "under_way",
    )

    def __init__(
        self, entity: Entity, subqueue: str, number: int, selection: Selection, room: Callable[[], int]
    ) -> None:
        self._entity, self._subqueue, self._number = entity, subqueue, number
        self._handle: PartitionHandle = entity.router.handles[number]
        self._selection, self._room = selection, room
        self._client = NO_CLIENT
        self._sink: Sink | None = None
        """The receiver's."""
        self._has_ended = self._is_reading = self._is_late = self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._lock_cookies = self._generation = 0
        self._begin()

    def _begin(self) -> None:
        """Forget everything: nothing is asked for, and nothing has been looked at."""
        self._demand = self.under_way = 0
        """Messages that the receiver wants from this partition, and those being locked for it."""
        self._tells_unmet = self._is_withdrawn = self._is_at_end = False
        self._watches = self._watches_returned = False
        self._next = self._number << PARTITION_SHIFT
        """The first sequence number that has not been looked at."""
        self._returned: set[int] = set()
        """Lower ones to look at again."""
        self._looking: set[int] = set()
        """Those of them that the page being read is for; none if it is for what follows."""
        self._generation += 1
        """A page that was asked for before this changed says nothing about the present place."""
        self._locking: dict[str, Sequence[int]] = {}
        """What is being locked, by the cookie of the request."""

    # --- for the receiver -----------------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        return self._handle.available

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        """Take an operation of the receiver, as the partition would."""
        self._client, self._sink = client, sink
        match operation:
            case Demand():
                if self._is_withdrawn:
                    self._withdrawn()
                self._demand += operation.count
                self._tells_unmet |= operation.tell_unmet
                if not self._watches_returned:
                    self._watches_returned = True
                    self._handle.post(WatchReturned(self._subqueue), client, self._answered)
                self.go_on()
            case Withdraw():
                self._is_withdrawn = True
                self.go_on()
            case Detach():
                self._has_ended = True
                if self._timer is not None:
                    self._timer.cancel()
                self._handle.post(operation, client, self._answered)
            case _:
                self._handle.post(operation, client, self._answered)

    def go_on(self) -> None:
        """Soon read on if more is wanted, and say so if there is no more. Never at once: the receiver may be
        in the middle of asking several partitions."""
        if not (self._is_due or self._has_ended):
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_due = False
        if self._has_ended or self._is_reading or self._timer is not None:
            return
        if self._wants_more():
            self._is_reading = True
            self._selection.spawn(self._read())
        else:
            self._rest()

    # --- scanning -------------------------------------------------------------------------------------------

    def _wants_more(self) -> bool:
        return not self._is_at_end and min(self._demand - self.under_way, self._room()) > 0

    def _rest(self) -> None:
        """Nothing is read for now: tell the receiver what it waits to be told."""
        if self.under_way:
            return
        if self._is_withdrawn:
            if self._is_at_end or not self._demand or self._room() <= 0:
                self._withdrawn()
        elif self._is_at_end and self._demand:
            if self._tells_unmet:
                self._tells_unmet = False
                self._tell(Unmet(self._number, self._subqueue))
            if not self._watches and self._is_at_end and not self._has_ended:
                self._watches = True
                self._handle.post(Watch(self._subqueue, self._next), self._client, self._answered)

    def _withdrawn(self) -> None:
        self._demand, self._tells_unmet, self._is_withdrawn = 0, False, False
        asyncio.get_running_loop().call_soon(self._tell, Withdrawn(self._number, self._subqueue))

    async def _read(self) -> None:
        """Read page after page while more is wanted."""
        try:
            while not self._has_ended and self._wants_more():
                is_late = self._is_late or self._number in self._entity.router.late
                async with self._selection.pages.of(late=is_late):
                    generation = self._generation
                    page = await self._page(PAGE_WITHIN_S if is_late else LATE_S)
                if page is None:
                    return
                if not self._has_ended and generation == self._generation:
                    self._look_at(page)
        except Refused:  # the entity has ended, which the link is told as well
            self._is_at_end = True
        except Exception:
            self._selection.fail()
        finally:
            self._is_reading = False
        self.go_on()

    async def _page(self, within_s: float) -> Peeked | None:
        """The next page; None if the partition is down or late."""
        peek = self._next_peek()
        try:
            async with asyncio.timeout(within_s):
                page = await peek_partition(self._entity, self._number, peek)
            self._is_late = False
        except TimeoutError:
            self._is_late = True
            note_late(self._entity, self._number, peek)
            self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_again)
            return None
        if page is None and not self._has_ended:
            self._lost(for_good=False)
        return page

    def _look_again(self) -> None:
        self._timer = None
        self.go_on()

    def _next_peek(self) -> Peek:
        """What to look at next: what came back, or what follows. What comes back while the page is read waits
        for another one."""
        begin, count = self._next, PAGE_MESSAGES
        self._looking |= self._returned  # there are some if the page before was late
        self._returned.clear()
        if self._looking:
            begin = min(self._looking)
            count = sum(begin <= number < begin + PAGE_MESSAGES for number in self._looking)
        return Peek(self._subqueue, begin, count, bytes_max=PAGE_BYTES_MAX)

    def _look_at(self, page: Peeked) -> None:
        """Lock what the selector matches, as far as there is room and time. The place is then behind the
        page, at the first match without room, or at the first message that was not looked at in time."""
        numbers, room = page.sequence_numbers, min(self._demand - self.under_way, self._room())
        matching: list[int] = []
        behind = numbers[-1] + 1 if numbers else None
        columns = zip(numbers, page.messages, page.changed, page.delivery_counts, page.states, strict=True)
        ends_s = elapsed_s() + LOOKING_S
        for number, message, changed, delivery_count, state in columns:
            if self._looking and number >= self._next:
                break  # the turn of those that follow comes later
            if number > numbers[0] and elapsed_s() >= ends_s:
                behind = number
                break
            if state == MessageState.ACTIVE and self._selection.selector.matches(
                message, changed, delivery_count
            ):
                if len(matching) >= room:
                    behind = number
                    break
                matching.append(number)
        if self._looking:
            self._returned.update(number for number in self._looking if behind and number >= behind)
            self._looking.clear()
        elif behind is None:
            self._is_at_end = not self._returned
        else:
            self._next = behind
        if matching:
            self._lock(matching)

    def _lock(self, numbers: Sequence[int]) -> None:
        self._lock_cookies += 1
        cookie = f"selected {self._lock_cookies}"
        self._locking[cookie] = numbers
        self.under_way += len(numbers)
        self._handle.post(
            LockExactly(self._subqueue, numbers, cookie, only_active=True), self._client, self._answered
        )

    # --- answers of the partition ---------------------------------------------------------------------------

    def _fail(self) -> None:
        """An unexpected exception is being handled: end this client, and no other."""
        self._selection.fail()

    @guarded
    def _answered(self, answer: Answer) -> None:
        match answer:
            case Locked() if isinstance(answer.cookie, str):
                self._locked(answer)
            case Failed() if isinstance(answer.cookie, str):
                self.under_way -= len(self._locking.pop(answer.cookie, ()))
                self.go_on()
            case CameBack():
                self._came_back(answer.sequence_numbers)
            case Arrived():
                self._watches = self._is_at_end = False
                self.go_on()
            case Unavailable():
                self._lost(for_good=answer.for_good)
            case _:
                self._tell(answer)

    def _locked(self, locked: Locked) -> None:
        assert isinstance(locked.cookie, str)
        asked = self._locking.pop(locked.cookie, ())
        self.under_way -= len(asked)
        if self._has_ended:
            self._handle.post(Release(locked.tokens), self._client, self._answered)
            return
        if locked.tokens:
            # What follows the last one did not fit the answer. What is missing before it is locked by others.
            self._came_back([number for number in asked if number > locked.sequence_numbers[-1]])
            self._demand = max(self._demand - len(locked.tokens), 0)
            locked.cookie, locked.deferred = None, False
            self._tell(locked)
        self.go_on()

    def _came_back(self, numbers: Sequence[int]) -> None:
        """Look at these messages again."""
        behind = [number for number in numbers if number < self._next]
        if not behind:
            return
        self._returned.update(behind)
        if len(self._returned) + len(self._looking) > RETURNED_MAX:
            self._next = min(self._returned | self._looking)
            self._returned.clear()
            self._looking.clear()
            self._generation += 1
        self._is_at_end = False
        self.go_on()

    def _lost(self, *, for_good: bool) -> None:
        """The partition is down. Its locks and watches are void, and the receiver will ask again."""
        self._begin()
        self._tell(Unavailable(self._number, for_good=for_good))

    def _tell(self, answer: Answer) -> None:
        assert self._sink is not None, "the receiver has asked"
        self._sink(answer)
