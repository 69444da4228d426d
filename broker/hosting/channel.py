"""A stream of frames over a socket pair, with one end in each process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

from broker.hosting.schema import LENGTH


class Channel:
    """One end of the channel. Frames leave in the order in which they are sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._gathered: list[bytes] = []

    @classmethod
    async def of(cls, end: socket.socket) -> Channel:
        """A channel over this socket, which it owns from now on."""
        return cls(*await asyncio.open_connection(sock=end))

    def send(self, frame: bytes) -> None:
        """Queue a frame. All frames queued in one turn of the event loop are written together."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._flush)
        self._gathered.append(frame)

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        if not self._writer.is_closing():
            self._writer.write(b"".join(gathered))

    async def bodies(self) -> AsyncIterator[bytes]:
        """Yield the bodies of incoming frames until the other end is gone."""
        try:
            while True:
                (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                yield await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    async def close(self) -> None:
        """Send the queued frames and close this end."""
        self._flush()
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return
