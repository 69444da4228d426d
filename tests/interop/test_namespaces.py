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
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, TransportType
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient
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
from tests.interop.programs import run_node
from tests.support import raw_amqp
from tests.support.amqp_messages import message
from tests.support.azure_client import aio_client, azure_client
from tests.support.broker_process import KEY, KEY_NAME, BrokerDied, BrokerProcess, queue
from tests.support.command_line import check
from tests.support.http_entries import queue_body
from tests.support.logs import flip
from tests.support.rest_client import RestClient
from tests.support.sas import sas_token
from tests.support.transactions import coordinator_attach, declare, discharge, state_of
from tests.support.waiting import until

OWN, SECOND = "b3duIGtleQ==", "c2Vjb25k"
REFUSED = (ServiceBusAuthorizationError, ServiceBusAuthenticationError, ServiceBusConnectionError)
BODY = b"hello"
APPLICATION, APPLICATION_OF_FIRST, APPLICATION_OF_BILLS = "application", "Zmlyc3Q=", "YmlsbHM="
"""A key of an entity: its name, and what it is in each of two namespaces."""
KEY_FILE = "key"
OTHERS = ["bills", "rotated", "slow", "small", "twin"]


def application(key: str) -> list[dict[str, object]]:
    """The authorization rules of an entity that one application may send to, with this key."""
    return [{"KeyName": APPLICATION, "PrimaryKey": key, "Rights": ["Send"]}]


def bills() -> dict[str, object]:
    """The second namespace."""
    return {
        "Name": "bills",
        "HostNames": ["bus.localhost"],
        "Queues": [
            queue("same", PartitionCount=1, AuthorizationRules=application(APPLICATION_OF_BILLS)),
            queue("onward", PartitionCount=1, ForwardTo="same"),
            queue("js"),
        ],
        "Settings": {"SasKey": OWN, "SasSecondaryKey": SECOND},
    }


