"""A broker under attack and another client that uses it all the while: each test checks that this client was
not disturbed.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

import pytest

from tests.hostile.bystander import Bystander, resident_mib
from tests.support.broker_process import BrokerProcess, queue

QUEUES = ("bystander", "target", "backlog", "bulk", "changed", "twice")
OPEN_TIMEOUT_S = 2.0
"""Time for SASL and open in these tests; the default is longer than a test should take."""
HEADER_TIMEOUT_S = 1.0
"""Time for an HTTP header, or for the AMQP header on a WebSocket."""
SETTINGS = {
    "PARTIBUS_HTTP_HEADER_TIMEOUT_MS": str(int(HEADER_TIMEOUT_S * 1000)),
    "PARTIBUS_CONNECTION_OPEN_TIMEOUT_MS": str(int(OPEN_TIMEOUT_S * 1000)),
    "PARTIBUS_LINKS_PER_CONNECTION_MAX": "100",
    "PARTIBUS_SESSIONS_PER_CONNECTION_MAX": "32",
    # Whoever may send fills this with bodies that wait. The bound below is for what attacks take besides.
    "PARTIBUS_PAYLOAD_MEMORY_BYTES": str(32 << 20),
}
RESIDENT_MIB_MAX = 350
"""The attacks together may not make the broker use more. It starts at a quarter of this, each attack may take
some 64 MiB, and the C library keeps much of what they free for the next one."""
_TROUBLE = re.compile(r'"level": "(error|critical)"|Traceback|Fatal error')


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all attacks, so that later attacks meet whatever earlier ones leave behind."""
    with BrokerProcess(
        tmp_path_factory.mktemp("hostile"),
        [*map(queue, QUEUES), queue("sessions", RequiresSession=True)],
        environment=SETTINGS,
    ) as process:
        yield process
        process.check_alive()


@pytest.fixture(scope="session")
def old_friend(broker: BrokerProcess) -> Iterator[Bystander]:
    """A client that connected before the attacks."""
    with Bystander(broker.addresses.amqp_port) as bystander:
        yield bystander


@pytest.fixture(autouse=True)
def nobody_else_is_disturbed(broker: BrokerProcess, old_friend: Bystander) -> Iterator[None]:
    """After each test: the broker runs, within its bounds, has logged no error of its own, and serves old and
    new clients.
    """
    lines = len(broker.log.splitlines())
    yield
    broker.check_alive()
    old_friend.round_trip()
    with Bystander(broker.addresses.amqp_port) as newcomer:
        newcomer.round_trip()
    trouble = [line for line in broker.log.splitlines()[lines:] if _TROUBLE.search(line)]
    assert not trouble, "the broker met an error of its own:\n" + "\n".join(trouble)
    assert resident_mib(broker.pid) < RESIDENT_MIB_MAX


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the broker's log to the report of a failed test."""
    report = yield
    process = getattr(item, "funcargs", {}).get("broker")
    if isinstance(process, BrokerProcess) and report.failed:
        report.sections.append(("broker log", process.log_tail()))
    return report
