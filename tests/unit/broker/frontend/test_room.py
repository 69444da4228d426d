"""Connections that are not open yet, or have shown no credential, make room for others."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.frontend.room import BEING_REFUSED_MAX
from storage.disk import LocalDisk
from tests.support import raw_amqp as raw
from tests.support.broker_thread import BrokerThread
from tests.support.quiet_clients import is_hung_up_on, silent_clients, still_open
from tests.support.raw_amqp import RawConnection, opened
from tests.support.sas import KEY_NAME, sas_token

CONNECTIONS = 2
ROOM = CONNECTIONS + BEING_REFUSED_MAX


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path, [], LocalDisk(), amqps_port=0, connections_max=CONNECTIONS) as broker:
        yield broker


@pytest.fixture
def displaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients do not keep their places from others of their network."""
    monkeypatch.setattr("broker.frontend.strangers.PROVING_S", 0.0)


@pytest.fixture
def displaced_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep them for as long as a test may take."""
    monkeypatch.setattr("broker.frontend.strangers.PROVING_S", 60.0)


@contextlib.contextmanager
def refused(port: int, login: bytes | None = None) -> Iterator[None]:
    """A client that the broker refuses because there are too many, and that stays."""
    with RawConnection(port) as client:
        client.open(login)
        assert raw.condition_of(client.read_until(raw.CLOSE)) == "amqp:resource-limit-exceeded"
        yield


@contextlib.contextmanager
def unclaimed(port: int, count: int) -> Iterator[list[RawConnection]]:
    """Clients that open their connection without a credential."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawConnection(port)) for _ in range(count)]
        for client in clients:
            client.open(raw.sasl_anonymous())
        yield clients


@contextlib.contextmanager
def opened_to(port: int, host: str, login: bytes) -> Iterator[RawConnection]:
    """A client that opens its connection to a host."""
    with RawConnection(port) as client:
        client.log_in(login)
        client.send(raw.AMQP_HEADER, raw.frame(raw.OPEN, ["raw", host]))
        assert client.read_bytes(8) == raw.AMQP_HEADER
        client.read_until(raw.OPEN)
        yield client


def was_asked_to_leave(client: RawConnection) -> bool:
    """Whether the broker closes the connection because others need its place."""
    return raw.condition_of(client.read_until(raw.CLOSE)) == "amqp:resource-limit-exceeded"


@pytest.mark.usefixtures("displaced_at_once")
def test_clients_that_do_not_open_their_connection_make_room_for_others(broker: BrokerThread) -> None:
    port = broker.addresses.amqp_port
    with silent_clients(port, ROOM) as clients, opened(port), opened(port):
        assert all(map(is_hung_up_on, clients[:2])), "the oldest give way"
        with refused(port):
            pass
        assert is_hung_up_on(clients[2])
        assert still_open(clients[3:]) == ROOM - 3


@pytest.mark.usefixtures("displaced_at_once")
def test_clients_that_were_refused_make_room_for_others(broker: BrokerThread) -> None:
    """They stay although they have been told why."""
    port = broker.addresses.amqp_port
    with opened(port), opened(port), contextlib.ExitStack() as stack:
        for _ in range(2 * BEING_REFUSED_MAX):
            stack.enter_context(refused(port))


@pytest.mark.usefixtures("displaced_at_once")
def test_clients_that_do_not_open_their_connection_give_way_before_later_handshakes(
    broker: BrokerThread,
) -> None:
    """Or clients that come at the same time would end each other's handshakes."""
    with (
        silent_clients(broker.addresses.amqp_port, ROOM) as clients,
        contextlib.ExitStack() as stack,
    ):
        clients[-1].sendall(raw.SASL_HEADER)
        assert clients[-1].recv(8) == raw.SASL_HEADER, "all are in before the first handshake"
        shaking: list[socket.socket] = []
        for client in clients[:3]:
            shaking += stack.enter_context(silent_clients(broker.addresses.amqps_port, 1))
            assert is_hung_up_on(client)
        assert (still_open(shaking), still_open(clients[3:])) == (3, ROOM - 3)


@pytest.mark.usefixtures("displaced_at_once")
def test_clients_without_a_credential_make_room_for_others(broker: BrokerThread) -> None:
    """Also if they do not leave when they are asked to."""
    with (
        unclaimed(broker.addresses.amqp_port, CONNECTIONS) as clients,
        contextlib.ExitStack() as stack,
    ):
        port = broker.addresses.amqp_port
        for client in clients:
            stack.enter_context(opened(port))
            assert was_asked_to_leave(client), "the oldest gives way"
        for _ in range(2 * BEING_REFUSED_MAX):
            stack.enter_context(refused(port))  # those with a credential stay


