"""The JavaScript clients, unchanged, against the running broker: `@azure/service-bus`, and `rhea` as a plain
AMQP client."""

from __future__ import annotations

import pytest

from tests.interop.programs import Report, run_node
from tests.interop.scenarios import CLIENTS
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="session")
def service_bus(broker: BrokerProcess) -> Report:
    return run_node("service_bus.mjs", "javascript", broker.addresses)


@pytest.fixture(scope="session")
def rhea(broker: BrokerProcess) -> Report:
    return run_node("rhea.mjs", "rhea", broker.addresses)


@pytest.mark.parametrize("scenario", CLIENTS["javascript"])
def test_the_javascript_client(service_bus: Report, scenario: str) -> None:
    service_bus.check(scenario)


@pytest.mark.parametrize("scenario", CLIENTS["rhea"])
def test_rhea(rhea: Report, scenario: str) -> None:
    rhea.check(scenario)


def test_the_javascript_programs_leave_no_error_unhandled(service_bus: Report, rhea: Report) -> None:
    for report in (service_bus, rhea):
        unhandled = report.results.get("no-unhandled-errors")
        assert unhandled is None, unhandled
