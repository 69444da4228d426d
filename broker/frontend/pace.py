"""Bounds the work under way over all connections: beyond a limit, senders with more than their share are
held back.

A new message waits in the partitions, the log and the answers behind all the work that is already there, so a
light sender waits for heavy ones. Therefore, beyond `limit`, connections with more than an equal share of the
work under way are held back (`turns.py`): their bytes then hold up only themselves. This bound is for
latency; `inflight.py` bounds memory.

A commit costs nearly the same for few messages as for many, so enough must be under way to keep disk and
processor busy. When senders are held back while the event loop is idle, the disk is the bottleneck, and the
limit rises. It falls when the loop is busy again, or when no sender is held back.

Used in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

MESSAGE_COST = 2 * 1024
"""The fixed cost of a message, in bytes: handling one takes about as long as this many extra bytes would."""
LIMIT = 768 * 1024
"""Cost under way beyond which senders are held back: about 250 messages of 1 KiB, which take 2 to 5 ms from
end to end."""
LIMIT_MAX = 16 * LIMIT
"""About 4,000 messages of 1 KiB: 40,000 a second on a disk that takes 100 ms to sync."""
LIMIT_AMONG_HEAVY = 8 * LIMIT
"""The limit while no light client is served: a larger commit costs less per message."""
LOOK_S = 0.005
EMPTY_TURN_S = 0.000_3
"""A turn of the event loop shorter than this counts as empty."""


class Sender(Protocol):
    """The part of a connection that the pace needs."""

    cost_under_way: int
    """Cost of its messages under way, counted as in `Pace.cost`. Only the pace writes it."""


class Pace:
    """The bound on the work of all connections."""

    def __init__(
        self, on_room: Callable[[], None], has_light: Callable[[], bool], elapsed_s: Callable[[], float]
    ) -> None:
        """`on_room` is called when senders that were held back may go on; `has_light` tells whether light
        clients are being served.

        `elapsed_s` is a monotonic clock.
        """
        self.cost = 0
        """Cost of all messages under way: their bytes, plus MESSAGE_COST for each."""
        self.limit = LIMIT
        self._on_room, self._has_light, self._elapsed_s = on_room, has_light, elapsed_s
        self._senders = 0
        """Number of connections with something under way."""
        self._has_held_back = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, sender: Sender, size: int, messages: int) -> None:
        """Count messages of `size` bytes as under way."""
        cost = size + messages * MESSAGE_COST
        self.cost += cost
        if not sender.cost_under_way:
            self._senders += 1
        sender.cost_under_way += cost

    def remove(self, sender: Sender, size: int, messages: int) -> None:
        """Stop counting messages of `size` bytes: they have their outcome."""
        cost = size + messages * MESSAGE_COST
        self.cost -= cost
        sender.cost_under_way -= cost
        if not sender.cost_under_way:
            self._senders -= 1
        if self._has_held_back and (self.cost <= self._limit_now() * 3 // 4 or not self.holds(sender)):
            self._go_on()

    def holds(self, sender: Sender) -> bool:
        """Return whether too much is under way in total, and this sender has more than its share."""
        if not sender.cost_under_way:
            return False
        limit = self._limit_now()
        return self.cost > limit and sender.cost_under_way > limit // max(self._senders, 1)

    def _limit_now(self) -> int:
        return self.limit if self._has_light() else max(self.limit, LIMIT_AMONG_HEAVY)

    def holds_back(self, sender: Sender) -> bool:
        """Like `holds`, but if it returns True, `on_room` is called when the sender may try again."""
        if not self.holds(sender):
            return False
        self._has_held_back = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self.look_now)
        return True

    @property
    def is_looking(self) -> bool:
        """Whether a sender was held back recently."""
        return self._timer is not None

    def look_now(self) -> None:
        """Adapt the limit. Runs every LOOK_S while a sender is held back."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_S, self.look_now) if self._has_held_back else None
        loop.call_soon(self._looked, self._elapsed_s())

    def _looked(self, began_s: float) -> None:
        """Runs one turn of the event loop later: the length of the turn shows whether there was work in
        it."""
        if not self._has_held_back or self._elapsed_s() - began_s > EMPTY_TURN_S:
            self.limit = max(self.limit * 15 // 16, LIMIT)
        elif self.limit < LIMIT_MAX:
            self.limit = min(self.limit * 9 // 8, LIMIT_MAX)
            self._go_on()

    def _go_on(self) -> None:
        self._has_held_back = False
        self._on_room()