@pytest.mark.usefixtures("displaced_at_once")
def test_clients_without_a_credential_give_way_before_later_handshakes(broker: BrokerThread) -> None:
    with (
        unclaimed(broker.addresses.amqp_port, CONNECTIONS) as clients,
        silent_clients(broker.addresses.amqps_port, BEING_REFUSED_MAX) as shaking,
        silent_clients(broker.addresses.amqps_port, CONNECTIONS) as later,
    ):
        assert all(is_hung_up_on(client.socket) for client in clients)
        assert still_open(shaking + later) == ROOM


@pytest.mark.usefixtures("displaced_at_once")
def test_a_client_that_has_put_a_token_keeps_its_place(broker: BrokerThread) -> None:
    with (
        unclaimed(broker.addresses.amqp_port, CONNECTIONS) as (first, second),
    ):
        first.put_token(sas_token("sb://127.0.0.1/"), "sb://127.0.0.1/", 0)
        with opened(broker.addresses.amqp_port), refused(broker.addresses.amqp_port):
            assert was_asked_to_leave(second)
            first.begin(1)


@pytest.mark.usefixtures("displaced_late")
def test_a_client_has_the_time_to_put_its_token(broker: BrokerThread) -> None:
    """Others of its network that have none either do not take its place."""
    with (
        unclaimed(broker.addresses.amqp_port, CONNECTIONS) as clients,
        refused(broker.addresses.amqp_port, raw.sasl_anonymous()),
    ):
        for client in clients:
            client.begin()


@pytest.mark.usefixtures("displaced_late")
def test_a_login_takes_the_place_of_a_client_without_a_credential_at_once(broker: BrokerThread) -> None:
    with (
        unclaimed(broker.addresses.amqp_port, CONNECTIONS) as clients,
        opened(broker.addresses.amqp_port),
    ):
        assert was_asked_to_leave(clients[0])
        clients[1].begin()


@pytest.mark.usefixtures("displaced_late")
def test_a_crowd_of_one_network_makes_room_for_other_networks_at_once(broker: BrokerThread) -> None:
    with (
        silent_clients(broker.addresses.amqps_port, BEING_REFUSED_MAX) as shaking,
        unclaimed(broker.addresses.amqp_port, CONNECTIONS) as clients,
        RawConnection(broker.addresses.amqp_port, address="127.0.0.2") as other,
    ):
        assert is_hung_up_on(shaking[0]), "the room was full"
        other.open(raw.sasl_anonymous())
        assert was_asked_to_leave(clients[0]), "and so was the namespace"
        other.put_token(sas_token("sb://127.0.0.1/"), "sb://127.0.0.1/", 0)
        assert still_open(shaking[1:]) == BEING_REFUSED_MAX - 1


@pytest.mark.usefixtures("displaced_at_once")
def test_clients_without_a_credential_make_room_in_their_namespace(tmp_path: Path) -> None:
    """Those of other namespaces keep their places, and those that were refused take none."""
    orders = {"Name": "orders", "Settings": {"SasKey": "own", "ConnectionsMax": 1}}
    login = raw.sasl_plain(KEY_NAME, "own")
    with (
        BrokerThread(tmp_path, [], LocalDisk(), others=[orders]) as broker,
        unclaimed(broker.addresses.amqp_port, 1) as (of_the_first,),
    ):
        port = broker.addresses.amqp_port
        with (
            opened_to(port, "orders", raw.sasl_anonymous()) as waiting,
            opened_to(port, "orders", login) as served,
        ):
            assert was_asked_to_leave(waiting)
            served.begin()
            with opened_to(port, "orders", login) as one_more:
                assert was_asked_to_leave(one_more), "there is none without a credential"
                served.socket.close()
                with opened_to(port, "orders", login) as next_one:
                    next_one.begin()
        of_the_first.begin()


@pytest.mark.usefixtures("displaced_late")
def test_a_client_has_the_time_to_open_its_connection(broker: BrokerThread) -> None:
    with (
        silent_clients(broker.addresses.amqp_port, ROOM) as clients,
        silent_clients(broker.addresses.amqp_port, 1) as (late,),
    ):
        assert is_hung_up_on(late)
        assert still_open(clients) == ROOM
