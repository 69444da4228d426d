"""TLS handshakes are bounded in time and, with all connections, in number."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.frontend.room import BEING_REFUSED_MAX
from storage.disk import LocalDisk
from tests.support.broker_thread import BrokerThread
from tests.support.quiet_clients import WITHIN_S, is_hung_up_on, silent_clients, still_open
from tests.support.raw_amqp import SASL_HEADER, opened

CONNECTIONS = 2
ROOM = CONNECTIONS + BEING_REFUSED_MAX


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


def test_clients_that_do_not_finish_their_handshake_make_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.frontend.strangers.PROVING_S", 0.0)
    with BrokerThread(tmp_path, [], LocalDisk(), amqps_port=0, connections_max=CONNECTIONS) as broker:
        ports = broker.addresses
        with silent_clients(ports.amqps_port, ROOM + 10) as clients:
            assert all(map(is_hung_up_on, clients[:10])), "the oldest give way"
            with served_securely(ports.amqps_port), opened(ports.amqp_port):
                assert all(map(is_hung_up_on, clients[10:12]))
                assert still_open(clients[12:]) == ROOM - 2
            began = time.monotonic()
    assert time.monotonic() - began < WITHIN_S, "they do not hold up the stop"


def test_a_client_that_does_not_finish_its_handshake_in_time_is_hung_up_on(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, [], LocalDisk(), amqps_port=0, connection_open_timeout_ms=200) as broker:
        with silent_clients(broker.addresses.amqps_port, 1) as (client,):
            assert is_hung_up_on(client)
        with served_securely(broker.addresses.amqps_port):
            pass
