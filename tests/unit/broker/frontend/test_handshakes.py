"""TLS handshakes and connections that are not open yet are bounded in time and, with all others, in
number."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.frontend.listener import BEING_REFUSED_MAX
from storage.disk import LocalDisk
from tests.support import raw_amqp as raw
from tests.support.broker_thread import BrokerThread
from tests.support.raw_amqp import SASL_HEADER, RawConnection, opened

WITHIN_S = 20.0
CONNECTIONS = 2
ROOM = CONNECTIONS + BEING_REFUSED_MAX


@contextlib.contextmanager
def silent_clients(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Clients that connect and say nothing."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S))
            for _ in range(count)
        ]


def is_hung_up_on(client: socket.socket) -> bool:
    """Whether the broker closes the connection. Raises TimeoutError if it does not."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@contextlib.contextmanager
def served_securely(port: int) -> Iterator[None]:
    """A client that the broker answers over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as client,
        context.wrap_socket(client) as secure,
    ):
        secure.sendall(SASL_HEADER)
        assert secure.recv(8) == SASL_HEADER
        yield


@contextlib.contextmanager
def refused(port: int) -> Iterator[None]:
    """A client that the broker refuses because there are too many, and that stays."""
    with RawConnection(port) as client:
        client.open()
        assert raw.condition_of(client.read_until(raw.CLOSE)) == "amqp:resource-limit-exceeded"
        yield


def still_open(clients: list[socket.socket]) -> int:
    """How many of these clients the broker has not hung up on."""
    count = 0
    for client in clients:
        client.setblocking(False)
        try:
            count += bool(client.recv(1))
        except BlockingIOError:
            count += 1
        except ConnectionResetError:
            pass
    return count


def test_clients_that_do_not_finish_their_handshake_make_room_for_others(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, [], LocalDisk(), amqps_port=0, connections_max=CONNECTIONS) as broker:
        ports = broker.addresses
        with silent_clients(ports.amqps_port, ROOM + 10) as clients:
            assert all(map(is_hung_up_on, clients[:10])), "the oldest give way"
            with served_securely(ports.amqps_port), opened(ports.amqp_port):
                assert all(map(is_hung_up_on, clients[10:12]))
                assert still_open(clients[12:]) == ROOM - 2
            began = time.monotonic()
    assert time.monotonic() - began < WITHIN_S, "they do not hold up the stop"


def test_clients_that_do_not_open_their_connection_make_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.frontend.listener.UNOPENED_S", 0.0)
    with BrokerThread(tmp_path, [], LocalDisk(), connections_max=CONNECTIONS) as broker:
        port = broker.addresses.amqp_port
        with silent_clients(port, ROOM) as clients, opened(port), opened(port):
            assert all(map(is_hung_up_on, clients[:2])), "the oldest give way"
            with refused(port):
                pass
            assert is_hung_up_on(clients[2])
            assert still_open(clients[3:]) == ROOM - 3


def test_clients_that_were_refused_make_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay although they have been told why."""
    monkeypatch.setattr("broker.frontend.listener.UNOPENED_S", 0.0)
    with (
        BrokerThread(tmp_path, [], LocalDisk(), connections_max=1) as broker,
        contextlib.ExitStack() as stack,
    ):
        port = broker.addresses.amqp_port
        stack.enter_context(opened(port))
        for _ in range(2 * BEING_REFUSED_MAX):
            stack.enter_context(refused(port))


def test_clients_that_do_not_open_their_connection_give_way_before_handshakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or clients that come at the same time would end each other's handshakes."""
    monkeypatch.setattr("broker.frontend.listener.UNOPENED_S", 0.0)
    with (
        BrokerThread(tmp_path, [], LocalDisk(), amqps_port=0, connections_max=CONNECTIONS) as broker,
        silent_clients(broker.addresses.amqp_port, ROOM) as clients,
        contextlib.ExitStack() as stack,
    ):
        shaking: list[socket.socket] = []
        for client in clients[:3]:
            shaking += stack.enter_context(silent_clients(broker.addresses.amqps_port, 1))
            assert is_hung_up_on(client)
        assert (still_open(shaking), still_open(clients[3:])) == (3, ROOM - 3)


def test_a_client_has_the_time_to_open_its_connection(tmp_path: Path) -> None:
    with (
        BrokerThread(tmp_path, [], LocalDisk(), connections_max=CONNECTIONS) as broker,
        silent_clients(broker.addresses.amqp_port, ROOM) as clients,
        silent_clients(broker.addresses.amqp_port, 1) as (late,),
    ):
        assert is_hung_up_on(late)
        assert still_open(clients) == ROOM


def test_a_client_that_does_not_finish_its_handshake_in_time_is_hung_up_on(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, [], LocalDisk(), amqps_port=0, connection_open_timeout_ms=200) as broker:
        with silent_clients(broker.addresses.amqps_port, 1) as (client,):
            assert is_hung_up_on(client)
        with served_securely(broker.addresses.amqps_port):
            pass
