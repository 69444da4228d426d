"""Each refusal reaches the official clients for Python, JavaScript, Java and Go as the contract says: as
which exception, and whether the client tries again (`error_table`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.interop import error_python
from tests.interop.error_table import CLIENTS, FORWARDED_TO, LOCK_S, REFUSALS, WITHOUT_ENTITY, cases_of
from tests.interop.programs import JAVA, Report, run_go, run_java, run_node
from tests.support.azure_client import admin_of, azure_client
from tests.support.broker_process import BrokerProcess, queue, topic
from tests.support.logs import flip
from tests.support.sas import sas_token

TRANSACTION_MS = 3_000
LISTENER = {"key_name": "listener", "primary_key": "listens", "rights": ["Listen"]}
ENVIRONMENT = {
    "PARTIBUS_SAS_RULES": json.dumps([LISTENER]),
    "PARTIBUS_SESSION_WAIT_MS_MAX": "1500",
    "PARTIBUS_SESSION_STATE_KB_MAX": "1",
    "PARTIBUS_SESSION_STATES_MAX": "1",
    "PARTIBUS_LINKS_PER_CONNECTION_MAX": "20",
    "PARTIBUS_TRANSACTION_TIMEOUT_MS": str(TRANSACTION_MS),
}
DAMAGED = b"damaged " * 100
BODY_OFFSET = 200
"""A place in a log's first commit: behind the headers, inside the message."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with the entities of all refusals: full queues are full, unavailable ones have damaged
    logs."""
    queues, topics = [queue(FORWARDED_TO)], []
    for client in CLIENTS:
        for name in set(cases_of(client)).difference(WITHOUT_ENTITY):
            refusal, entity = REFUSALS[name], f"{client}.{name}"
            if refusal.is_of_topic:
                topics.append(topic(entity, ["all"]))
            else:
                queues.append(queue(entity, **{"PartitionCount": 4, **refusal.queue}))
    folder = tmp_path_factory.mktemp("refusing")
    with BrokerProcess(folder, queues, topics=topics, environment=ENVIRONMENT) as process:
        with azure_client(process.addresses.connection_string()) as filler:
            for each in CLIENTS:
                send(filler, f"{each}.quota-exceeded", ServiceBusMessage(b"x" * 700_000))
                damaged = [ServiceBusMessage(DAMAGED, partition_key="k") for _ in range(3)]
                send(filler, f"{each}.partition-unavailable", *damaged)
        process.kill()
        damaged_logs = 0
        for segment in process.data_dir.glob("logs/*/*/*.segment"):
            if segment.read_bytes().count(DAMAGED) == len(damaged):
                flip(segment, BODY_OFFSET)
                damaged_logs += 1
        assert damaged_logs == len(CLIENTS)
        process.start()
        yield process


def send(client: ServiceBusClient, name: str, *messages: ServiceBusMessage) -> None:
    with client.get_queue_sender(name) as sender:
        for message in messages:
            sender.send_messages(message)


class Stage(BaseHTTPRequestHandler):
    """Changes queues while clients use them: `/delete/<queue>`, or `/<status>/<queue>`."""

    def __init__(self, admin: ServiceBusAdministrationClient, *rest: object) -> None:
        self._admin = admin
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        change, name = self.path.removeprefix("/").split("/")
        if change == "delete":
            self._admin.delete_queue(name)
        else:
            description = self._admin.get_queue(name)
            description.status = change
            self._admin.update_queue(description)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *values: object) -> None:
        """Keep the tests' output free of requests."""


@pytest.fixture(scope="module")
def stage_url(broker: BrokerProcess) -> Iterator[str]:
    with admin_of(broker) as admin, ThreadingHTTPServer(("127.0.0.1", 0), partial(Stage, admin)) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def connection_strings(broker: BrokerProcess, host: str) -> dict[str, str]:
    """The connection strings of the scenarios that need their own."""
    address = f"{host}:{broker.addresses.amqp_port}"
    expired = sas_token(f"sb://{address}/", expires_at_s=int(time.time()) - 60)
    plain = broker.addresses.connection_string
    return {
        "": plain(host=host),
        "wrong-key": plain(host=host, key="wrong"),
        "missing-claim": plain(host=host, key_name="listener", key="listens"),
        "expired-token": f"Endpoint=sb://{address};SharedAccessSignature={expired};UseDevelopmentEmulator=true;",
    }


@pytest.fixture(scope="module")
def reports(broker: BrokerProcess, stage_url: str) -> Mapping[str, Report]:
    """The results of all clients, which run side by side."""

    def extra(client: str, host: str = "127.0.0.1") -> dict[str, str]:
        own = connection_strings(broker, host)
        return {
            "PARTIBUS_CONNECTION_STRING_EXPIRED": own["expired-token"],
            "PARTIBUS_CONNECTION_STRING_LISTEN": own["missing-claim"],
            "PARTIBUS_SCENARIOS": ",".join(cases_of(client)),
            "PARTIBUS_STAGE_URL": stage_url,
            "PARTIBUS_LOCK_MS": str(LOCK_S * 1000),
            "PARTIBUS_TRANSACTION_MS": str(TRANSACTION_MS),
        }

    def java() -> Report:
        return run_java(JAVA, "interop.Main", "512m", "java", broker.addresses, extra("java"))

    def python() -> Report:
        own = connection_strings(broker, "127.0.0.1")
        return error_python.run(cases_of("python"), own, "python.", stage_url)

    with ThreadPoolExecutor(len(CLIENTS)) as threads:
        running = {
            "java": threads.submit(java),
            "javascript": threads.submit(
                run_node, "refusals.mjs", "javascript", broker.addresses, extra("javascript")
            ),
            "go": threads.submit(run_go, broker.addresses, extra("go", "localhost")),
            "python": threads.submit(python),
        }
        return {client: report.result() for client, report in running.items()}


@pytest.mark.parametrize(
    ("client", "name"), [(client, name) for client in CLIENTS for name in cases_of(client)]
)
def test_a_refusal_reaches_the_client_as_the_contract_says(
    reports: Mapping[str, Report], client: str, name: str
) -> None:
    reports[client].check(name)
    reason, retried, text = reports[client].results[name].detail.split("|", 2)
    refusal = REFUSALS[name]
    expected = refusal.seen(client)
    assert expected is not None
    assert (reason, json.loads(retried)) == tuple(expected), text
    if client not in refusal.unsaid:
        assert re.search(refusal.says, text), text


def test_the_broker_goes_on_serving(reports: Mapping[str, Report], broker: BrokerProcess) -> None:
    broker.check_alive()
    assert all("Traceback" not in report.output for report in reports.values())
