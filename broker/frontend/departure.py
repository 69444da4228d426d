"""The end of one connection's links, and of its engine.

A receiver that ends gives its messages back and withdraws its demand from every partition. That takes some
30 µs here, ten times as much in the partitions, and freeing the link takes another 5. So a connection with
thousands of links ends in slices, and all such connections together get one slice in each turn of the event
loop. A connection with few links and sessions ends at once.

Invariants: nothing is delivered on any link once the end has begun (`Connection.room_for`); a link is
marked as gone when it ends, and not before; the engine is freed after the last link has ended. Runs in the
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator

from broker.base.slices import Slices
from protocol.engine import Engine
from protocol.links import Link

LINKS_AT_ONCE = 16
"""How many links end at once, before the others wait for slices."""
SLICE_S = 0.000_3
"""How long a slice lasts: short, because the partitions run behind it in the same turn."""
SETTLED_IN_LOOP_MAX = 100
"""If more deliveries are unsettled, a thread frees the engine, which settles them one by one: a link may have
5,000, and hundreds of connections may end in one turn."""
HELD_IN_LOOP_MAX = 4_000
"""The same if it has had more of them unsettled at a time, whose memory proton frees in one piece: a client
can hold 5,000 on each link."""
FREED_AT_ONCE = 8
"""How many steps of freeing the engine are taken at once. A connection with few links needs four or five."""
SESSIONS_AT_ONCE = 16
"""With more sessions, the engine is freed in slices from the start: 249 sessions take 0.6 ms, and hundreds of
connections may be lost in one turn."""


class Departure:
    """How one connection ends. What is asked for happens in the order of the calls."""

    __slots__ = ("_engine", "_slices", "_spawn", "_waiting", "has_begun")

    def __init__(self, engine: Engine, slices: Slices, spawn: Callable[..., asyncio.Task[None]]) -> None:
        self._engine, self._slices, self._spawn = engine, slices, spawn
        self._waiting: deque[Iterator[None]] = deque()
        self.has_begun = False
        """Whether the links are ending, or have ended."""

    def end_links(self) -> None:
        """End all links, so that messages that the client has not seen go back. Safe to call twice."""
        self.has_begun = True
        self._run(self._ends(), LINKS_AT_ONCE)

    def free_engine(self) -> None:
        """Free the engine."""
        self._run(self._frees(), FREED_AT_ONCE if self._engine.session_count <= SESSIONS_AT_ONCE else 0)

    def _frees(self) -> Iterator[None]:
        engine = self._engine
        if engine.unsettled > SETTLED_IN_LOOP_MAX or engine.held_most > HELD_IN_LOOP_MAX:
            steps = self._engine.free_in_steps()
            with contextlib.suppress(RuntimeError):  # the loop is being closed
                asyncio.get_running_loop().run_in_executor(None, deque, steps, 0)
                return
            yield from steps
        yield from self._engine.free_in_steps()

    def then(self, action: Callable[[], None]) -> None:
        """Call `action` when everything before it is done."""
        self._run(_calls(action), 1)

    def _ends(self) -> Iterator[None]:
        for link in self._engine.links():
            if not link.gone:
                link.gone = True
                detach(link)
                yield

    def _run(self, steps: Iterator[None], at_once: int) -> None:
        if not self._waiting:
            for _ in range(at_once):
                if next(steps, self) is self:
                    return
        self._waiting.append(steps)
        if len(self._waiting) == 1:
            self._spawn(self._run_waiting(), name="connection.ends")

    async def _run_waiting(self) -> None:
        while self._waiting:
            await self._slices.run(self._waiting[0])
            self._waiting.popleft()


def detach(link: Link) -> None:
    """Tell whatever serves a link that the link is gone, and let go of it: while the two refer to each other,
    only Python's collector could free them."""
    served, link.context = link.context, None
    if served is not None:
        served.detached()


def _calls(action: Callable[[], None]) -> Iterator[None]:
    action()
    yield from ()
