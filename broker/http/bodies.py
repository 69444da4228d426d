"""Limits the memory that all request bodies being read take together.

Each body has its own limit, but every connection may be sending one, and the part of a body that a stalled
client has sent stays in memory until the client's time is up. So there is a total for the whole port,
whatever the namespaces and the kinds of requests; a body may take more while it is the only one. The total is
at most an eighth of the memory mark, as for other traffic (`memory_mark.py`), and nothing while the broker is
above its mark: then one large body at a time arrives, so that administration goes on. The first FREE_BYTES of
a body do not count, so that a queue's description, which is rarely larger, gets through even when other
bodies have used up the total. When they have, clients that have been sending for long make room, so a few
that stall keep nobody from sending. Used in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from aiohttp import web

from broker.http.atom import Description, WrongXml, parse_entry
from broker.http.content_encoding import PIECE_BYTES_MAX, unpacker_of
from broker.http.refusals import HttpRefusal
from broker.throttle.memory_mark import Memory, traffic_bytes

TOTAL_BYTES_MAX = 64 * 1024 * 1024
FREE_BYTES = 16 * 1024
SLOW_S = 2.0
"""A client that has not sent its body in this time loses its connection when others need the room."""


class Bodies:
    """All bodies being read. One per HTTP port."""

    def __init__(self, memory: Memory, bytes_max: int = TOTAL_BYTES_MAX) -> None:
        self.bytes_max = traffic_bytes(bytes_max, memory.mark)
        self._memory = memory
        self.bytes = 0
        """Bytes counted now: what the bodies have beyond their first FREE_BYTES."""
        self.arriving: dict[Body, None] = {}
        """Bodies that have not arrived as a whole, the earliest first."""

    async def description(self, request: web.Request, bytes_max: int) -> Description:
        """Read the description that a request's body of at most `bytes_max` holds. Raises HttpRefusal: 400,
        413, 503."""
        with self.read() as counted:
            body = await gather(request, counted, bytes_max)
            try:
                return parse_entry(body)
            except WrongXml as wrong:
                raise HttpRefusal(400, 40000, str(wrong)) from wrong

    def make_room(self, size: int, own: Body) -> bool:
        """Whether there is room for more bytes of a body, which count for the memory mark. If need be,
        clients that have been sending for SLOW_S are disconnected, the slowest first."""
        if size:
            self._memory.expect(size)
        if not self._fits(size, own) and self.arriving:
            slow_since_s = asyncio.get_running_loop().time() - SLOW_S
            for body in list(self.arriving):
                if body.began_s > slow_since_s or self._fits(size, own):
                    break
                if body is not own and body.counted and body.end is not None:
                    body.is_whole()
                    body.release()
                    body.end()
        return self._fits(size, own)

    def _fits(self, size: int, own: Body) -> bool:
        bytes_max = 0 if self._memory.limited else self.bytes_max
        return not size or self.bytes + size <= bytes_max or self.bytes == own.counted

    def read(self) -> Body:
        """Begin a body. Use it in a `with` statement, which releases its bytes however it ends."""
        return Body(self)


async def gather(
    request: web.Request, counted: Body, bytes_max: int, too_large: Callable[[int], Exception] | None = None
) -> bytes:
    """A whole body, unpacked. Raises HttpRefusal: 413, or what `too_large` makes of a size above the limit;
    503; and as `content_encoding.py`."""
    unpacker = unpacker_of(request.headers.getall("Content-Encoding", ()))
    body = bytearray()
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client is gone")
    counted.begins(transport.abort)
    try:
        async for chunk in request.content.iter_any():
            for piece in (chunk,) if unpacker is None else unpacker.pieces(chunk):
                if (size := len(body) + len(piece)) > bytes_max:
                    if too_large is not None:
                        raise too_large(size)
                    raise HttpRefusal(413, 0, f"The body is larger than the limit of {bytes_max} bytes.")
                counted.grows(len(piece))
                body += piece
                if len(piece) == PIECE_BYTES_MAX:
                    await asyncio.sleep(0)  # a small chunk may hold a thousand times as much
    except BaseException:
        # The exception keeps this frame, often until the next collection of cycles.
        body.clear()
        raise
    if unpacker is not None:
        unpacker.finish()
    counted.is_whole()
    return bytes(body)


class Body:
    """One body being read."""

    __slots__ = ("_bodies", "_free", "began_s", "counted", "end")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies, self._free = bodies, FREE_BYTES
        self.counted = 0
        """The bytes that count: those beyond the free ones."""
        self.began_s = 0.0
        self.end: Callable[[], object] | None = None
        """Ends the client's connection, while the body is being read."""

    def begins(self, end: Callable[[], object]) -> None:
        """The client has begun to send it."""
        self.end, self.began_s = end, asyncio.get_running_loop().time()
        self._bodies.arriving[self] = None

    def is_whole(self) -> None:
        """It has arrived, so that its client is not to blame for what it takes."""
        self._bodies.arriving.pop(self, None)

    def grows(self, size: int) -> None:
        """Count the body's next bytes. Raises HttpRefusal (503) if there is no room for them."""
        free = min(size, self._free)
        counted = size - free
        if not self._bodies.make_room(counted, self):
            raise HttpRefusal(503, 0, "Too many bodies are being read at this time.", {"Retry-After": "2"})
        self._free -= free
        self.counted += counted
        self._bodies.bytes += counted

    def release(self) -> None:
        """Stop counting it."""
        self._bodies.bytes -= self.counted
        self.counted = 0

    def __enter__(self) -> Body:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_whole()
        self.release()
