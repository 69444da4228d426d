"""Clients that vanish at every stage, as happens in any network. The broker must not log this as an error."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable

import pytest

from protocol.codec import encode
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message
from tests.support.broker_process import Addresses, BrokerProcess
from tests.support.raw_amqp import RawConnection, opened
from tests.support.raw_websocket import WebSocketConnection, handshake
from tests.support.scrapes import metrics

TIMES = 10
"""How often each client connects and vanishes."""
WITHIN_S = 15.0
_CONNECTIONS = re.compile(r"^partibus_active_connections\S* (\S+)$", re.MULTILINE)

Stage = Callable[[Addresses], socket.socket]
"""Brings a connection to one stage; gives the socket to reset."""


def connected(addresses: Addresses) -> socket.socket:
    return RawConnection(addresses.amqp_port).socket


def within_sasl(addresses: Addresses) -> socket.socket:
    connection = RawConnection(addresses.amqp_port)
    connection.send(raw.SASL_HEADER)
    assert connection.read_bytes(8) == raw.SASL_HEADER
    return connection.socket


def within_a_frame(addresses: Addresses) -> socket.socket:
    connection = opened(addresses.amqp_port)
    connection.attach_sender(0, "target")
    whole = raw.frame(raw.TRANSFER, raw.transfer_fields(0, 0), message(body=[bytes(10_000)]))
    connection.send(whole[: len(whole) // 2])
    return connection.socket


def within_a_message(addresses: Addresses) -> socket.socket:
    connection = opened(addresses.amqp_port)
    connection.attach_sender(0, "target")
    connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, 0, more=True), message(body=[bytes(10_000)]))
    return connection.socket


def with_deliveries_under_way(addresses: Addresses) -> socket.socket:
    """Messages sent but not yet acknowledged, messages locked but not yet settled, and more output than the
    client has read.
    """
    connection = opened(addresses.amqp_port)
    connection.attach_sender(0, "target")
    connection.attach_receiver(1, "target")
    connection.send(
        *(
            raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), message(body=[b"x" * 500]))
            for number in range(50)
        )
    )
    connection.send_frame(raw.FLOW, raw.flow_fields(1, 0, 1_000))
    connection.read_until(raw.TRANSFER)
    connection.send(
        *(
            raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), message(body=[b"x" * 500]))
            for number in range(50, 90)
        )
    )
    return connection.socket


def tls_connected(addresses: Addresses) -> socket.socket:
    return socket.create_connection(("127.0.0.1", addresses.amqps_port))


def within_the_tls_handshake(addresses: Addresses) -> socket.socket:
    sock = tls_connected(addresses)
    sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    return sock


def tls_with_plain_text(addresses: Addresses) -> socket.socket:
    sock = tls_connected(addresses)
    sock.sendall(raw.SASL_HEADER)
    return sock


def tls_that_distrusts_the_certificate(addresses: Addresses) -> socket.socket:
    sock = tls_connected(addresses)
    with contextlib.suppress(ssl.SSLError):
        ssl.create_default_context().wrap_socket(sock.dup(), server_hostname="localhost").close()
    return sock


def over_tls(addresses: Addresses) -> socket.socket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    secured = context.wrap_socket(tls_connected(addresses))
    secured.sendall(raw.sasl_plain() + raw.AMQP_HEADER + raw.frame(raw.OPEN, raw.open_fields()))
    assert secured.recv(100)
    return secured


def within_the_websocket_handshake(addresses: Addresses) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", addresses.http_port))
    sock.sendall(handshake({})[:-10])
    return sock


def over_a_websocket(addresses: Addresses) -> socket.socket:
    connection = WebSocketConnection(addresses.http_port)
    connection.open()
    connection.begin()
    connection.attach_receiver(1, "target")
    connection.send(raw.frame(raw.FLOW, raw.flow_fields(1, 0, 1_000)), encode("half a frame")[:3])
    return connection.socket


def within_an_http_request(addresses: Addresses) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", addresses.http_port))
    sock.sendall(b"PUT /target HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n<entry")
    return sock


STAGES: list[Stage] = [
    connected,
    within_sasl,
    within_a_frame,
    within_a_message,
    with_deliveries_under_way,
    tls_connected,
    within_the_tls_handshake,
    tls_with_plain_text,
    tls_that_distrusts_the_certificate,
    over_tls,
    within_the_websocket_handshake,
    over_a_websocket,
    within_an_http_request,
]


def connections(addresses: Addresses) -> float:
    found = _CONNECTIONS.search(metrics(addresses, WITHIN_S))
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("resets", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_a_client_that_is_suddenly_gone_is_no_trouble(
    broker: BrokerProcess, stage: Stage, resets: bool
) -> None:
    before, lines = connections(broker.addresses), len(broker.log.splitlines())
    for _ in range(TIMES):
        with stage(broker.addresses) as sock:
            if resets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    deadline = time.monotonic() + WITHIN_S
    while connections(broker.addresses) > before:
        assert time.monotonic() < deadline, "the broker keeps connections of clients that are gone"
        time.sleep(0.05)
    said = [
        line
        for line in broker.log.splitlines()[lines:]
        if '"logger": "storage' not in line and '"logger": "partition' not in line
    ]
    assert said == [], "nobody needs to be told of this"
