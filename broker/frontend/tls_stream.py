"""The `ByteStream` of a TLS connection: counts the output that the TLS layer does not count.

The transports of uvloop and asyncio encrypt a write as a whole and pass it on to the socket's transport. What
waits there is counted by neither `get_write_buffer_size` nor flow control: only a second write finds that the
first one has not left. A client that stops reading would hold twice its bound. So output waits here as it is,
and is passed on in portions, as long as the TLS layer has passed on everything before. What is not counted is
bounded: a portion, and what the socket's transport takes before it is full. Runs in the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

PORTION_BYTES = 128 * 1024
SOCKET_BYTES = 64 * 1024
"""How much the socket's transport takes before it is full: the default of uvloop and asyncio."""


class TlsStream:
    """Owned by its connection. `is_full` and `has_room` are called when the transport pauses and resumes its
    protocol."""

    __slots__ = (
        "_bytes_max",
        "_is_closing",
        "_is_full",
        "_is_passing_on",
        "_is_paused",
        "_pause",
        "_resume",
        "_transport",
        "_waiting",
        "_waiting_bytes",
    )

    def __init__(
        self, transport: asyncio.Transport, pause: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        """`pause` is called when more waits than `set_write_buffer_limits` permits, and `resume` when a
        quarter of that is left."""
        self._transport, self._pause, self._resume = transport, pause, resume
        self._waiting: deque[bytes | memoryview] = deque()
        self._waiting_bytes = 0
        self._bytes_max = PORTION_BYTES
        self._is_full = self._is_paused = self._is_passing_on = self._is_closing = False

    def begin(self) -> None:
        """Let the transport say when it cannot pass on everything. It may do so at once: the last bytes of
        the handshake may still wait in it."""
        self._transport.set_write_buffer_limits(high=1)

    def write(self, data: bytes | memoryview) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Sequence[bytes | memoryview]) -> None:
        if self.is_closing():
            return
        self._waiting += list_of_data
        self._waiting_bytes += sum(map(len, list_of_data))
        self._pass_on()

    def get_write_buffer_size(self) -> int:
        """What the client has not taken. At most as much, if the socket's transport is full."""
        in_transport = self._transport.get_write_buffer_size()
        return self._waiting_bytes + in_transport + (PORTION_BYTES + SOCKET_BYTES if self._is_full else 0)

    def set_write_buffer_limits(self, high: int) -> None:
        self._bytes_max = high

    def get_extra_info(self, name: str) -> Any:
        return self._transport.get_extra_info(name)

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        self._transport.write_eof()

    def close(self) -> None:
        """Close when everything has been passed on."""
        self._is_closing = True
        self._pass_on()

    def abort(self) -> None:
        self._is_closing = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._transport.abort()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    # --- what the transport says ----------------------------------------------------------------------------

    def is_full(self) -> None:
        """The TLS layer could not pass on everything."""
        self._is_full = True

    def has_room(self) -> None:
        """It has passed on everything."""
        self._is_full = False
        self._pass_on()

    def _pass_on(self) -> None:
        if self._is_passing_on:  # the transport says from within a write that it has room
            return
        self._is_passing_on = True
        while self._waiting and not self._is_full:
            self._transport.writelines(self._portion())
        self._is_passing_on = False
        if self._is_closing and not self._waiting and not self._transport.is_closing():
            self._transport.close()
        elif not self._is_paused and self._waiting_bytes > self._bytes_max:
            self._is_paused = True
            self._pause()
        elif self._is_paused and self._waiting_bytes <= self._bytes_max // 4:
            self._is_paused = False
            self._resume()

    def _portion(self) -> list[bytes | memoryview]:
        """Take the next PORTION_BYTES at most."""
        taken: list[bytes | memoryview] = []
        room, waiting = PORTION_BYTES, self._waiting
        while waiting and room:
            piece = waiting.popleft()
            if len(piece) > room:
                rest = memoryview(piece)
                waiting.appendleft(rest[room:])
                piece = rest[:room]
            taken.append(piece)
            room -= len(piece)
        self._waiting_bytes -= PORTION_BYTES - room
        return taken
