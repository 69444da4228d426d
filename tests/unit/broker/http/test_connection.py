"""One connection of the HTTP port: incomplete headers, slow bodies, unread answers, garbage, no room."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import aiohttp
import pytest

from broker.entities.descriptions import QueueSettings
from broker.http.connection import HttpConnection
from tests.support.http_raw import HALF, WHOLE, client, rest, status_of
from tests.support.http_stack import HttpStack, http_stack
from tests.support.sas import sas_token
from tests.support.waiting import WAIT_S, until

HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The beginning of a TLS ClientHello."""


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Send a byte every 20 ms until the broker hangs up; returns everything that it sent. Raises TimeoutError
    if it does not hang up."""
    ending = asyncio.create_task(rest(reader))
    while not ending.done():
        with contextlib.suppress(ConnectionError):
            writer.write(b"x")
            await writer.drain()
        await asyncio.sleep(0.02)
    return await ending


@pytest.mark.parametrize("tls", [False, True])
async def test_a_header_that_is_not_whole_in_time_ends_the_connection(tmp_path: Path, tls: bool) -> None:
    async with (
        http_stack(tmp_path, http_header_timeout_ms=500) as stack,
        client(stack, HALF, tls=tls) as (reader, _),
    ):
        assert await rest(reader) == b""
        assert stack.ended("slow_header") == 1


async def test_bytes_one_at_a_time_do_not_lengthen_a_headers_time(tmp_path: Path) -> None:
    async with (
        http_stack(tmp_path, http_header_timeout_ms=300) as stack,
        client(stack, HALF) as (reader, writer),
    ):
        assert await trickle(reader, writer) == b""
        assert stack.ended("slow_header") == 1


@pytest.mark.parametrize("together", [False, True])
async def test_the_next_header_on_a_kept_connection_has_as_long(tmp_path: Path, together: bool) -> None:
    async with http_stack(tmp_path, http_header_timeout_ms=300) as stack:
        async with client(stack, WHOLE + HALF if together else WHOLE) as (reader, writer):
            assert await status_of(reader) == 200
            if not together:
                writer.write(HALF)
            assert await rest(reader) == b""
        assert stack.ended("slow_header") == 1


async def test_a_kept_connection_may_be_idle_for_longer_than_a_header_may_take(tmp_path: Path) -> None:
    async with http_stack(tmp_path, http_header_timeout_ms=100, http_keepalive_ms=1_000) as stack:
        async with client(stack, WHOLE) as (reader, writer):
            assert await status_of(reader) == 200
            await asyncio.sleep(0.3)  # three times as long as a header may take
            writer.write(WHOLE)
            assert await status_of(reader) == 200
            assert await rest(reader) == b""  # closed after being idle for the permitted time
        assert stack.ended("slow_header") == 0


async def test_a_tls_handshake_has_a_headers_time(tmp_path: Path) -> None:
    async with http_stack(tmp_path, http_header_timeout_ms=300) as stack:
        async with client(stack, HALF_HELLO) as (reader, _):
            await rest(reader)
        assert stack.ended("tls") == 1


async def test_a_body_has_its_time_however_it_trickles(tmp_path: Path) -> None:
    async with http_stack(tmp_path, http_transfer_timeout_ms=300) as stack:
        token = sas_token(f"https://127.0.0.1:{stack.port}")
        head = (
            f"PUT /orders HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\nContent-Length: "
            "100000\r\n\r\n"
        ).encode()
        async with client(stack, head) as (reader, writer):
            assert await trickle(reader, writer) == b""
        assert stack.ended("slow_body") == 1


async def test_an_answer_that_nobody_reads_has_its_time(tmp_path: Path) -> None:
    async with http_stack(tmp_path, http_transfer_timeout_ms=500) as stack:
        for number in range(200):
            await stack.namespace.create_entity(
                f"a-queue-with-a-long-name-to-fill-the-answer-{number:03}", QueueSettings()
            )
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.connect(("127.0.0.1", stack.port))
        with sock:
            sock.setblocking(False)
            asked = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2_000
            with contextlib.suppress(BlockingIOError):
                while asked:
                    asked = asked[sock.send(asked) :]
            await until(lambda: stack.ended("slow_reader") == 1)


async def test_half_headers_fill_the_port_and_everybody_else_is_served(tmp_path: Path) -> None:
    async with http_stack(tmp_path, http_connections_max=20) as stack:
        url = f"{stack.url}/$servicebus/websocket"
        async with stack.session.ws_connect(url, protocols=("AMQPWSB10",)) as websocket:
            await websocket.send_bytes(b"login")
            assert await websocket.receive_bytes() == b"login"
            crowd = [await asyncio.open_connection("127.0.0.1", stack.port) for _ in range(60)]
            for _, writer in crowd:
                writer.write(HALF)
            for _ in range(5):
                assert (await stack.ask("GET", "/health", token=None))[0] == 200
                assert (await stack.ask("GET", "/$Resources/queues"))[0] == 200
                await websocket.send_bytes(b"still here")
                assert await websocket.receive_bytes() == b"still here"
            assert stack.ended("displaced") >= 41
            assert len(stack.server._crowd) <= 20
            for _, writer in crowd:
                writer.transport.abort()


async def test_a_handshake_under_way_leaves_for_a_newcomer_and_its_socket_is_closed(tmp_path: Path) -> None:
    async with (
        http_stack(tmp_path, http_connections_max=1) as stack,
        client(stack, HALF_HELLO) as (reader, _),
    ):
        await until(lambda: len(stack.server._greeting) == 1)
        assert (await stack.ask("GET", "/health", token=None))[0] == 200
        await rest(reader)


async def test_idle_connections_leave_for_a_newcomer(tmp_path: Path) -> None:
    async with http_stack(tmp_path, http_connections_max=2) as stack, client(stack, WHOLE) as (reader, _):
        assert await status_of(reader) == 200
        async with client(stack, WHOLE) as (second, _), client(stack, WHOLE) as (third, _):
            assert await status_of(second) == await status_of(third) == 200
            assert await rest(reader) == b""


async def test_when_all_are_served_health_has_a_place_and_nothing_else(tmp_path: Path) -> None:
    async with http_stack(tmp_path, http_connections_max=2) as stack:
        url = f"{stack.url}/$servicebus/websocket"
        async with (
            stack.session.ws_connect(url, protocols=("amqp",)) as one,
            stack.session.ws_connect(url, protocols=("amqp",)) as two,
        ):
            for websocket in (one, two):
                await websocket.send_bytes(b"login")
                assert await websocket.receive_bytes() == b"login"
            spare = [await asyncio.open_connection("127.0.0.1", stack.port) for _ in range(100)]
            for _ in range(3):
                async with client(stack, WHOLE) as (reader, _):
                    assert await status_of(reader) == 200
                    assert await rest(reader) == b""  # the connection is not kept alive
                status, text, headers = await stack.ask("GET", "/$Resources/queues")
                assert (status, headers["Retry-After"], "in use" in text) == (503, "2", True)
            for _, writer in spare:
                writer.transport.abort()
        await until(lambda: len(stack.server._crowd) == 0)
        assert (await stack.ask("GET", "/$Resources/queues"))[0] == 200


async def test_websockets_without_a_login_leave_for_a_newcomer(tmp_path: Path) -> None:
    async with http_stack(tmp_path, http_connections_max=2) as stack:
        url = f"{stack.url}/$servicebus/websocket"
        async with (
            stack.session.ws_connect(url, protocols=("amqp",)) as one,
            stack.session.ws_connect(url, protocols=("amqp",)),
        ):
            await one.send_bytes(b"hello")
            assert await one.receive_bytes() == b"hello"
            assert (await stack.ask("GET", "/$Resources/queues"))[0] == 200
            async with asyncio.timeout(WAIT_S):
                assert (await one.receive()).type in (
                    aiohttp.WSMsgType.CLOSED,
                    aiohttp.WSMsgType.CLOSE,
                    aiohttp.WSMsgType.ERROR,
                )


async def test_a_websocket_without_a_login_may_not_send_more_than_a_login_needs(stack: HttpStack) -> None:
    async with stack.session.ws_connect(
        f"{stack.url}/$servicebus/websocket", protocols=("amqp",)
    ) as websocket:
        with contextlib.suppress(ConnectionError):
            await websocket.send_bytes(bytes(200_000))
        async with asyncio.timeout(WAIT_S):
            assert (await websocket.receive()).type in (
                aiohttp.WSMsgType.CLOSED,
                aiohttp.WSMsgType.CLOSE,
                aiohttp.WSMsgType.ERROR,
            )
    assert stack.ended("websocket_flood") == 1


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[HttpStack]:
    async with http_stack(
        tmp_path, http_header_timeout_ms=400, http_transfer_timeout_ms=400, http_keepalive_ms=400
    ) as running:
        yield running


def _put(more: str, body: bytes = b"") -> bytes:
    token = sas_token("https://localhost")
    return f"PUT /orders HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n{more}\r\n".encode() + body


def _websocket(frames: bytes) -> bytes:
    head = (
        "GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: "
        "Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: "
        "13\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
    )
    return head.encode() + frames


MALFORMED = {
    "nothing but line ends": b"\r\n\r\n\r\n",
    "no target": b"GET\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "a version that is none": b"GET /health HTTP/9.9\r\nHost: a\r\n\r\n",
    "lower case method": b"get /health HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method with marks": b"G@T /health HTTP/1.1\r\nHost: a\r\n\r\n",
    "NUL bytes": b"\x00" * 200,
    "NUL in the target": b"GET /he\x00alth HTTP/1.1\r\nHost: a\r\n\r\n",
    "NUL in a header": b"GET /health HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    "a header without a colon": b"GET /health HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n",
    "a header without a name": b"GET /health HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
    "a folded header": b"GET /health HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
    "a long header": b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40_000 + b"\r\n\r\n",
    "a long target": b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "too many headers": b"GET /health HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 1_000 + b"\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(30),
    "AMQP": b"AMQP\x00\x01\x00\x00",
    "SSH": b"SSH-2.0-OpenSSH_9.9\r\n",
    "SMB": b"\x00\x00\x00\x2f\xff\x53\x4d\x42" + bytes(40),
    "TLS garbage": b"\x16\x03\x01\x00\x05wrong" + bytes(50),
    "SSL 2": b"\x80\x2e\x01\x00\x02" + bytes(40),
    "a length below 0": _put("Content-Length: -1\r\n"),
    "a length that is no number": _put("Content-Length: ten\r\n"),
    "two lengths": _put("Content-Length: 3\r\nContent-Length: 4\r\n", b"abcd"),
    "length and chunks": _put("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
    "an encoding of transfer that is none": _put("Transfer-Encoding: cabbage\r\n", b"abc"),
    "chunks of bad length": _put("Transfer-Encoding: chunked\r\n", b"zz\r\nabc\r\n0\r\n\r\n"),
    "chunks without an end": _put("Transfer-Encoding: chunked\r\n", b"3\r\nabcdef\r\n0\r\n\r\n"),
    "chunks longer than any": _put("Transfer-Encoding: chunked\r\n", b"FFFFFFFFFFFFFFFFFF\r\nabc"),
    "a body that is not deflated": _put("Content-Encoding: deflate\r\nContent-Length: 10\r\n", b"0123456789"),
    "a body that is not gzipped": _put("Content-Encoding: gzip\r\nContent-Length: 10\r\n", b"0123456789"),
    "a body that is not XML": _put("Content-Length: 10\r\n", b"\xff\xfe\x00<<<<>>>"),
    "a body that never ends": _put("Content-Length: 1000\r\n", b"abc"),
    "an expectation that is none": _put("Expect: miracles\r\nContent-Length: 0\r\n"),
    "UTF-8 that is none in the target": b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    "UTF-8 that is none, encoded": b"GET /%ff%fe%00?a=%ff HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "UTF-8 that is none in a header": (
        b"GET /q HTTP/1.1\r\nHost: a\r\nx-ms-client-request-id: \xff\xfe\r\nConnection: close\r\n\r\n"
    ),
    "UTF-8 that is none in the token": b"GET /q HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    b"Authorization: SharedAccessSignature sr=\xff&sig=%ff&se=1&skn=\xfe\r\n\r\n",
    "an answer split by its request": (
        b"GET /q HTTP/1.1\r\nHost: a\r\nx-ms-client-request-id: a\tb\r\nConnection: close\r\n\r\n"
    ),
    "half a percent": b"GET /%zz%1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "another port in the target": (
        b"GET //evil.example:99999/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    ),
    "CONNECT": b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost:22\r\n\r\n",
    "an upgrade to something else": (
        b"GET /q HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\nmore and more"
    ),
    "a WebSocket of version 1": _websocket(b"").replace(b"Version: 13", b"Version: 1"),
    "a WebSocket without a key": _websocket(b"").replace(b"Sec-WebSocket-Key", b"X-Key"),
    "a WebSocket with a bad key": _websocket(b"").replace(b"AAAAAAAAAAAAAAAAAAAAAA==", b"short"),
    "a frame of a kind that is none": _websocket(b"\x83\x80\x00\x00\x00\x00"),
    "a frame with reserved bits": _websocket(b"\xf2\x80\x00\x00\x00\x00"),
    "a frame longer than any": _websocket(b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00"),
    "text that is not UTF-8": _websocket(b"\x81\x82\x00\x00\x00\x00\xff\xfe"),
    "a ping that is too long": _websocket(b"\x89\xfe\x01\x00\x00\x00\x00\x00" + bytes(256)),
    "a close with half a code": _websocket(b"\x88\x81\x00\x00\x00\x00\x03"),
    "a continuation of nothing": _websocket(b"\x80\x84\x00\x00\x00\x00AMQP"),
    "HTTP after the handshake": _websocket(WHOLE),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("tls", [False, True])
async def test_what_is_not_http_gets_an_answer_or_the_end_and_no_line_in_the_log(
    stack: HttpStack,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    name: str,
    tls: bool,
) -> None:
    caplog.set_level(logging.INFO)
    answer = b""
    with contextlib.suppress(
        ConnectionError
    ):  # on a slow machine, the header's time-out may end during the handshake
        async with client(stack, MALFORMED[name], tls=tls) as (reader, writer):
            if name == "nothing but line ends":
                writer.write(b"GARBAGE")
            answer = await rest(reader)
    assert not answer or answer.split(b" ")[1][:1] in b"1 4 5", answer
    assert b" 500 " not in answer[:20], answer
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []
    shown = capsys.readouterr()
    for sign in ("Traceback", "[error", "[warning"):
        assert sign not in shown.out + shown.err
    assert (await stack.ask("GET", "/health", token=None))[0] == 200
    await until(lambda: len(stack.server._crowd) <= 1)  # the client's own connection is kept


async def test_an_error_of_ours_at_one_connections_beginning_is_loud_and_ends_that_connection_alone(
    stack: HttpStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = asyncio.get_running_loop()

    async def broken(*args: object, **options: object) -> None:
        raise RuntimeError("nobody foresaw this")

    with monkeypatch.context() as patched:
        patched.setattr(loop, "connect_accepted_socket", broken)
        async with client(stack, WHOLE) as (reader, _):
            assert await rest(reader) == b""
    assert stack.ended("failed") == 1
    assert "nobody foresaw this" in capsys.readouterr().out
    assert (await stack.ask("GET", "/health", token=None))[0] == 200
    assert len(stack.server._crowd) <= 1


def test_the_peer_of_a_socket_that_is_gone_can_be_named() -> None:
    """A timer may fire between the end of the socket and `connection_lost`; uvloop then raises ValueError."""

    class Gone:
        def get_extra_info(self, name: str) -> None:
            raise ValueError("negative file descriptor")

    assert HttpConnection._peer(cast(asyncio.Transport, Gone())) == "gone"
