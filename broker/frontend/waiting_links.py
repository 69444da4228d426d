"""The links of one connection that wait for room, and are called when the connection has written.

Each call may ask every partition of a queue, which takes 50 µs and more, and a connection may have thousands
of links that wait. So a few links are called at once, and the others in later turns of the event loop, in
which connections take turns. Links are called in the order in which they began to wait: a *round* calls those
that waited when it began, and pauses while there is no room for any. If the connection writes during a round,
another one follows for links that have begun to wait since: there may be no later write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from broker.base.few import Few

LINKS_AT_ONCE = 16
"""How many links are called at once, before the others wait for later turns."""
CONNECTIONS_AT_ONCE = 4
"""How many connections call links in one turn, besides those with at most LINKS_AT_ONCE,
which are called at once."""


class Waiting(Protocol):
    """A link."""

    def credit_granted(self) -> None:
        """There may be room: try again."""


class WaitingLinks:
    """Owned by its connection."""

    __slots__ = ("_fail", "_has_room", "_is_due", "_later", "_round", "_waiting")

    def __init__(self, later: Few, has_room: Callable[[], bool], fail: Callable[[], None]) -> None:
        """`later` makes calls in later turns, for all connections. `has_room` says whether any link may hand
        messages over now. `fail` ends the connection after an unexpected exception in such a turn."""
        self._later, self._has_room, self._fail = later, has_room, fail
        self._waiting: dict[Waiting, None] = {}
        self._round: deque[Waiting] = deque()
        self._is_due = False
        """Another round follows this one: there may be room again since it began."""

    def __bool__(self) -> bool:
        return bool(self._waiting or self._round)

    def add(self, link: Waiting) -> None:
        """Call the link when there is room again."""
        self._waiting[link] = None

    def call_some(self) -> None:
        """There may be room: call a few links now, and the others in later turns. Raises what a link does."""
        if self._round:
            self._is_due = True
        else:
            self._begin_round()
        self._go_on()

    def _begin_round(self) -> None:
        self._is_due = False
        self._round.extend(self._waiting)
        self._waiting.clear()

    def _go_on(self) -> None:
        for _ in range(LINKS_AT_ONCE):
            if not self._round and self._is_due:
                self._begin_round()
            if not (self._round and self._has_room()):
                return
            self._round.popleft().credit_granted()
        if self._round or self._is_due:
            self._later.soon(self._call_more)

    def _call_more(self) -> None:
        try:
            self._go_on()
        except Exception:
            self._fail()