def further(name: str, **settings: object) -> dict[str, object]:
    """One more namespace."""
    return {"Name": name, "Queues": [queue("same")], "Settings": {"SasKey": OWN, **settings}}


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
    """A broker with two namespaces that have a queue of the same name, and further ones for single tests."""
    folder = tmp_path_factory.mktemp("broker")
    (folder / KEY_FILE).write_text(OWN)
    rotated = further("rotated", SasKeyFile=str(folder / KEY_FILE))
    del rotated["Settings"]["SasKey"]  # type: ignore[attr-defined]
    with BrokerProcess(
        folder,
        [queue("same", AuthorizationRules=application(APPLICATION_OF_FIRST)), queue("mine"), queue("js")],
        others=[
            bills(),
            further("twin", SasKey=KEY),
            further("slow", Tier="standard", ThrottleCredits=20),
            further("small", EntitiesMax=3, MessageKbMax=64, ConnectionsMax=1),
            rotated,
        ],
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


def rest_of(broker: BrokerProcess, host: str, key: str) -> RestClient:
    return RestClient(broker.addresses.http_port, host=host, key=key)


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
        assert [each.name for each in second.list_queues()] == ["js", "new", "onward", "same"]
        assert [each.name for each in first.list_queues()] == ["js", "mine", "same"]
        second.delete_queue("new")
    health = json.loads(urllib.request.urlopen(f"{both.addresses.http_url}/health", timeout=10).read())
    assert health["namespace"] == "sbemulatorns" and sorted(health["entities"]) == ["js", "mine", "same"]
    assert sorted(health["other_namespaces"]) == OTHERS
    assert sorted(health["other_namespaces"]["bills"]["entities"]) == ["js", "onward", "same"]
    text = urllib.request.urlopen(f"{both.addresses.http_url}/metrics", timeout=10).read().decode()
    for name in ("sbemulatorns", "bills"):
        assert f'partibus_entity_available{{namespace="{name}",entity="same"}} 1.0' in text


def test_a_token_is_for_one_namespace_even_if_keys_are_the_same(both: BrokerProcess) -> None:
    port = both.addresses.http_port
    with RestClient(port, host="twin.localhost") as rest, RestClient(port) as other:
        rest.send("/same", BODY)
        assert other.receive("/same").status == 204
        for host, client in (("127.0.0.1", rest), ("twin.localhost", other), ("twins", rest)):
            token = sas_token(f"http://{host}:{port}/")
            assert client.ask("POST", "/same/messages", BODY, token=token).status == 401
        assert rest.receive("/same", method="DELETE").body == BODY
    for hostname, audience, outcome in (
        ("twin.localhost", "amqp://twin.localhost/same", 202),
        ("twin.localhost", "amqp://localhost/same", 401),
        ("localhost", "amqp://twin.localhost/same", 401),
        ("localhost", "amqp://anything/same", 202),
    ):
        assert put_token(both, hostname, audience) == outcome


def test_a_key_of_an_entity_opens_nothing_in_another_namespace(both: BrokerProcess) -> None:
    """Even if an entity of the same name there has a key of the same name."""
    port = both.addresses.http_port
    for host, own, foreign in (
        ("127.0.0.1", APPLICATION_OF_FIRST, APPLICATION_OF_BILLS),
        ("bills.localhost", APPLICATION_OF_BILLS, APPLICATION_OF_FIRST),
    ):
        for key, status in ((own, 201), (foreign, 401)):
            token = sas_token(f"http://{host}:{port}/same", key_name=APPLICATION, key=key)
            with RestClient(port, host=host) as rest:
                assert rest.ask("POST", "/same/messages", BODY, token=token).status == status, (host, key)
        with rest_of(both, host, OWN if host == "bills.localhost" else KEY) as rest:
            assert rest.receive("/same", method="DELETE").body == BODY
            assert rest.receive("/same").status == 204


@pytest.mark.parametrize("endpoint", ["bills.localhost", "127.0.0.1"])
async def test_a_websocket_leads_to_the_namespace_of_its_host_or_of_the_open(
    both: BrokerProcess, endpoint: str
) -> None:
    def client(key: str) -> AioServiceBusClient:
        return aio_client(
            f"Endpoint=sb://bills.localhost;SharedAccessKeyName={KEY_NAME};SharedAccessKey={key}",
            retry_total=0,
            transport_type=TransportType.AmqpOverWebsocket,
            custom_endpoint_address=f"sb://{endpoint}:{both.addresses.http_port}",
            connection_verify=str(both.data_dir / "tls" / "ca.pem"),
        )

    async with client(OWN) as own, own.get_queue_sender("same") as sender:
        await sender.send_messages(ServiceBusMessage("over a WebSocket"))
    with pytest.raises(REFUSED):
        async with client(KEY) as stranger, stranger.get_queue_sender("same") as sender:
            await sender.send_messages(ServiceBusMessage("refused"))
    with rest_of(both, "127.0.0.1", KEY) as first, rest_of(both, "bills", OWN) as second:
        assert first.receive("/same").status == 204
        assert second.receive("/same", method="DELETE").body == b"over a WebSocket"


def test_the_javascript_client_finds_its_namespace(both: BrokerProcess) -> None:
    addresses = both.addresses
    extra = {
        "PARTIBUS_SCENARIOS": "own-entities,foreign-key",
        "PARTIBUS_OTHER_CONNECTION_STRING": addresses.connection_string("bills.localhost", key=OWN),
        "PARTIBUS_FOREIGN_CONNECTION_STRING": addresses.connection_string("bills.localhost"),
    }
    report = run_node("namespaces.mjs", "javascript", addresses, extra)
    report.check("own-entities")
    report.check("foreign-key")


def test_a_transaction_stays_in_its_namespace(both: BrokerProcess) -> None:
    """Two entities of one transaction are in the namespace of the connection."""
    with raw_amqp.RawConnection(both.addresses.amqp_port) as client:
        init = [Symbol("PLAIN"), f"\0{KEY_NAME}\0{OWN}".encode(), "bills"]
        client.open(raw_amqp.SASL_HEADER + raw_amqp.sasl_frame(raw_amqp.SASL_INIT, init))
        client.begin()
        for handle, address in enumerate(("same", "onward")):
            client.attach_sender(handle, address)
        assert client.attach(coordinator_attach(2)).code == raw_amqp.ATTACH
        client.read_until(raw_amqp.FLOW)
        sent = 0

        def ask(handle: int, payload: bytes, **given: Any) -> Any:
            nonlocal sent
            client.send_frame(raw_amqp.TRANSFER, raw_amqp.transfer_fields(handle, sent, **given), payload)
            sent += 1
            return client.read_until(raw_amqp.DISPOSITION).field(4)

        txn_id = bytes(ask(2, declare()).value[0])
        for handle in (0, 1):
            ask(handle, message(body=[b"together"]), state=state_of(txn_id))
        assert ask(2, discharge(txn_id, False)).descriptor == raw_amqp.ACCEPTED
        for handle, host in ((5, "sbemulatorns"), (6, "twin")):
            fields = [*raw_amqp.sender_attach(handle, "same"), None, None, None]
            fields.append({Symbol("com.microsoft:transfer-destination-address"): f"amqps://{host}/same"})
            error = client.attach(fields).field(2)
            assert f"is in the namespace '{host}', and this connection is to 'bills'" in error.value[1]
    with client_of(both, "bills.localhost", OWN) as second, client_of(both, "127.0.0.1", KEY) as first:
        assert drain(second, "same", 2) == ["together"] * 2
        assert drain(first, "same", 0) == []


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
    context.check_hostname = False  # that of a proxy is not in the certificate
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
    for name in ("bus.localhost", "bills", "sbemulatorns"):  # host names and names of namespaces are
        with (
            socket.create_connection(("127.0.0.1", both.addresses.http_port), 20) as plain,
            strict.wrap_socket(plain, server_hostname=name),
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


def test_one_namespace_is_throttled_and_the_other_is_not(both: BrokerProcess) -> None:
    with (
        client_of(both, "slow.localhost", OWN) as slow,
        client_of(both, "127.0.0.1", KEY) as quick,
        slow.get_queue_sender("same") as throttled,
        quick.get_queue_sender("mine") as free,
    ):
        refused = 0
        for _ in range(40):
            free.send_messages([ServiceBusMessage("x")] * 10)
            try:
                throttled.send_messages([ServiceBusMessage("x")] * 10)
            except ServiceBusServerBusyError as busy:
                assert "Error code: 50009" in str(busy)
                refused += 1
        assert refused > 0
        assert len(drain(quick, "mine", 400)) == 400
    metrics = urllib.request.urlopen(f"{both.addresses.http_url}/metrics", timeout=10).read().decode()
    counts = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith(("partibus_throttled_requests_total{", "partibus_credits_refused_total{"))
    }
    requests = 'partibus_throttled_requests_total{{namespace="{}",entity="{}"}}'
    assert counts[requests.format("slow", "same")] >= refused
    assert counts[requests.format("sbemulatorns", "mine")] == 0
    of_namespaces = 'partibus_credits_refused_total{{namespace="{}"}}'
    assert counts[of_namespaces.format("slow")] >= refused
    assert counts[of_namespaces.format("sbemulatorns")] == counts[of_namespaces.format("bills")] == 0


def test_quotas_are_those_of_the_namespace(both: BrokerProcess) -> None:
    with rest_of(both, "small", OWN) as small, rest_of(both, "twin", KEY) as other:
        for name in ("second", "third"):
            small.create(f"/{name}")
        answer = small.ask("PUT", "/fourth", queue_body("", "QueueDescription"))
        assert answer.status == 403 and b"the limit is 3" in answer.body
        for name in ("one", "two", "three"):
            other.create(f"/{name}")
        assert small.ask("POST", "/third/messages", b"x" * 70_000).status == 403
        assert other.ask("POST", "/one/messages", b"x" * 70_000).status == 201
    kept = login(both, "small", OWN)
    with pytest.raises(ConnectionException, match="ConnectionsQuotaExceeded"):
        login(both, "small", OWN).create_receiver("same")
    login(both, "localhost", KEY).close()
    kept.close()


async def test_keys_of_a_namespace_are_rotated_in_their_file(both: BrokerProcess) -> None:
    with client_of(both, "rotated.localhost", OWN) as client, client.get_queue_sender("same") as sender:
        sender.send_messages(ServiceBusMessage("with the first key"))
        (both.config_path.parent / KEY_FILE).write_text(SECOND)
        await until(lambda: "keys.changed" in both.log)
        with pytest.raises(REFUSED):
            sender.send_messages(ServiceBusMessage("with a key that is no longer in force"))
    with client_of(both, "rotated.localhost", SECOND) as client:
        assert drain(client, "same", 1) == ["with the first key"]
    login(both, "bills", OWN).close()  # another namespace with that key
    assert OWN not in both.log and SECOND not in both.log


def test_both_outlive_restarts_damage_and_an_absence_from_the_file(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, [queue("same")], others=[bills()]) as broker:
        with rest_of(broker, "127.0.0.1", KEY) as first, rest_of(broker, "bills", OWN) as second:
            for number in range(2):
                first.send("/same", f"first {number}")
                second.send("/same", f"second {number}")
        broker.kill()
        first_part, second_part = json.loads(broker.config_path.read_text())["UserConfig"]["Namespaces"]

        def start(*parts: object) -> None:
            broker.config_path.write_text(json.dumps({"UserConfig": {"Namespaces": parts}}))
            broker.start()

        start(first_part)
        assert '"namespace": "bills"' in broker.log and "namespace.not_served" in broker.log
        with rest_of(broker, "bills", KEY) as first:  # a name that means none in particular now
            assert first.receive("/same", method="DELETE").body.startswith(b"first ")
        broker.terminate()
        with pytest.raises(BrokerDied, match="it must not take the place of the first one"):
            start({**second_part, "Settings": {}})
        _damage_and_repair(broker.data_dir)
        start(first_part, second_part)
        with rest_of(broker, "127.0.0.1", KEY) as first, rest_of(broker, "bills", OWN) as second:
            assert first.receive("/same", method="DELETE").body.startswith(b"first ")
            assert second.receive("/same", method="DELETE").body == b"second 1"
            assert first.receive("/same").status == second.receive("/same").status == 204


def _damage_and_repair(data_dir: Path) -> None:
    """Damage the first message of the second namespace. The check names it, and the repair leaves the other
    namespace alone."""
    assert check("check", "--data-dir", str(data_dir)).exit_code == 0
    [segment] = [each for each in data_dir.rglob("*.segment") if b"second 0" in each.read_bytes()]
    flip(segment, segment.read_bytes().index(b"second 0"))
    report = check("check", "--data-dir", str(data_dir), "--json")
    assert report.exit_code == 1
    assert {each["queue"] for each in json.loads(report.stdout)["findings"]} == {"same (namespace bills)"}
    repaired = check("repair", "--data-dir", str(data_dir), "--yes")
    assert repaired.exit_code == 0 and "same (namespace bills)" in repaired.stdout, repaired.output
    assert check("check", "--data-dir", str(data_dir)).exit_code == 0
