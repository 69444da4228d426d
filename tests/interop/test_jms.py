"""Qpid JMS, a plain AMQP 1.0 client in Java, unchanged, against the running broker."""

from __future__ import annotations

import pytest

from tests.interop.programs import JMS, Report, run_java
from tests.interop.scenarios import CLIENTS
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="session")
def report(broker: BrokerProcess) -> Report:
    """The program's results."""
    return run_java(JMS, "interop.Jms", "256m", "jms", broker.addresses)


@pytest.mark.parametrize("scenario", CLIENTS["jms"])
def test_qpid_jms(report: Report, scenario: str) -> None:
    report.check(scenario)
