"""Makes calls a few in each turn of the event loop, when thousands are to be told or woken together.

Each call takes some dozen microseconds at most, so a fixed number is made in each turn. For pieces of work
that take longer, see `pace.py`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable


class Few:
    """Calls that are still to be made. Owned by the event loop."""

    __slots__ = ("_at_once", "_is_due", "_others", "_urgent")

    def __init__(self, at_once: int) -> None:
        """`at_once`: how many calls are made in one turn."""
        self._at_once = at_once
        self._is_due = False
        """Whether `_now` is called in the next turn."""
        self._urgent: OrderedDict[Callable[[], None], None] = OrderedDict()
        self._others: OrderedDict[Callable[[], None], None] = OrderedDict()
        """What is still to be called. Not plain dicts: to find the first key of one takes as long as keys
        were taken from its front."""

    def soon(self, call: Callable[[], None], *, is_urgent: bool = False) -> None:
        """Call this in one of the next turns, once, however often it is asked for until then. Urgent calls
        come before others. It must not raise."""
        if is_urgent:
            self._others.pop(call, None)
            self._urgent[call] = None
        elif call not in self._urgent:
            self._others[call] = None
        self._next_turn()

    def _next_turn(self) -> None:
        if not self._is_due and (self._urgent or self._others):
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._now)

    def _now(self) -> None:
        self._is_due = False
        for _ in range(min(self._at_once, len(self._urgent) + len(self._others))):
            call, _ = (self._urgent or self._others).popitem(last=False)
            call()
        self._next_turn()
