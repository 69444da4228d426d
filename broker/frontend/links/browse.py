"""Browsing: a receiver whose source says `distribution-mode: copy` (§3.5.7; AMQP contract 5.2a).

A browse goes through the partitions one by one and shows each message once, without locking, counting or
removing any. It shows the same messages as `$management`'s peek, including locked and deferred ones;
`x-opt-message-state` tells them apart. Then it follows: until the link is detached, it also shows messages
that arrive in a partition after the last one shown. A drain is answered when no partition has more to show.
A partition that is down is passed over, and read once it is back. One that is late is read after all others.

Messages are read from one partition at a time, in pages of bounded size, and only when there is credit and
room for them. Messages that find neither when their page arrives are dropped and read again later, so a link
keeps only its place in each partition. Each connection reads one page at a time, and the broker only a few
(`PagePlaces`). A link that has shown everything does not poll: the partitions tell it when
something has arrived (`Watch`).

With a selector (`broker/rules/selectors.py`), a browse passes over the messages that the client does not
want.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from broker.access.addresses import Address
from broker.base.clock import elapsed_s
from broker.base.errors import Refused
from broker.frontend.connection_view import ConnectionView
from broker.frontend.links.copies import CopyLink
from broker.frontend.links.outgoing import accept_receiver
from broker.frontend.links.termini import selector_of
from broker.identifiers import PARTITION_SHIFT
from broker.message.annotations import peeked_messages
from broker.messaging.guarded_sink import guarded
from broker.messaging.peeking import LATE_S, PAGE_WITHIN_S, note_late, peek_partition
from broker.messaging.selecting import LOOKING_S
from broker.namespace.entity import Entity, next_client
from broker.namespace.health import ENDED
from broker.operations.browsing import Arrived, Peek, Peeked, Watch
from broker.operations.general import Detach, Unavailable
from broker.operations.interface import Answer
from broker.rules.selectors import Selector
from protocol.links import Link

log = structlog.get_logger("browse")

PAGE_MESSAGES_MAX = 250
PAGE_BYTES_MAX = 256 * 1024
"""A page may exceed this by its last message."""
SELECTED_FROM = 100
"""Messages in a page of which a selector chooses. To look at this many takes some 2 ms of the event loop."""
LOOK_AGAIN_S = 0.25
"""How long to wait before looking again at a partition that was down."""
LOOK_AGAIN_S_MAX = 5.0
"""The longest wait before the next look for partitions that are back. It doubles with each look that finds
none."""
LOOK_AGAIN_SPARED_S = 1.0
"""The same for an empty partition that stays closed because memory is scarce."""
LOOK_AGAIN_LATE_S = 30.0
"""The same for a partition that was late: waiting for it again takes up one of the few places for late
partitions."""


class BrowseLink(CopyLink):
    """A link on which a client looks at the messages of a subqueue. Owned by its connection."""

    @classmethod
    def attach(cls, connection: ConnectionView, link: Link, queue: Entity, address: Address) -> None:
        """Accept the link. Raises Refused."""
        selector = selector_of(connection.engine, link)
        accept_receiver(connection, link, queue, address)
        link.context = cls(connection, link, queue, address, selector)

    def __init__(
        self,
        connection: ConnectionView,
        link: Link,
        queue: Entity,
        address: Address,
        selector: Selector | None,
    ) -> None:
        super().__init__(connection, link, queue, address)
        self._selector = selector
        self._client = next_client()
        self._handles = queue.router.handles
        self._next = [number << PARTITION_SHIFT for number in range(len(self._handles))]
        """The first sequence number that has not been shown, by partition."""
        self._unread = set(range(len(self._handles)))
        """Partitions that may have something to show. Each of the others has a `Watch` standing, or is
        down."""
        self._down: dict[int, float] = {}
        """Partitions that were down or late, with the time on the loop's clock to look at them again."""
        self._place = 0
        """The partition being read."""
        self._slow: set[int] = set()
        """Partitions whose last page was late. They are read after those that are not slow, and then waited
        for, because on a slow disk all pages may be late."""
        self._is_reading = False
        self._look_again_timer: asyncio.TimerHandle | None = None
        self._look_again_s = LOOK_AGAIN_S
        """How long that timer runs."""

    # --- reading --------------------------------------------------------------------------------------------

    def credit_granted(self) -> None:
        """Read on: the client's credit has changed, the wire takes bytes again, or there may be more to
        show."""
        if self.link.gone or self._is_reading:
            return
        if self._unread and self._wanted() > 0:
            self._is_reading = True
            self._connection.spawn(self._read(), name=f"browse {self.queue.name}", size=0)
        else:
            self._finish_drain()

    async def _read(self) -> None:
        """Show page after page until nothing more is wanted, or all has been shown."""
        connection = self._connection
        try:
            while not self.link.gone and self._unread and self._wanted() > 0:
                number = self._next_partition()
                is_late = number in self.queue.router.late or number in self._slow
                async with connection.browse_page, connection.services.pages.of(late=is_late):
                    await self._read_page(number, is_late)
        except Refused as why:  # the queue has ended, or does not know the subqueue
            connection.close_link(self.link, why)
        except Exception:
            connection.fail()
        finally:
            self._is_reading = False
        if not self.link.gone:
            self._finish_drain()

    def _next_partition(self) -> int:
        """The partition being read if it has more to show, and otherwise the next one; those that are late
        come last."""
        late, slow = self.queue.router.late, self._slow
        if self._place not in self._unread - late - slow:
            self._place = min(
                self._unread, key=lambda each: (each in late, each in slow, each < self._place, each)
            )
        return self._place

    async def _read_page(self, number: int, is_late: bool) -> None:
        """Show a page of a partition. One that is late is waited for."""
        wanted = 0 if self.link.gone else self._wanted()
        if wanted <= 0 or number not in self._unread:
            return
        if self.queue.spares(number, self.subqueue):
            self._pass_over(number, LOOK_AGAIN_SPARED_S)
            return
        # With a selector, a page may hold many messages of which none is shown.
        count = min(wanted, PAGE_MESSAGES_MAX) if self._selector is None else SELECTED_FROM
        size_max = min(PAGE_BYTES_MAX, self._connection.services.output.allowance)
        peek = Peek(self.subqueue, self._next[number], count, bytes_max=size_max)
        page: Peeked | None = None
        look_again_s = LOOK_AGAIN_S
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(PAGE_WITHIN_S if is_late else LATE_S):
                page = await peek_partition(self.queue, number, peek)
            if loop.time() - began < LATE_S:
                self._slow.discard(number)
        except TimeoutError:
            note_late(self.queue, number, peek)
            self._slow.add(number)
            if not is_late:
                return
            log.warning("browse.partition_late", entity=self.queue.name, partition=number)
            look_again_s = LOOK_AGAIN_LATE_S
        if self.link.gone:
            return
        if page is None:
            self._pass_over(number, look_again_s)
        elif self._show(number, page) and len(page.messages) < count and not page.more:
            self._unread.discard(number)
            self._handles[number].post(Watch(self.subqueue, self._next[number]), self._client, self._answered)

    def _show(self, number: int, page: Peeked) -> bool:
        """Send as much of the page as credit and room still allow; returns whether that was all of it."""
        if not page.messages:
            return True
        messages = peeked_messages(page, partitioned=len(self._handles) > 1)
        places, looked_at = self._selected(page)
        shown = places[: max(self._wanted(), 0)]
        # The place in the partition is at the first message that finds no room, or behind those looked at.
        numbers = page.sequence_numbers
        has_room = len(shown) == len(places)
        self._next[number] = numbers[looked_at - 1] + 1 if has_room else numbers[places[len(shown)]]
        is_all = has_room and looked_at == len(numbers)
        if shown:
            self._deliver([messages[place] for place in shown], len(shown))
        return is_all

    def _selected(self, page: Peeked) -> tuple[Sequence[int], int]:
        """The places of the messages that the client wants to see, and how many were looked at: at least one,
        and all of them unless it took too long."""
        selector, looked_at = self._selector, len(page.messages)
        if selector is None:
            return range(looked_at), looked_at
        places: list[int] = []
        ends_s = elapsed_s() + LOOKING_S
        columns = zip(page.messages, page.changed, page.delivery_counts, strict=True)
        for place, message in enumerate(columns):
            if place and elapsed_s() >= ends_s:
                return places, place
            if selector.matches(*message):
                places.append(place)
        return places, looked_at

    def _finish_drain(self) -> None:
        """Answer a drain (§2.6.7) once there is nothing more to show."""
        memory = self._connection.services.memory
        is_held = memory.exceeded and memory.unsettled_room(len(self._unsettled)) <= 0
        if not self._unread or is_held:
            self._answer_drain()

    # --- following ------------------------------------------------------------------------------------------

    def _fail(self) -> None:
        """An unexpected exception is being handled: end this client, and no other."""
        self._connection.fail()

    @guarded
    def _answered(self, answer: Answer) -> None:
        """Handle a partition's answer."""
        if self.link.gone:
            return
        if isinstance(answer, Arrived):
            self._unread.add(answer.partition)
            self.credit_granted()
        elif isinstance(answer, Unavailable):
            self._pass_over(answer.partition, LOOK_AGAIN_S)

    def _pass_over(self, number: int, seconds: float) -> None:
        """Skip a partition that is down and has forgotten its watchers. The place in it is kept."""
        loop = asyncio.get_running_loop()
        self._unread.discard(number)
        self._down[number] = loop.time() + seconds
        if self._look_again_timer is None:
            self._look_again_s = LOOK_AGAIN_S
            self._look_again_timer = loop.call_later(LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        """Read the partitions that are back, and forget those that are down for good."""
        loop = asyncio.get_running_loop()
        now, states = loop.time(), self.queue.health()
        back = [
            number for number, due in self._down.items() if due <= now and self._handles[number].available
        ]
        for number in [*back, *(each for each in self._down if states[each] in ENDED)]:
            del self._down[number]
        self._unread.update(back)
        self._look_again_s = LOOK_AGAIN_S if back else min(2 * self._look_again_s, LOOK_AGAIN_S_MAX)
        self._look_again_timer = loop.call_later(self._look_again_s, self._look_again) if self._down else None
        if back:
            self.credit_granted()

    # --- the end --------------------------------------------------------------------------------------------

    def detached(self) -> None:
        """Stop watching the partitions: the link is gone."""
        if self._look_again_timer is not None:
            self._look_again_timer.cancel()
            self._look_again_timer = None
        for handle in self._handles:
            handle.post(Detach(), self._client, self._answered)
        super().detached()
