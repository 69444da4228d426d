"""Attacks on the HTTP port: incomplete headers, silent WebSockets, pages from other sites, garbage."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time

import pytest

from tests.hostile.bystander import Bystander, resident_mib
from tests.hostile.conftest import HEADER_TIMEOUT_S, OPEN_TIMEOUT_S
from tests.support import raw_amqp as raw
from tests.support.broker_process import BrokerProcess
from tests.support.half_headers import HALF, HalfHeaders
from tests.support.raw_amqp import AMQP_HEADER, ConnectionEnded
from tests.support.raw_websocket import HandshakeRefused, WebSocketConnection, message
from tests.support.sas import sas_token

CROWD = 1_000
"""As many connections as the port accepts by default."""
ATTACK_S = 6.0
WITHIN_S = 20.0
GROWS_MIB_MAX = 100


def ask(
    broker: BrokerProcess,
    method: str,
    path: str,
    *,
    token: bool = False,
    headers: dict[str, str] | None = None,
) -> int:
    """The status of a request on a new connection. Raises OSError if there is no answer in time."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.addresses.http_port, timeout=WITHIN_S)
    sent = {"Connection": "close", **(headers or {})}
    if token:
        sent["Authorization"] = sas_token("https://127.0.0.1")
    with contextlib.closing(connection):
        connection.request(method, path, headers=sent)
        answer = connection.getresponse()
        answer.read()
        return answer.status


def ended_within(sock: socket.socket, within_s: float) -> float:
    """Seconds until the broker closes the connection. Raises TimeoutError if it does not."""
    begin = time.monotonic()
    sock.settimeout(within_s)
    with contextlib.suppress(ConnectionError):
        while sock.recv(4_096):
            pass
    return time.monotonic() - begin


def test_a_thousand_half_headers_hold_up_nobody(broker: BrokerProcess) -> None:
    before = resident_mib(broker.pid)
    with (
        Bystander(broker.addresses.http_port, connect=WebSocketConnection) as websocket,
        Bystander(broker.addresses.amqp_port) as amqp,
    ):
        rounds, end = 0, time.monotonic() + ATTACK_S
        with HalfHeaders(broker.addresses.http_port, CROWD) as attack:
            while rounds < 3 or time.monotonic() < end:
                assert ask(broker, "GET", "/health") == 200
                assert ask(broker, "GET", "/$Resources/queues", token=True) == 200
                websocket.round_trip(WITHIN_S)
                amqp.round_trip(WITHIN_S)
                with Bystander(broker.addresses.http_port, connect=WebSocketConnection) as newcomer:
                    newcomer.round_trip(WITHIN_S)
                rounds += 1
            grown = resident_mib(broker.pid) - before
    print(f"{rounds} rounds beside {attack.opened} connections with half a header; {grown:.0f} MiB more")
    assert attack.opened > CROWD  # the broker closed some, and new ones came
    assert grown < GROWS_MIB_MAX


