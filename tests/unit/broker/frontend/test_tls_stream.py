"""Output over TLS that the client does not read is counted, and stays in its bound. Over real sockets, with
both event loops."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from broker.base.clock import SystemClock
from broker.frontend.tls_stream import PORTION_BYTES, TlsStream
from broker.settings.certificates import server_context, tls_files
from broker.settings.settings import load_settings
from tests.support.waiting import WAIT_S, until

MIB = 1024 * 1024
KERNEL_BYTES = 2 * MIB
"""More than the sockets of both sides and the client's TLS layer hold, with the small buffers used here."""
WRITTEN = b"".join(number.to_bytes(4, "big") for number in range(2 * MIB))
"""8 MiB, no part of which is like another."""


class Served(asyncio.Protocol):
    """The broker's side of one connection."""

    def __init__(self) -> None:
        self.paused: list[bool] = []
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.stream = TlsStream(
            self.transport, lambda: self.paused.append(True), lambda: self.paused.append(False)
        )
        self.stream.begin()

    def pause_writing(self) -> None:
        self.stream.is_full()

    def resume_writing(self) -> None:
        self.stream.has_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


def connected(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A client with a small buffer that has finished its handshake."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    plain.settimeout(WAIT_S)
    plain.connect(("127.0.0.1", port))
    return context.wrap_socket(plain, server_hostname="localhost")


def read_all(client: ssl.SSLSocket) -> bytes:
    """Everything until the end."""
    found = bytearray()
    while more := client.recv(MIB):
        found += more
    return bytes(found)


@asynccontextmanager
async def peers(folder: Path) -> AsyncIterator[tuple[Served, ssl.SSLSocket]]:
    """A connection over TLS, whose client reads nothing yet."""
    (folder / "data").mkdir()
    files = tls_files(load_settings(data_dir=folder / "data"), SystemClock().now_ms())
    served: list[Served] = []

    def serve() -> Served:
        served.append(Served())
        return served[0]

    server = await asyncio.get_running_loop().create_server(serve, "127.0.0.1", 0, ssl=server_context(files))
    context = ssl.create_default_context(cafile=str(files.authority))
    client = await asyncio.to_thread(connected, server.sockets[0].getsockname()[1], context)
    try:
        await until(lambda: bool(served) and hasattr(served[0], "stream"))
        yield served[0], client
    finally:
        client.close()
        server.close()
        served[0].stream.abort()
        await until(lambda: served[0].lost)


Run = Callable[[Awaitable[None]], None]


@pytest.fixture(params=[asyncio, uvloop])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine in an event loop of each kind."""
    return request.param.run  # type: ignore[no-any-return]


def test_what_the_client_has_not_read_is_counted_and_arrives_in_order(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        async with peers(tmp_path) as (served, client):
            stream = served.stream
            stream.set_write_buffer_limits(high=MIB)
            stream.writelines([WRITTEN[:10], memoryview(WRITTEN)[10 : 3 * MIB], WRITTEN[3 * MIB :]])
            assert served.paused == [True]
            # Symptom: what one write had encrypted was not counted, so a slow client held twice its bound.
            assert len(WRITTEN) - KERNEL_BYTES < stream.get_write_buffer_size() < len(WRITTEN) + MIB
            assert served.transport.get_write_buffer_size() < 2 * PORTION_BYTES
            stream.close()
            assert stream.is_closing() and not served.lost, "not before the client has read the rest"
            stream.write(b"too late")
            assert await asyncio.to_thread(read_all, client) == WRITTEN
            assert served.paused == [True, False]

    run(test())


def test_an_aborted_connection_drops_what_waits(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        async with peers(tmp_path) as (served, _):
            served.stream.write(WRITTEN)
            served.stream.abort()
            assert served.stream.get_write_buffer_size() < MIB
            await until(lambda: served.lost)

    run(test())


def test_a_client_that_reads_is_never_held_up(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        async with peers(tmp_path) as (served, client):
            reading = asyncio.create_task(asyncio.to_thread(read_all, client))
            for begin in range(0, MIB, 1_000):
                served.stream.write(WRITTEN[begin : begin + 1_000])
                if begin % 100_000 == 0:
                    await until(lambda: served.stream.get_write_buffer_size() == 0)
            served.stream.close()
            assert await reading == WRITTEN[: begin + 1_000]
            assert not served.paused

    run(test())
