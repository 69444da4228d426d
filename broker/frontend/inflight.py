"""Bounds the bytes received and not yet acknowledged, over all connections: messages that wait for their
outcome, and unfinished messages.

Over the bound, each connection that sends stops being read until half of the bound is free. Unfinished
messages are released only by reading on, so they have a bound of their own, half of the total. Beyond it, the
connection whose unfinished messages have waited longest for their next byte is closed. So the other half can
always become free, and a client that keeps sending is not closed.
"""

from __future__ import annotations

from typing import Protocol

from broker.base.errors import Reason, Refused


class Reading(Protocol):
    """The part of a connection that the bound needs."""

    def hold_reading(self, why: str) -> None:
        """Pause reading from the socket until `release_reading` is called for the same reason."""

    def release_reading(self, why: str) -> None:
        """Drop one reason to pause; reading resumes when none is left."""

    def close(self, why: Refused) -> None:
        """Close the connection with an error."""


class Inflight:
    """Counts the bytes of all connections, and pauses those that send."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        """All bytes in flight, unfinished messages included."""
        self.partial_bytes = 0
        """Bytes of unfinished messages, whose last frame has not arrived."""
        self._partial: dict[Reading, int] = {}
        """Those bytes by connection, ordered by when their last bytes arrived, oldest first."""
        self._waiting: set[Reading] = set()

    def add(self, connection: Reading, size: int) -> None:
        """Count `size` more bytes that wait for their outcome in a connection."""
        self.bytes += size
        if self.bytes > self.bytes_max:
            self._waiting.add(connection)
            connection.hold_reading("total")

    def remove(self, size: int) -> None:
        """Release acknowledged bytes from the bound."""
        self.bytes -= size
        if self._waiting:
            self._release()

    def set_partial(self, connection: Reading, size: int) -> None:
        """Record that a connection now holds `size` bytes of unfinished messages."""
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
                        f"Unfinished messages take more than {self.bytes_max // 2} bytes over all "
                        "connections. This connection has "
                        f"{held} bytes of them and has waited longest for the rest. Please send them again.",
                    )
                )
        self._release()

    def _forget_partial(self, connection: Reading) -> None:
        size = self._partial.pop(connection, 0)
        self.bytes -= size
        self.partial_bytes -= size

    def _release(self) -> None:
        if self._waiting and (self.bytes <= self.bytes_max // 2 or self.bytes == self.partial_bytes):
            waiting, self._waiting = self._waiting, set()
            for connection in waiting:
                connection.release_reading("total")

    def forget(self, connection: Reading) -> None:
        """Forget a connection that is gone. Its messages that wait for an outcome stay counted until they
        have it."""
        self._waiting.discard(connection)
        self._forget_partial(connection)
        self._release()
