"""Connects sockets to connections: asyncio's transports, and WebSockets made to look like them (AMQP contract
1.1)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

import structlog
from aiohttp import WSMsgType, web

from broker.frontend.byte_stream import ByteStream, limit_output
from broker.frontend.connection import Connection
from broker.frontend.room import has_room
from broker.frontend.services import Services
from broker.frontend.slow_readers import ALLOWANCE_BYTES_FIRST
from broker.frontend.strangers import network_of
from broker.frontend.tls_stream import PORTION_BYTES, TlsStream
from broker.frontend.turns import READ_BYTES, Inbox
from broker.settings.certificates import named_host

log = structlog.get_logger("listener")

_HEADER_BYTES = 8
"""The size of a protocol header (§2.2), including SASL's (§5.3.1)."""


class StreamProtocol(asyncio.BufferedProtocol):
    """One TCP or TLS connection. Its bytes are served when it is its turn (`turns.py`)."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._connection: Connection | None = None
        self._inbox: Inbox | None = None
        self._tls: TlsStream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of asyncio's
        name = stream.get_extra_info("peername")
        self._services.handshake_ended(self)
        if not has_room(self._services, network_of(name)):
            stream.abort()  # each further connection would take a descriptor that a partition may need
            return
        sock = stream.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer, tls = _peer(name), stream.get_extra_info("ssl_object")
        output: ByteStream = stream
        if tls is not None:
            output = self._tls = TlsStream(stream, self._pause, self._resume)
            self._tls.begin()
        limit_output(output, ALLOWANCE_BYTES_FIRST)
        self._connection = Connection(output, self._services, peer, host=named_host(tls))
        self._inbox = Inbox(self._connection)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes. All connections share it, because it is emptied after each
        read."""
        services, inbox = self._services, self._inbox
        turns = services.turns
        is_usual = inbox is not None and inbox.read_bytes == READ_BYTES
        if is_usual and turns.waiting_bytes < turns.waiting_bytes_max:
            return services.usual_buffer
        return services.read_buffer[: turns.read_bytes if inbox is None else turns.read_bytes_of(inbox)]

    def buffer_updated(self, nbytes: int) -> None:
        if self._inbox is None:
            return  # the connection was cut off in connection_made
        self._services.turns.received(self._inbox, bytes(self._services.read_buffer[:nbytes]))

    def eof_received(self) -> bool:
        if self._connection is not None and self._inbox is not None:
            self._services.turns.then(self._inbox, self._connection.eof_received)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None and self._inbox is not None:
            self._connection.stream = Gone()
            self._services.turns.then(self._inbox, self._connection.connection_lost)
            self._connection = self._inbox = self._tls = None

    def pause_writing(self) -> None:
        if self._tls is not None:
            self._tls.is_full()
        else:
            self._pause()

    def resume_writing(self) -> None:
        if self._tls is not None:
            self._tls.has_room()
        else:
            self._resume()

    def _pause(self) -> None:
        assert self._connection is not None
        self._connection.pause_writing()

    def _resume(self) -> None:
        assert self._connection is not None
        self._connection.resume_writing()


class Gone:
    """The `ByteStream` of a connection whose socket is gone while its last bytes are still to be served."""

    def write(self, data: bytes | memoryview) -> None:
        pass

    def writelines(self, list_of_data: Sequence[bytes | memoryview]) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, name: str) -> Any:
        return None

    def is_closing(self) -> bool:
        return True

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def _peer(name: object) -> str:
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unknown"


