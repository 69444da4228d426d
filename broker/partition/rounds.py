"""Makes commits larger: the partitions of an entity begin together, when their senders have caught up.

A commit costs as much as dozens of messages, and messages with many keys divide each read of a sender over
all partitions. While the disk syncs one half of a sender's window, the other half gathers, so each commit
would have half of what the window allows. Therefore, once many messages were answered, those that come wait
until most of the answered ones have been replaced. That takes no time from a sender that sends as fast as it
may, since the broker reads its messages meanwhile. Others are not waited for long: if no messages come, or
they come slowly, those that wait go on, and at the latest after as long as the last round took to be
committed, or WAIT_S_MAX.

A sender with a pace of its own, whom no answer lets send more, gains nothing from rounds. If messages come
hardly faster while a round gathers than before it, the round was in vain, and no round gathers for a while:
PAUSE_S at first, and twice as long after each further round in vain.

Knows no partition: whoever waits says what it begins, and on which disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from storage.log import Lulls

ROUND_MESSAGES = 128
"""So many messages must have been answered and not replaced. A few senders with a message each, or a pace
below the highest one, gain nothing from a wait."""
SHARE = 8
"""One message in so many need not be replaced, so that rounds shrink when a pace becomes slower. As many must
come in PAUSE_S, or nobody waits for more."""
AHEAD_MAX = 4
"""At most this many lone messages go ahead of a round. Each may make a commit of its own; with many light
senders, that would cost more than rounds save."""
PAUSE_S = 0.003
WAIT_S_MAX = 0.010
"""Nobody waits longer than this, however long the last round took."""
FASTER = 2
"""A round was in vain if messages came less than this many times as fast while it gathered as before it.
Senders that wait for answers send several times as fast once they have them."""
IN_VAIN_S_MAX = 1.0
"""The longest time without rounds after one that was in vain. A round lasts a hundredth of this at most
(WAIT_S_MAX), so rounds in vain delay one message in a hundred."""


class Rounds:
    """One for each entity. Lives in the event loop."""

    __slots__ = (
        "__weakref__",
        "_ahead",
        "_begun_s",
        "_came",
        "_clock",
        "_enough",
        "_in_vain_s",
        "_latest_s",
        "_next_s",
        "_pace",
        "_since_s",
        "_slow_above",
        "_timer",
        "_unreplaced",
        "_until_s",
        "_waiting",
    )

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._begun_s = -WAIT_S_MAX
        """When the first messages began that were answered last, or are under way: those of a round, or of
        WAIT_S_MAX. Each partition of a round is answered by itself, so this stays until others begin."""
        self._until_s = 0.0
        """When those that wait begin at the latest, because the round before did not take longer …"""
        self._latest_s = 0.0
        """… and because the first of them has waited for WAIT_S_MAX. Answers to others do not move this."""
        self._unreplaced = 0
        """Messages that were answered, less those that have come since; not below zero."""
        self._enough = 0
        """When no more than this are unreplaced, the next round begins."""
        self._slow_above = 0
        """If more than this are unreplaced when the timer goes off, messages come too slowly."""
        self._came, self._since_s = 0, 0.0
        """How many messages have come since the pace was last taken, and when that was."""
        self._pace = 0.0
        """Messages a second before the current round began to gather."""
        self._in_vain_s = 0.0
        """How long no round gathers after the last one in vain; 0 if the last round was not in vain."""
        self._next_s = 0.0
        """The earliest time at which a round gathers again."""
        self._ahead = 0
        """Lone messages that have gone ahead of the round that gathers."""
        self._timer: asyncio.TimerHandle | None = None
        """Set while messages wait for others to join them."""
        self._waiting: dict[Lulls, list[Callable[[], None]]] = {}

    @property
    def is_gathering(self) -> bool:
        """Whether messages that come now wait for others, except lone ones that go ahead."""
        return self._timer is not None

    def answered(self, messages: int) -> None:
        """Senders were told what became of their messages, so they may send as many again."""
        self._unreplaced += messages
        if self._unreplaced < ROUND_MESSAGES:
            return
        now_s = self._clock()
        if now_s < self._next_s:
            return
        self._until_s = now_s + min(max(now_s - self._begun_s, PAUSE_S), WAIT_S_MAX)
        self._enough = self._unreplaced // SHARE
        self._slow_above = self._unreplaced  # they may begin only now
        if self._timer is None:
            self._pace = self._take_pace(now_s)
            self._look_later(now_s)

    def arrived(self, messages: int) -> None:
        """Messages have come for one of the partitions."""
        self._unreplaced = max(self._unreplaced - messages, 0)
        self._came += messages
        if self._timer is not None and self._unreplaced <= self._enough:
            self._timer.cancel()
            self._has_gathered(self._clock())
            asyncio.get_running_loop().call_soon(self._begin)  # with what else this read brings

    def lets_pass(self) -> bool:
        """Whether a round gathers, and one more lone message may go ahead of it."""
        if self._timer is None or self._ahead >= AHEAD_MAX:
            return False
        self._ahead += 1
        return True

    def awaits(self, lulls: Lulls, begin: Callable[[], None]) -> bool:
        """Whether more messages are to join those that wait. Then calls `begin` when they have, or have not
        come. `lulls` is the disk's."""
        if self._timer is None:
            now_s = self._clock()
            if now_s - self._begun_s > WAIT_S_MAX:
                self._begun_s = now_s
            return False
        if not self._waiting:
            self._latest_s = self._clock() + WAIT_S_MAX
        self._waiting.setdefault(lulls, []).append(begin)
        return True

    def _look(self) -> None:
        """Wait on if messages keep coming."""
        now_s = self._clock()
        is_over = bool(self._waiting) and now_s >= self._latest_s
        if self._unreplaced <= self._slow_above and now_s < self._until_s and not is_over:
            self._slow_above = self._unreplaced - max(self._enough, 1)
            self._look_later(now_s)
        else:
            self._has_gathered(now_s)
            self._unreplaced = 0
            self._begin()

    def _has_gathered(self, now_s: float) -> None:
        """End the wait for more, and note whether it was in vain (FASTER): then the senders have a pace of
        their own, which no answer changes."""
        self._timer = None
        if self._take_pace(now_s) >= FASTER * self._pace:
            self._in_vain_s = 0.0
        else:
            self._in_vain_s = min(max(2 * self._in_vain_s, PAUSE_S), IN_VAIN_S_MAX)
            self._next_s = now_s + self._in_vain_s

    def _take_pace(self, now_s: float) -> float:
        """How many messages a second have come since this was called last."""
        pace = self._came / max(now_s - self._since_s, 1e-6)
        self._came, self._since_s = 0, now_s
        return pace

    def _look_later(self, now_s: float) -> None:
        pause_s = min(PAUSE_S, self._until_s - now_s)
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._look)

    def _begin(self) -> None:
        self._begun_s, self._ahead = self._clock(), 0
        waiting, self._waiting = self._waiting, {}
        for lulls, begins in waiting.items():
            lulls.begin_together(begins)
