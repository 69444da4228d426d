"""The JavaScript clients, unchanged, against the running broker: `@azure/service-bus`, and `rhea` as a plain
AMQP client."""

from __future__ import annotations

import pytest

from tests.interop.programs import HERE, Report, build, is_newer, run_program
from tests.interop.scenarios import CLIENTS
from tests.support.broker_process import BrokerProcess

FOLDER = HERE / "js"


@pytest.fixture(scope="session")
def packages() -> None:
    """Install the packages of package.json if they are missing."""
    installed = FOLDER / "node_modules" / ".package-lock.json"
    if not is_newer(installed, [FOLDER / "package.json"]):
        build(["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"], FOLDER)
        installed.touch()


@pytest.fixture(scope="session")
def service_bus(packages: None, broker: BrokerProcess) -> Report:
    return run_program(["node", "service_bus.mjs"], FOLDER, "javascript", broker.addresses)


@pytest.fixture(scope="session")
def rhea(packages: None, broker: BrokerProcess) -> Report:
    return run_program(["node", "rhea.mjs"], FOLDER, "rhea", broker.addresses)


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