class WebSocketStream:
    """A WebSocket as a `ByteStream`: AMQP bytes in binary messages, split anywhere. One task writes, and
    pauses the connection when it falls behind."""

    def __init__(
        self, websocket: web.WebSocketResponse, transport: asyncio.Transport | None, buffer_bytes_max: int
    ) -> None:
        self._websocket, self._transport = websocket, transport
        self._buffer_bytes_max = buffer_bytes_max
        self._waiting: list[bytes | memoryview] = []
        self._waiting_bytes = self._sending_bytes = 0
        self._wake = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._closing = self._paused = False
        self.connection: Connection | None = None

    def write(self, data: bytes | memoryview) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Sequence[bytes | memoryview]) -> None:
        self._waiting += list_of_data
        self._waiting_bytes += sum(map(len, list_of_data))
        self._wake.set()
        if self._waiting_bytes > self._buffer_bytes_max and self.connection is not None and not self._paused:
            self._paused = True
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes + self._sending_bytes

    def set_write_buffer_limits(self, high: int) -> None:
        self._buffer_bytes_max = high

    def get_extra_info(self, name: str) -> Any:
        return None if self._transport is None else self._transport.get_extra_info(name)

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.close()  # which waits for the client to close, too

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._may_read.set()

    def abort(self) -> None:
        self._waiting.clear()
        self.close()
        if self._transport is not None:
            # ends a write that the client does not read, and a read that brings nothing
            self._transport.abort()

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    async def write_all(self) -> None:
        """Write until the stream is closed; bytes gathered since the last write go out together."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._waiting = self._waiting, []
            size, self._waiting_bytes = self._waiting_bytes, 0
            if waiting:
                self._sending_bytes = size
                data = b"".join(waiting)
                # In portions, for the same reason as in `tls_stream.py`.
                for begin in range(0, size, PORTION_BYTES):
                    portion = data[begin : begin + PORTION_BYTES]
                    await self._websocket.send_bytes(portion)
                    self._sending_bytes -= len(portion)
                # Not by the size just sent: the bound may have grown since it was exceeded.
                if (
                    self._paused
                    and self._waiting_bytes <= self._buffer_bytes_max
                    and self.connection is not None
                ):
                    self._paused = False
                    self.connection.resume_writing()
            if self._closing and not self._waiting:
                await self._websocket.close()
                return

    async def read_all(
        self, connection: Connection, inbox: Inbox, heard: Callable[[bool], None], header_within_s: float
    ) -> None:
        """Read until the client closes or sends a message that is not binary. Raises TimeoutError if no
        protocol header arrives in time (§2.2)."""
        turns, header_bytes, is_trusted = connection.services.turns, 0, False

        def listen() -> None:
            nonlocal is_trusted
            is_trusted = bool(connection.claims)
            heard(is_trusted)

        async with asyncio.timeout(header_within_s) as header_is_due:
            while not self._closing:
                message = await self._websocket.receive()
                if message.type is not WSMsgType.BINARY:
                    return
                if message.data:
                    turns.received(inbox, message.data)
                    if not is_trusted:  # `heard` is not told of later messages
                        turns.then(inbox, listen)
                if header_bytes < _HEADER_BYTES:
                    header_bytes += len(message.data)
                    if header_bytes >= _HEADER_BYTES:
                        header_is_due.reschedule(None)
                await self._may_read.wait()


async def serve_websocket(
    services: Services, websocket: web.WebSocketResponse, request: web.Request, heard: Callable[[bool], None]
) -> None:
    """Serve one AMQP connection over an accepted WebSocket until either side ends it.

    After each message, until the client has a valid claim, `heard` is called with whether it has one now.
    """
    stream = WebSocketStream(websocket, request.transport, ALLOWANCE_BYTES_FIRST)
    limit_output(stream, ALLOWANCE_BYTES_FIRST)
    connection = stream.connection = Connection(
        stream, services, request.remote or "unknown", host=request.headers.get("Host", "")
    )
    inbox = Inbox(connection)
    writer = asyncio.create_task(stream.write_all(), name="websocket.write")
    header_within_s = services.settings.http_header_timeout_ms / 1000
    reader = asyncio.create_task(
        stream.read_all(connection, inbox, heard, header_within_s), name="websocket.read"
    )
    try:
        done, _ = await asyncio.wait((writer, reader), return_when=asyncio.FIRST_COMPLETED)
        if reader in done and not writer.done():
            if isinstance(reader.exception(), TimeoutError):
                log.debug("websocket.silent", peer=connection.peer)
                stream.abort()  # a client that sent nothing will hardly answer a close
            else:
                stream.close()
            async with asyncio.timeout(services.settings.shutdown_timeout_ms / 1000):
                await writer
    except TimeoutError:
        services.sparing.info(log, "websocket.write_timed_out", peer=connection.peer)
    finally:
        connection.stream = Gone()
        services.turns.then(inbox, connection.connection_lost)
        for task in (writer, reader):
            task.cancel()
        for ended in await asyncio.gather(writer, reader, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, ConnectionError | TimeoutError):
                log.error("websocket.failed", peer=connection.peer, error=repr(ended))
