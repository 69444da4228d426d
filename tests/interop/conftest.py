"""The running broker for unchanged clients, and which of these clients this machine can run.

The tests of a client whose tools are missing are skipped, and the summary says why; where `CI` is set, they
fail.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient
from proton.utils import BlockingConnection

from tests.interop.programs import GO, JAVA, JMS, JS, PREPARATION
from tests.interop.proton_blocking import connected
from tests.interop.scenarios import all_queues
from tests.support.azure_client import admin_of, azure_client
from tests.support.broker_process import BrokerProcess
from tests.support.missing_tools import skip_without
from tests.support.rest_client import RestClient

LOG_LINES_SHOWN = 40
TOOLS = {
    "test_javascript.py": ("node", "npm"),
    "test_admin_js.py": ("node", "npm"),
    "test_go.py": ("go",),
    "test_java.py": ("java", "mvn"),
    "test_jms.py": ("java", "mvn"),
    "test_admin_java.py": ("java", "mvn"),
    "test_topics_js.py": ("node", "npm"),
    "test_topics_java.py": ("java", "mvn"),
    "test_forwarding.py": ("node", "npm"),
    "test_throttling.py": ("node", "npm"),
    "test_namespaces.py": ("node", "npm"),
    "test_error_conditions.py": ("node", "npm", "go", "java", "mvn"),
}
"""Tools that each test file needs besides Python."""

MISSING = {name: [tool for tool in tools if shutil.which(tool) is None] for name, tools in TOOLS.items()}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests of a client whose tools are missing; where `CI` is set, fail them."""
    skip_without(MISSING.get(item.path.name, ()))


PROGRAMS = {
    "test_admin_js.py": (JS,),
    "test_error_conditions.py": (JS, GO, JAVA),
    "test_javascript.py": (JS,),
    "test_throttling.py": (JS,),
    "test_namespaces.py": (JS,),
    "test_go.py": (GO,),
    "test_java.py": (JAVA,),
    "test_admin_go.py": (GO,),
    "test_admin_java.py": (JAVA,),
    "test_admin_while_down.py": (JS, GO, JAVA),
    "test_jms.py": (JMS,),
    "test_topics_js.py": (JS,),
    "test_topics_java.py": (JAVA,),
}
"""Programs in other languages that each test file runs."""


@pytest.fixture(scope="session", autouse=True)
def preparation(request: pytest.FixtureRequest) -> None:
    """Begin to build the programs of the tests that will run."""
    files = dict.fromkeys(item.path.name for item in request.session.items if not MISSING.get(item.path.name))
    PREPARATION.begin(program for name in files for program in PROGRAMS.get(name, ()))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with every queue of every scenario."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), all_queues()) as process:
        yield process
        process.check_alive()
        assert process.errors == []


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with admin_of(broker) as client:
        yield client


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[ServiceBusClient]:
    """The official client, which tries nothing twice."""
    with azure_client(broker.addresses.connection_string(), retry_total=0) as client:
        yield client


@pytest.fixture(scope="module")
def azure(broker: BrokerProcess) -> Iterator[ServiceBusClient]:
    """The official client as it comes, one for all tests of a file."""
    with azure_client(broker.addresses.connection_string()) as client:
        yield client


@pytest.fixture
def rest(broker: BrokerProcess) -> Iterator[RestClient]:
    """A client that sends and receives with plain HTTP."""
    with RestClient(broker.addresses.http_port) as client:
        yield client


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[BlockingConnection]:
    """A plain AMQP client."""
    with connected(broker.addresses) as client:
        yield client


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the broker's log to the report of a failed test."""
    report = yield
    process = getattr(item, "funcargs", {}).get("broker")
    if isinstance(process, BrokerProcess) and report.failed:
        lines = [line for line in process.log.splitlines() if "entity.created" not in line]
        report.sections.append(("broker log", "\n".join(lines[-LOG_LINES_SHOWN:])))
    return report
