"""An event loop whose clock counts turns of the loop, however long they take.

In tests whose disks and clients are objects in the loop, time limits then run out only for what really gets
no answer: on a busy machine, nobody else is late. Nobody waits for them, either.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

TURN_S = 0.000_01
"""How long each turn of the loop takes, by its clock."""


def count_turns(loop: asyncio.AbstractEventLoop) -> None:
    """From now on, each turn of the loop takes TURN_S by its clock; when all tasks wait for a time to come,
    the clock goes straight to that time. Not for tests in which threads work: while a loop waits for them, it
    has nothing else to do, and all its time passes."""
    assert isinstance(loop, asyncio.SelectorEventLoop)
    inside: Any = loop
    if not isinstance(inside._selector, _TurnClock):
        inside._selector = clock = _TurnClock(inside._selector, loop.time())
        inside.time = lambda: clock.now_s


class _TurnClock(selectors.BaseSelector):
    """The loop's selector: it returns at once, and adds what the loop would have waited to its time."""

    def __init__(self, selector: selectors.BaseSelector, now_s: float) -> None:
        self.now_s = now_s
        self._selector = selector

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._selector.select(None if timeout is None else 0)
        self.now_s += TURN_S if ready or not timeout else timeout
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._selector.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._selector.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._selector.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._selector.get_map()

    def close(self) -> None:
        self._selector.close()
