"""The official Go client, unchanged, against the running broker."""

from __future__ import annotations

import pytest

from tests.interop.programs import Report, run_go
from tests.interop.scenarios import CLIENTS
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="session")
def report(broker: BrokerProcess) -> Report:
    """The program's results."""
    return run_go(broker.addresses)


@pytest.mark.parametrize("scenario", CLIENTS["go"])
def test_the_go_client(report: Report, scenario: str) -> None:
    report.check(scenario)
