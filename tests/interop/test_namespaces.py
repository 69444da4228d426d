"""Several namespaces in one broker, as official clients and plain HTTP clients see them."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)
from azure.servicebus.management import ServiceBusAdministrationClient
from proton import ConnectionException, Message
from proton.utils import BlockingConnection

from protocol.codec import Symbol
from tests.support import raw_amqp
from tests.support.azure_client import azure_client
from tests.support.broker_process import KEY, KEY_NAME, BrokerDied, BrokerProcess, queue
from tests.support.http_entries import queue_body
from tests.support.rest_client import RestClient
from tests.support.sas import sas_token
from tests.support.waiting import until

OWN, SECOND = "b3duIGtleQ==", "c2Vjb25k"
REFUSED = (ServiceBusAuthorizationError, ServiceBusAuthenticationError, ServiceBusConnectionError)
BODY = b"hello"


def bills(**settings: object) -> dict[str, object]:
    """The second namespace."""
    return {
        "Name": "bills",
        "HostNames": ["bus.localhost"],
        "Queues": [queue("same"), queue("onward", ForwardTo="same")],
        "Settings": {"SasKey": OWN, "SasSecondaryKey": SECOND, **settings},
    }


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every name below `localhost` lead to this machine, as many resolvers do."""
    resolve = socket.getaddrinfo

    def local(host: Any, *more: Any, **given: Any) -> Any:
        return resolve(
            "127.0.0.1" if isinstance(host, str) and host.endswith(".localhost") else host, *more, **given
        )

    monkeypatch.setattr(socket, "getaddrinfo", local)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with two namespaces that have a queue of the same name."""
    with BrokerProcess(
        tmp_path_factory.mktemp("broker"),
        [queue("same"), queue("mine")],
        others=[bills()],
        environment={"PARTIBUS_CERTIFICATE_NAMES": "bills.localhost,sbemulatorns.localhost"},
    ) as broker:
        yield broker


def client_of(broker: BrokerProcess, host: str, key: str, **options: Any) -> ServiceBusClient:
    given = broker.addresses.connection_string(host, key=key)
    return azure_client(given, retry_total=0, **options)


def admin_of(broker: BrokerProcess, host: str, key: str) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        f"Endpoint=sb://{host}:{broker.addresses.http_port};SharedAccessKeyName={KEY_NAME};"
        f"SharedAccessKey={key}",
        connection_verify=str(broker.data_dir / "tls" / "ca.pem"),
        retry_total=0,
    )


def send(client: ServiceBusClient, name: str, *bodies: str) -> None:
    with client.get_queue_sender(name) as sender:
        sender.send_messages([ServiceBusMessage(body) for body in bodies])


def drain(client: ServiceBusClient, name: str, count: int) -> list[str]:
    """Receive this many messages, and see that there are no more."""
    found: list[str] = []
    with client.get_queue_receiver(name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        while len(found) < count and (some := receiver.receive_messages(count, max_wait_time=10)):
            found += map(str, some)
        assert receiver.peek_messages() == []
    return found


def test_entities_of_the_same_name_are_different_entities(both: BrokerProcess) -> None:
    with client_of(both, "127.0.0.1", KEY) as first, client_of(both, "bills.localhost", OWN) as second:
        send(first, "same", "one", "two")
        send(second, "same", "three")
        send(second, "onward", "four")
        assert sorted(drain(second, "same", 2)) == ["four", "three"]
        assert sorted(drain(first, "same", 2)) == ["one", "two"]
    with client_of(both, "bus.localhost", SECOND) as second:
        send(second, "same", "by another host name, with the second key")
        assert drain(second, "same", 1) == ["by another host name, with the second key"]


@pytest.mark.parametrize(
    ("host", "key"), [("127.0.0.1", OWN), ("sbemulatorns.localhost", OWN), ("bills.localhost", KEY)]
)
def test_the_key_of_another_namespace_is_refused(both: BrokerProcess, host: str, key: str) -> None:
    with client_of(both, host, key) as client, pytest.raises(REFUSED):
        send(client, "same", "refused")
    with admin_of(both, host, key) as admin, pytest.raises(ClientAuthenticationError):
        admin.get_queue("same")


def test_each_namespace_is_administered_for_itself(both: BrokerProcess) -> None:
    with admin_of(both, "127.0.0.1", KEY) as first, admin_of(both, "bills.localhost", OWN) as second:
        assert (first.get_namespace_properties().name, second.get_namespace_properties().name) == (
            "sbemulatorns",
            "bills",
        )
        second.create_queue("new", max_delivery_count=7)
        assert [each.name for each in second.list_queues()] == ["new", "onward", "same"]
        assert [each.name for each in first.list_queues()] == ["mine", "same"]
        second.delete_queue("new")
    health = json.loads(urllib.request.urlopen(f"{both.addresses.http_url}/health", timeout=10).read())
    assert health["namespace"] == "sbemulatorns" and sorted(health["entities"]) == ["mine", "same"]
    assert list(health["other_namespaces"]) == ["bills"]
    assert sorted(health["other_namespaces"]["bills"]["entities"]) == ["onward", "same"]
    text = urllib.request.urlopen(f"{both.addresses.http_url}/metrics", timeout=10).read().decode()
    for name in ("sbemulatorns", "bills"):
        assert f'partibus_entity_available{{namespace="{name}",entity="same"}} 1.0' in text


def test_a_token_is_for_one_namespace_even_if_keys_are_the_same(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, [queue("same")], others=[bills(SasKey=KEY)]) as broker:
        port = broker.addresses.http_port
        with RestClient(port, host="bills.localhost") as rest, RestClient(port) as other:
            rest.send("/same", BODY)
            assert other.receive("/same").status == 204
            for host, client in (("127.0.0.1", rest), ("bills.localhost", other), ("bus", rest)):
                token = sas_token(f"http://{host}:{port}/")
                assert client.ask("POST", "/same/messages", BODY, token=token).status == 401
            assert rest.receive("/same", method="DELETE").body == BODY
        for hostname, audience, outcome in (
            ("bills.localhost", "amqp://bills.localhost/same", 202),
            ("bills.localhost", "amqp://localhost/same", 401),
            ("localhost", "amqp://bills.localhost/same", 401),
            ("localhost", "amqp://anything/same", 202),
        ):
            assert put_token(broker, hostname, audience) == outcome


def put_token(broker: BrokerProcess, hostname: str, audience: str) -> int:
    """The status of a token for this audience, on a connection to this host."""
    connection = BlockingConnection(
        broker.addresses.amqp_url, virtual_host=hostname, allowed_mechs="ANONYMOUS", timeout=20
    )
    try:
        answers = connection.create_receiver("$cbs", credit=1)
        sender = connection.create_sender("$cbs")
        about = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
        sender.send(Message(body=sas_token(audience), properties=about, reply_to="answers"))
        properties = answers.receive(timeout=20).properties
        assert properties is not None
        status: int = properties["status-code"]
        return status
    finally:
        connection.close()


def login(broker: BrokerProcess, hostname: str | None, key: str) -> BlockingConnection:
    return BlockingConnection(
        broker.addresses.amqp_url,
        virtual_host=hostname,
        user=KEY_NAME,
        password=key,
        allowed_mechs="PLAIN",
        sasl_enabled=True,
        timeout=20,
    )


def test_a_login_is_checked_in_the_namespace_of_its_host(both: BrokerProcess) -> None:
    for hostname, key in (("bills", OWN), ("bus.localhost", OWN), ("localhost", KEY), (None, KEY)):
        connection = login(both, hostname, key)
        receiver = connection.create_receiver("same")
        assert connection.conn is not None
        assert connection.conn.remote_container == ("bills" if key == OWN else "sbemulatorns")
        receiver.close()  # type: ignore[no-untyped-call]
        connection.close()
    for hostname, key in (("bills", KEY), ("localhost", OWN), ("bills", "no key")):
        with pytest.raises(ConnectionException):
            login(both, hostname, key).create_receiver("same")


@pytest.mark.parametrize("mechanism", ["MSSBCBS", "ANONYMOUS"])
def test_the_host_of_sasl_says_where_a_client_without_login_is(both: BrokerProcess, mechanism: str) -> None:
    """Its open may name another host that means no namespace in particular, and none that means another."""
    init = raw_amqp.SASL_HEADER + raw_amqp.sasl_frame(
        raw_amqp.SASL_INIT, [Symbol(mechanism), b"", "bills.localhost"]
    )
    for hostname, refused in (("localhost", False), ("sbemulatorns", True)):
        with socket.create_connection(("127.0.0.1", both.addresses.amqp_port), 20) as plain:
            open_frame = raw_amqp.frame(raw_amqp.OPEN, ["raw", hostname])
            plain.sendall(init + raw_amqp.AMQP_HEADER + open_frame + raw_amqp.frame(raw_amqp.CLOSE, []))
            heard = b""
            while more := plain.recv(4_096):
                heard += more
        assert (b"this connection is to the namespace 'bills'" in heard) is refused


def test_an_address_does_not_lead_into_another_namespace(both: BrokerProcess) -> None:
    connection = login(both, "bills", OWN)
    connection.create_sender("amqp://bills.localhost/same").close()  # type: ignore[no-untyped-call]
    # as a proxy calls it:
    connection.create_sender("amqp://localhost/same").close()  # type: ignore[no-untyped-call]
    with pytest.raises(Exception, match="namespace 'sbemulatorns', and this connection is to 'bills'"):
        connection.create_sender("amqp://sbemulatorns.localhost/same")
    connection.close()


def test_the_name_of_a_tls_handshake_counts(both: BrokerProcess) -> None:
    context = ssl.create_default_context(cafile=str(both.data_dir / "tls" / "ca.pem"))
    context.check_hostname = False  # the first label of a namespace is not in the certificate
    token = sas_token("https://bills.localhost/", key=OWN)

    def ask(server_name: str, host: str) -> bytes:
        with (
            socket.create_connection(("127.0.0.1", both.addresses.http_port), 20) as plain,
            context.wrap_socket(plain, server_hostname=server_name) as secure,
        ):
            head = (
                f"GET /same HTTP/1.1\r\nHost: {host}\r\nAuthorization: {token}\r\nConnection: close\r\n\r\n"
            )
            secure.sendall(head.encode())
            return secure.recv(64)

    assert ask("bills.localhost", "bills.localhost").startswith(b"HTTP/1.1 200")
    assert ask("proxy", "bills.localhost").startswith(b"HTTP/1.1 200")
    assert ask("sbemulatorns", "bills.localhost").startswith(b"HTTP/1.1 421")
    strict = ssl.create_default_context(cafile=str(both.data_dir / "tls" / "ca.pem"))
    with (
        socket.create_connection(("127.0.0.1", both.addresses.http_port), 20) as plain,
        strict.wrap_socket(plain, server_hostname="bus.localhost"),  # a host name of a namespace is
    ):
        pass


@pytest.mark.parametrize(
    ("server_name", "key", "outcome"),
    [("bills", OWN, 0), ("bills", KEY, 1), ("sbemulatorns", OWN, 1), ("proxy", OWN, 0)],
)
def test_the_name_of_the_handshake_says_where_an_amqp_client_logs_in(
    both: BrokerProcess, server_name: str, key: str, outcome: int
) -> None:
    """Who has named no namespace by then may log in to any, and the open says which."""
    context = ssl.create_default_context(cafile=str(both.data_dir / "tls" / "ca.pem"))
    context.check_hostname = False
    with (
        socket.create_connection(("127.0.0.1", both.addresses.amqps_port), 20) as plain,
        context.wrap_socket(plain, server_hostname=server_name) as secure,
    ):
        secure.sendall(raw_amqp.sasl_plain(password=key))
        heard = b""
        while b"SD" not in heard and (more := secure.recv(4_096)):  # sasl-outcome (§5.3.3.6)
            heard += more
    assert heard.partition(b"SD")[2].endswith(bytes([outcome]))


def test_one_namespace_is_throttled_and_the_other_is_not(tmp_path: Path) -> None:
    settings = {"Tier": "standard", "ThrottleCredits": 20}
    with BrokerProcess(tmp_path, [queue("same")], others=[bills(**settings)]) as broker:
        with (
            client_of(broker, "bills.localhost", OWN) as slow,
            client_of(broker, "127.0.0.1", KEY) as quick,
            slow.get_queue_sender("same") as throttled,
            quick.get_queue_sender("same") as free,
        ):
            refused = 0
            for _ in range(100):
                free.send_messages([ServiceBusMessage("x")] * 10)
                try:
                    throttled.send_messages([ServiceBusMessage("x")] * 10)
                except ServiceBusServerBusyError as busy:
                    assert "Error code: 50009" in str(busy)
                    refused += 1
            assert refused > 0
            assert len(drain(quick, "same", 1_000)) == 1_000
        metrics = urllib.request.urlopen(f"{broker.addresses.http_url}/metrics", timeout=10).read().decode()
        counts = {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in metrics.splitlines()
            if line.startswith("partibus_throttled_requests_total{")
        }
        name = 'partibus_throttled_requests_total{{namespace="{}",entity="same"}}'
        assert counts[name.format("bills")] >= refused and counts[name.format("sbemulatorns")] == 0


def test_quotas_are_those_of_the_namespace(tmp_path: Path) -> None:
    settings = {"EntitiesMax": 3, "MessageKbMax": 64, "ConnectionsMax": 1}
    with BrokerProcess(tmp_path, [], others=[bills(**settings)]) as broker:
        port = broker.addresses.http_port
        with RestClient(port, host="bills.localhost", key=OWN) as second, RestClient(port) as first:
            second.create("/third")
            answer = second.ask("PUT", "/fourth", queue_body("", "QueueDescription"))
            assert answer.status == 403 and b"the limit is 3" in answer.body
            for name in ("one", "two", "three", "four"):
                first.create(f"/{name}")
            assert second.ask("POST", "/third/messages", b"x" * 70_000).status == 403
            assert first.ask("POST", "/one/messages", b"x" * 70_000).status == 201
        kept = login(broker, "bills", OWN)
        with pytest.raises(ConnectionException, match="ConnectionsQuotaExceeded"):
            login(broker, "bills", OWN).create_receiver("same")
        login(broker, "localhost", KEY).close()
        kept.close()


async def test_keys_of_a_namespace_are_rotated_in_their_file(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(OWN)
    other = bills()
    other["Settings"] = {"SasKeyFile": str(key)}
    with BrokerProcess(tmp_path / "broker", [queue("same")], others=[other]) as broker:
        with client_of(broker, "bills.localhost", OWN) as client, client.get_queue_sender("same") as sender:
            sender.send_messages(ServiceBusMessage("with the first key"))
            key.write_text(SECOND)
            await until(lambda: "keys.changed" in broker.log)
            with pytest.raises(REFUSED):
                sender.send_messages(ServiceBusMessage("with a key that is no longer in force"))
        with client_of(broker, "bills.localhost", SECOND) as client:
            assert drain(client, "same", 1) == ["with the first key"]
        with client_of(broker, "127.0.0.1", KEY) as client:
            send(client, "same", "with the key of the first namespace")
        assert OWN not in broker.log and SECOND not in broker.log


def rest_of(broker: BrokerProcess, host: str, key: str) -> RestClient:
    return RestClient(broker.addresses.http_port, host=host, key=key)


def test_a_restart_keeps_both(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, [queue("same")], others=[bills()]) as broker:
        for number, restart in enumerate((broker.terminate, broker.kill)):
            with rest_of(broker, "127.0.0.1", KEY) as first, rest_of(broker, "bills", OWN) as second:
                first.send("/same", f"first {number}")
                second.send("/same", f"second {number}")
            restart()
            broker.start()
        with rest_of(broker, "127.0.0.1", KEY) as first, rest_of(broker, "bills", OWN) as second:
            for client, name in ((first, "first"), (second, "second")):
                found = {client.receive("/same", method="DELETE").body.decode() for _ in range(2)}
                assert found == {f"{name} 0", f"{name} 1"}
                assert client.receive("/same").status == 204


def test_a_namespace_that_leaves_the_file_is_kept_and_cannot_become_the_first(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, [queue("same")], others=[bills()]) as broker:
        with rest_of(broker, "bills", OWN) as second:
            second.send("/same", "kept")
        config = json.loads(broker.config_path.read_text())
        namespaces = config["UserConfig"]["Namespaces"]

        def restart(*kept: object) -> None:
            broker.terminate()
            broker.config_path.write_text(json.dumps({"UserConfig": {"Namespaces": kept}}))
            broker.start()

        restart(namespaces[0])
        assert '"namespace": "bills"' in broker.log and "namespace.not_served" in broker.log
        with rest_of(broker, "bills", KEY) as first:
            assert first.receive("/same").status == 204  # a name that means none in particular any more
        with pytest.raises(BrokerDied, match="it must not take the place of the first one"):
            restart({**namespaces[1], "Settings": {}})
        restart(*namespaces)
        with rest_of(broker, "bills", OWN) as second:
            assert second.receive("/same", method="DELETE").body == b"kept"
