"""How much work is under way over all connections before senders are set aside.

Everything that is under way stands before the next message in the partitions, in the log and in the answers, so a light sender waits
for all that heavy ones have there. Beyond `limit` the connections that have more than an equal share under way are therefore set
aside (`turns.py`), and their bytes wait where they hold up nobody but themselves. This is for latency; `inflight.py` bounds the memory.

A commit costs nearly the same for few messages as for many, so what is under way must still be enough to keep disk and processor busy.
When senders are set aside while the event loop has nothing to do, the disk is what is slow, and the limit rises; it falls when the
loop is busy again, or nobody waits.

Used in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

MESSAGE_COST = 2 * 1024
"""What a message costs beside its bytes, in bytes: about that much more time than a message without any takes."""
LIMIT = 1536 * 1024
"""Cost that is under way before senders are set aside: some 500 messages of 1 KiB, which take about 5 ms from end to end."""
LIMIT_MAX = 8 * LIMIT
"""Some 4,000 messages of 1 KiB: 40,000 a second on a disk that takes 100 ms for a sync."""
LIMIT_AMONG_HEAVY = 4 * LIMIT
"""The same where no light client would notice: larger commits cost less."""
LOOK_S = 0.005
IDLE_TURN_S = 0.000_3
"""A turn of the event loop that is shorter than this had next to nothing to do."""


class Sender(Protocol):
    """A connection, as far as it matters here."""

    cost_under_way: int
    """Kept here."""


class Pace:
    """The work of all connections."""

    def __init__(self, on_room: Callable[[], None], has_light: Callable[[], bool], elapsed_s: Callable[[], float]) -> None:
        """`on_room` is called when senders that were set aside may go on; `has_light` tells whether light clients are served.

        `elapsed_s` is a clock that does not run backwards.
        """
        self.cost = 0
        """Of all that is under way: see MESSAGE_COST."""
        self.limit = LIMIT
        self._on_room, self._has_light, self._elapsed_s = on_room, has_light, elapsed_s
        self._senders = 0
        """Connections that have something under way."""
        self._set_aside = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, sender: Sender, size: int, messages: int) -> None:
        """So many bytes and messages are under way."""
        cost = size + messages * MESSAGE_COST
        self.cost += cost
        if not sender.cost_under_way:
            self._senders += 1
        sender.cost_under_way += cost

    def remove(self, sender: Sender, size: int, messages: int) -> None:
        """They have their outcome."""
        cost = size + messages * MESSAGE_COST
        self.cost -= cost
        sender.cost_under_way -= cost
        if not sender.cost_under_way:
            self._senders -= 1
        if self._set_aside and (self.cost <= self._limit_now() * 3 // 4 or not self.holds(sender)):
            self._go_on()

    def holds(self, sender: Sender) -> bool:
        """Whether too much is under way in all, and more than its share of this one."""
        limit = self._limit_now()
        return self.cost > limit and sender.cost_under_way > limit // max(self._senders, 1)

    def _limit_now(self) -> int:
        return self.limit if self._has_light() else max(self.limit, LIMIT_AMONG_HEAVY)

    def sets_aside(self, sender: Sender) -> bool:
        """As `holds`; if so, `on_room` is called when it is to be asked again."""
        if not self.holds(sender):
            return False
        self._set_aside = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self.look_now)
        return True

    @property
    def is_looking(self) -> bool:
        """Somebody was set aside not long ago."""
        return self._timer is not None

    def look_now(self) -> None:
        """Adapt the limit; happens by itself every LOOK_S while somebody is set aside."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_S, self.look_now) if self._set_aside else None
        loop.call_soon(self._looked, self._elapsed_s())

    def _looked(self, began_s: float) -> None:
        """One turn of the event loop later: how long it took says whether there was anything to do in it."""
        if not self._set_aside or self._elapsed_s() - began_s > IDLE_TURN_S:
            self.limit = max(self.limit * 15 // 16, LIMIT)
        elif self.limit < LIMIT_MAX:
            self.limit = min(self.limit * 9 // 8, LIMIT_MAX)
            self._go_on()

    def _go_on(self) -> None:
        self._set_aside = False
        self._on_room()
