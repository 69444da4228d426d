"""The official Java client, unchanged, against the running broker."""

from __future__ import annotations

import pytest

from tests.interop.programs import JAVA, Report, run_java
from tests.interop.scenarios import CLIENTS
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="session")
def report(broker: BrokerProcess) -> Report:
    """The program's results."""
    return run_java(JAVA, "interop.Main", "512m", "java", broker.addresses)


@pytest.mark.parametrize("scenario", CLIENTS["java"])
def test_the_java_client(report: Report, scenario: str) -> None:
    report.check(scenario)
