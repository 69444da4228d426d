"""Bounds the output that waits for clients that read slowly or not at all: for each connection, and for all
of them together.

*Each connection* has a small allowance (ALLOWANCE_BYTES_FIRST) until its client has shown that it reads. When
its socket has taken twice that, which is more than the kernel buffers for a client that does not read, the
allowance doubles. It doubles again each time the client takes as much again, up to `output_buffer_bytes_max`.
A client that never reads holds next to nothing, however much credit it grants, and one that reads has all it
can use after a few turns.

*All together*, connections use half of the bound first come, first served. Once that half is used up
(`is_over`), the rest is shared: each connection is allowed an equal share only. So clients that read
continue to be served, and those that do not cannot exceed the bound. A connection whose client has left its
share unread is held, and asks again shortly. Output that the connection itself keeps back (a response, a
shelf) does not count towards holding it, because the connection would wait for itself.

Counting all waiting output is expensive, so it is recounted only near the limit. Until then, the sum of the
sizes handed to connections is an upper bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

ALLOWANCE_BYTES_FIRST = 256 * 1024
SHARE_BYTES_MIN = 16 * 1024
"""The smallest share of a connection, however many there are. With none at all, a connection could never
continue."""
LOOK_AGAIN_S = 0.1
"""How long a connection is held before it may ask again."""


class Allowance:
    """How many bytes may wait in one connection. It grows as the client reads."""

    __slots__ = ("_bytes_max", "bytes", "grows_at")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = min(ALLOWANCE_BYTES_FIRST, bytes_max)
        self._bytes_max = bytes_max
        self.grows_at = 2 * self.bytes
        """How much the socket must have taken in total before it grows."""

    def grows(self, taken: int) -> bool:
        """Grow if the socket has taken enough, `taken` bytes in total; returns whether the allowance grew."""
        if taken < self.grows_at or self.bytes >= self._bytes_max:
            return False
        self.bytes = min(2 * self.bytes, self._bytes_max)
        self.grows_at = taken + self.bytes
        return True


class Output(Protocol):
    """The part of a connection that the bound needs."""

    def waiting_bytes(self) -> int:
        """Pending output in bytes: everything that takes memory until the client has read it."""

    def unread_bytes(self) -> int:
        """Bytes of pending output that only wait for the client to read."""

    def flush_soon(self) -> None:
        """Try again to write, and to serve the links that found no room."""


class OutputTotal:
    """The bound over all connections. Used in the event loop."""

    def __init__(self, bytes_max: int, allowance_bytes_max: int, connections: Collection[Output]) -> None:
        """`allowance_bytes_max` is the bound of one connection; `connections` is the live set of all
        connections."""
        self.turn = 0
        """Counts the turns of the event loop that produced output. Goes up by 2 when time has passed without
        any."""
        self.allowance = allowance_bytes_max
        """How many bytes may wait in one connection now."""
        self.is_over = False
        self.bytes_max = bytes_max
        self._free_max, self._allowance_max = bytes_max // 2, allowance_bytes_max
        self._connections = connections
        self._uncounted_max = self._free_max
        """How many more bytes may be handed out before waiting output is counted again."""
        self._given: set[Output] = set()
        """Connections that may have output waiting."""
        self._held: set[Output] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._turn_is_marked = False

    def add(self, connection: Output, size: int) -> None:
        """Count `size` bytes of output handed to a connection."""
        self._given.add(connection)
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
        waiting = {connection: connection.waiting_bytes() for connection in self._given}
        self._given = {connection for connection, size in waiting.items() if size}
        left = self._free_max - sum(waiting.values())
        step = self._free_max // 16
        self.is_over = left < step
        self._uncounted_max = max(left, step)
        # The connection's shelf may hold another quarter of a share (`shelf_bytes`).
        share = max(self._free_max * 3 // 4 // max(len(self._connections), 1), SHARE_BYTES_MIN)
        self.allowance = min(share, self._allowance_max) if self.is_over else self._allowance_max

    def holds(self, connection: Output) -> bool:
        """Return whether too much output waits in total, and this connection has too much of it unread; if
        so, its `flush_soon` is called after LOOK_AGAIN_S."""
        if not self.is_over or connection.unread_bytes() < self.allowance:
            return False
        self._held.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_again)
        return True

    def shelf_bytes(self, allowance: int) -> int:
        """How many bytes a connection with this allowance may hold ready for its next requests."""
        return allowance // 4 if self.is_over else allowance

    def forget(self, connection: Output) -> None:
        """Forget a connection that is gone."""
        self._held.discard(connection)
        self._given.discard(connection)

    def _look_again(self) -> None:
        self._timer = None
        self.turn += 2
        self._count()
        held, self._held = self._held, set()
        for connection in held:
            connection.flush_soon()
