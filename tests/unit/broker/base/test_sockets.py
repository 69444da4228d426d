"""Listening on every address of a host, all on one port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.base import sockets
from broker.base.sockets import WrongHost, address_text, addresses_text, listen
from storage.disk import LocalDisk
from tests.support.broker_thread import BrokerThread
from tests.support.raw_amqp import SASL_HEADER

BOTH = ("127.0.0.1", "127.0.0.2")
"""Two addresses that exist on every Linux. They stand for 127.0.0.1 and ::1."""


@pytest.fixture
def host_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host `two` has both addresses, as `localhost` usually has; no address of `none` is on this
    machine."""

    async def getaddrinfo(host: str, port: int, **given: object) -> list[tuple[object, ...]]:
        addresses = {"two": BOTH, "half": ("192.0.2.1", "127.0.0.1"), "none": ("192.0.2.1",)}[host]
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in (*addresses, addresses[0])
        ]

    monkeypatch.setattr(
        asyncio.BaseEventLoop,
        "getaddrinfo",
        lambda loop, host, port, **given: getaddrinfo(host, port, **given),
    )


@contextlib.contextmanager
def closing(listeners: list[socket.socket]) -> Iterator[list[socket.socket]]:
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.close()


@pytest.mark.usefixtures("host_of_two")
async def test_all_addresses_of_a_host_get_one_port_also_where_any_free_one_will_do() -> None:
    with closing(await listen("two", 0, 5)) as listeners:
        (port,) = {listener.getsockname()[1] for listener in listeners}
        assert port and addresses_text(listeners) == f"127.0.0.1:{port}, 127.0.0.2:{port}"
        for address in BOTH:
            socket.create_connection((address, port), timeout=5).close()


@pytest.mark.usefixtures("host_of_two")
async def test_a_port_that_is_free_on_one_address_and_taken_on_the_next_is_tried_with_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, taken = sockets._listen_on_one, list[socket.socket]()

    def first_come(family: int, address: tuple[object, ...], backlog: int) -> socket.socket:
        if address[0] == BOTH[1] and len(taken) < 3:  # another process takes the port first
            taken.append(real(family, address, backlog))
        return real(family, address, backlog)

    monkeypatch.setattr(sockets, "_listen_on_one", first_come)
    with closing(taken), closing(await listen("two", 0, 5)) as listeners:
        (port,) = {listener.getsockname()[1] for listener in listeners}
        assert len(taken) == 3 and port not in {listener.getsockname()[1] for listener in taken}


@pytest.mark.usefixtures("host_of_two")
async def test_a_port_that_is_taken_is_an_error_that_names_it_and_leaves_no_socket_behind() -> None:
    with socket.create_server((BOTH[1], 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.2:{port}: Address already in use"):
            await listen("two", port, 5)
        socket.create_server((BOTH[0], port)).close()


@pytest.mark.usefixtures("host_of_two")
async def test_an_address_that_is_not_this_machines_is_left_out_unless_it_is_the_only_one() -> None:
    with closing(await listen("half", 0, 5)) as listeners:
        assert [listener.getsockname()[0] for listener in listeners] == ["127.0.0.1"]
    with pytest.raises(WrongHost, match=r"192\.0\.2\.1:0: "):
        await listen("none", 0, 5)


async def test_what_can_be_no_name_is_a_wrong_host() -> None:
    with pytest.raises(WrongHost, match=r"no address is found for 'a\.\.b'"):
        await listen("a..b", 0, 5)


def test_the_broker_serves_on_all_addresses_of_its_host_and_names_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listen_on_both(host: str, port: int, backlog: int) -> list[socket.socket]:
        return sockets._listen_on([(int(socket.AF_INET), (address, port)) for address in BOTH], port, backlog)

    monkeypatch.setattr("broker.frontend.ports.listen", listen_on_both)
    monkeypatch.setattr("broker.http.server.listen", listen_on_both)
    with BrokerThread(tmp_path, [], LocalDisk()) as running:
        amqp, http = running.addresses.amqp_port, running.addresses.http_port
        assert running.broker.addresses == {
            "amqp": f"127.0.0.1:{amqp}, 127.0.0.2:{amqp}",
            "http": f"127.0.0.1:{http}, 127.0.0.2:{http}",
        }
        for address in BOTH:
            with socket.create_connection((address, amqp), timeout=10) as client:
                client.sendall(SASL_HEADER)
                assert client.recv(8, socket.MSG_WAITALL) == SASL_HEADER
            with urllib.request.urlopen(f"http://{address}:{http}/health", timeout=10) as answer:
                assert answer.status == 200


def test_an_address_reads_as_in_a_url() -> None:
    assert (address_text(("127.0.0.1", 1)), address_text(("::1", 2, 0, 0))) == ("127.0.0.1:1", "[::1]:2")