@pytest.mark.parametrize("said", [b"", b"\x16", b"G", HALF])
def test_a_connection_that_does_not_finish_its_header_is_ended(broker: BrokerProcess, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", broker.addresses.http_port)) as sock:
        sock.sendall(said)
        assert ended_within(sock, WITHIN_S) >= HEADER_TIMEOUT_S / 2


@pytest.mark.parametrize("said", [b"", message(b"AMQP"), message(b"", kind=9)])
def test_a_websocket_that_does_not_begin_with_amqp_is_ended(broker: BrokerProcess, said: bytes) -> None:
    with WebSocketConnection(broker.addresses.http_port) as connection:
        connection.socket.sendall(said)
        assert HEADER_TIMEOUT_S / 2 <= ended_within(connection.socket, WITHIN_S) < OPEN_TIMEOUT_S


def test_a_websocket_without_a_login_cannot_make_the_broker_keep_a_large_message(
    broker: BrokerProcess,
) -> None:
    before = resident_mib(broker.pid)
    crowd = [WebSocketConnection(broker.addresses.http_port) for _ in range(20)]
    try:
        for connection in crowd:
            connection.send(AMQP_HEADER)
            with contextlib.suppress(ConnectionError, TimeoutError):
                connection.socket.sendall(message(bytes(8_000_000))[:-1])  # everything but the last byte
        assert resident_mib(broker.pid) - before < 40
        for connection in crowd:
            ended_within(connection.socket, WITHIN_S)
    finally:
        for connection in crowd:
            connection.socket.close()


def test_another_sites_page_and_a_rebound_name_get_nothing(broker: BrokerProcess) -> None:
    for origin in (
        "http://evil.example",
        "null",
        f"http://localhost.evil.example:{broker.addresses.http_port}",
    ):
        with pytest.raises(HandshakeRefused) as caught:
            WebSocketConnection(broker.addresses.http_port, {"Origin": origin})
        assert caught.value.status == 403
        assert ask(broker, "GET", "/target", token=True, headers={"Origin": origin}) == 403
    rebound = {"Host": f"evil.example:{broker.addresses.http_port}"}
    assert ask(broker, "DELETE", "/target", token=True, headers=rebound) == 421
    assert ask(broker, "GET", "/target", token=True) == 200
    assert ask(broker, "GET", "/health", headers=rebound) == 200
    with pytest.raises(HandshakeRefused) as caught:
        WebSocketConnection(broker.addresses.http_port, rebound)
    assert caught.value.status == 421


@pytest.mark.parametrize(
    "garbage",
    [
        bytes(5_000),
        b"\x16\x03\x01\x00\x05wrong" + bytes(500),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000,
        b"PUT /target HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\xff\xfe\xfd HTTP/1.1\r\n\r\n",
    ],
)
def test_garbage_is_answered_or_ended_without_a_word_in_the_log(
    broker: BrokerProcess, garbage: bytes
) -> None:
    lines = len(broker.log.splitlines())
    with socket.create_connection(("127.0.0.1", broker.addresses.http_port)) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(garbage)
        ended_within(sock, WITHIN_S)
    assert ask(broker, "GET", "/health") == 200
    assert not [line for line in broker.log.splitlines()[lines:] if "http" in line]


def test_a_websocket_that_breaks_off_in_a_frame_leaves_nothing_behind(broker: BrokerProcess) -> None:
    for _ in range(50):
        with WebSocketConnection(broker.addresses.http_port) as connection:
            connection.open()
            connection.socket.sendall(b"\x82\xfe\x10\x00\x00\x00\x00\x00AMQP")
    with WebSocketConnection(broker.addresses.http_port) as connection:
        connection.socket.sendall(b"\xf3\x80\x00\x00\x00\x00")  # reserved bits, and an invalid opcode
        with contextlib.suppress(ConnectionEnded):
            ended_within(connection.socket, WITHIN_S)


# --- small requests that cost much --------------------------------------------------------------------------


CHUNK = b"1\r\nx\r\n"


def test_bodies_in_chunks_of_one_byte_hold_up_nobody(broker: BrokerProcess, old_friend: Bystander) -> None:
    """Clients need no credentials for this, and a read of 256 KiB holds 40,000 chunks: 400 connections made
    other clients wait for 7 s and more.
    """
    head = b"PUT /queue HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    clients = [socket.create_connection(("127.0.0.1", broker.addresses.http_port)) for _ in range(200)]
    longest = 0.0
    try:
        for client in clients:
            client.setblocking(False)
            with contextlib.suppress(OSError):
                client.send(head + CHUNK * 30_000)
        for _ in range(40):
            for client in clients:
                with contextlib.suppress(OSError):
                    client.send(CHUNK * 30_000)
            began = time.monotonic()
            old_friend.round_trip(10.0)
            longest = max(longest, time.monotonic() - began)
    finally:
        for client in clients:
            client.close()
    assert longest < 1.5


def test_websocket_frames_of_one_byte_take_little_memory(
    broker: BrokerProcess, old_friend: Bystander
) -> None:
    before = resident_mib(broker.pid)
    flow = raw.frame(raw.FLOW, raw.flow_fields())
    frames = b"".join(message(flow[place : place + 1]) for place in range(len(flow))) * 2_000
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(WebSocketConnection(broker.addresses.http_port)) for _ in range(10)]
        for client in clients:
            client.open()
            client.begin()
            client.socket.setblocking(False)
        for _ in range(20):
            for client in clients:
                with contextlib.suppress(OSError):
                    client.socket.send(frames)
            old_friend.round_trip(WITHIN_S)
    assert resident_mib(broker.pid) - before < GROWS_MIB_MAX
