"""What waits for slow readers, over all connections: bounded, and counted no more often than the bound asks for it.

Every connection is bounded on its own (`Connection.has_room_for`); this is for many that do not read, all at once. What they are
given is added up, batch by batch, and says how much may wait at most. Only when that sum reaches the bound, what really waits
is counted: with readers that keep pace, next to nothing. While it is over the bound, each connection has room for its share alone;
who has more than that waiting is held, and asks again shortly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

SHARE_BYTES_MIN = 64 * 1024
"""What a connection may have waiting however many there are: with nothing it could not go on."""
LOOK_AGAIN_S = 0.1
"""How long a connection is held before it may ask again."""


class Output(Protocol):
    """A connection, as far as it matters here."""

    def waiting_bytes(self) -> int:
        """What was given to it and has not left this process."""

    def flush_soon(self) -> None:
        """Try again to write, and to serve the links that found no room."""


class OutputTotal:
    """The bound over all connections. Used in the event loop."""

    def __init__(self, bytes_max: int, room_bytes_max: int, connections: Collection[Output]) -> None:
        """`room_bytes_max` is a connection's own bound; `connections` are those that there are, at any time."""
        self.turn = 0
        """Goes up with the turns of the event loop in which something was given, and by 2 where time has passed."""
        self.room = room_bytes_max
        """How many bytes may wait in one connection now."""
        self.is_over = False
        self._bytes_max, self._room_max, self._connections = bytes_max, room_bytes_max, connections
        self._uncounted_max = bytes_max
        """How much more may be given before what waits has to be counted."""
        self._held: set[Output] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._turn_is_marked = False

    def add(self, size: int) -> None:
        """So many bytes were given to a connection."""
        self._uncounted_max -= size
        if not self._turn_is_marked:
            self._turn_is_marked = True
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._uncounted_max < 0:
            self._count()

    def _next_turn(self) -> None:
        self.turn += 1
        self._turn_is_marked = False

    def _count(self) -> None:
        left = self._bytes_max - sum(connection.waiting_bytes() for connection in self._connections)
        step = self._bytes_max // 16
        self.is_over = left < step
        self._uncounted_max = max(left, step)
        share = max(self._bytes_max // max(len(self._connections), 1), SHARE_BYTES_MIN)
        self.room = min(share, self._room_max) if self.is_over else self._room_max

    def holds(self, connection: Output) -> bool:
        """Whether too much waits in all, and in this connection as well; if so, its `flush_soon` is called in a while."""
        if not self.is_over or connection.waiting_bytes() < self.room:
            return False
        self._held.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_again)
        return True

    def forget(self, connection: Output) -> None:
        """It is gone."""
        self._held.discard(connection)

    def _look_again(self) -> None:
        self._timer = None
        self.turn += 2
        self._count()
        held, self._held = self._held, set()
        for connection in held:
            connection.flush_soon()
