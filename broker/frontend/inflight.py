"""Bytes received and not yet acknowledged, over all connections: messages that wait for their outcome, and parts of messages.

Over the bound, whoever sends is not read from until half of it is free. Parts are a different matter, since they become free only by
reading on: they may have half of the bound, and beyond it the connection whose parts have waited longest for their next byte is closed.
So the first half can always become free, and whoever really sends is never the one to go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.errors import Reason, Refused

if TYPE_CHECKING:
    from broker.frontend.connection import Connection


class Inflight:
    """The bytes of all connections, and who waits for fewer."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        """All of them, parts included."""
        self.partial_bytes = 0
        """Of messages whose last frame has not come."""
        self._partial: dict[Connection, int] = {}
        """The same by connection; who had the last byte stands last."""
        self._waiting: set[Connection] = set()

    def add(self, connection: Connection, size: int) -> None:
        """So many bytes of a connection wait for their outcome."""
        self.bytes += size
        if self.bytes > self.bytes_max:
            self._waiting.add(connection)
            connection.hold_reading("total")

    def remove(self, size: int) -> None:
        """So many bytes have got it."""
        self.bytes -= size
        self._release()

    def set_partial(self, connection: Connection, size: int) -> None:
        """A connection now holds so many bytes of messages that are not whole."""
        self._forget_partial(connection)
        if size:
            self._partial[connection] = size
            self.bytes += size
            self.partial_bytes += size
            while self.partial_bytes > self.bytes_max // 2 and len(self._partial) > 1:
                stalest = next(iter(self._partial))
                held = self._partial[stalest]
                self._forget_partial(stalest)
                stalest.close(
                    Refused(
                        Reason.QUOTA_EXCEEDED,
                        f"Unfinished messages take more than {self.bytes_max // 2} bytes over all connections. This connection has "
                        f"{held} bytes of them and has waited longest for the rest. Please send them again.",
                    )
                )
        self._release()

    def _forget_partial(self, connection: Connection) -> None:
        size = self._partial.pop(connection, 0)
        self.bytes -= size
        self.partial_bytes -= size

    def _release(self) -> None:
        if self._waiting and (self.bytes <= self.bytes_max // 2 or self.bytes == self.partial_bytes):
            waiting, self._waiting = self._waiting, set()
            for connection in waiting:
                connection.release_reading("total")

    def forget(self, connection: Connection) -> None:
        """A connection is gone. What of it still waits for an outcome gets one, and is removed then."""
        self._waiting.discard(connection)
        self._forget_partial(connection)
        self._release()
