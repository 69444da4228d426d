"""How much of all the bodies being read at a time is kept in memory.

Each body has a bound of its own, but as many may be on their way as there are connections, and a client that
does not finish one keeps its bytes here until its time is over. The first FREE_BYTES of a body are always
taken, so that the description of a queue, which rarely has more, can be sent while others fill the total.
Used in the event loop.
"""

from __future__ import annotations

from types import TracebackType

from broker.http.refusals import HttpRefusal

TOTAL_BYTES_MAX = 64 * 1024 * 1024
FREE_BYTES = 16 * 1024


class Bodies:
    """The bodies being read. One per HTTP port."""

    def __init__(self, body_bytes_max: int) -> None:
        """`body_bytes_max`: one body of this size always fits when no other is being read."""
        self.bytes = 0
        """Counted at present: what bodies have beyond their first FREE_BYTES."""
        self.bytes_max = max(TOTAL_BYTES_MAX, body_bytes_max)

    def read(self) -> Body:
        """Begin a body; to be used in a `with`, which gives its bytes back however it ends."""
        return Body(self)


class Body:
    """One body being read."""

    __slots__ = ("_bodies", "_counted", "_free")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies, self._counted, self._free = bodies, 0, FREE_BYTES

    def grows(self, size: int) -> None:
        """Count its next bytes. Raises HttpRefusal (503) if there is no room for them."""
        free = min(size, self._free)
        counted = size - free
        if self._bodies.bytes + counted > self._bodies.bytes_max:
            raise HttpRefusal(503, 0, "Too many bodies are being read at this time.", {"Retry-After": "2"})
        self._free -= free
        self._counted += counted
        self._bodies.bytes += counted

    def __enter__(self) -> Body:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bodies.bytes -= self._counted
        self._counted = 0
