"""The Java administration client, unchanged."""

from __future__ import annotations

import pytest

from tests.interop.admin_programs import IN_JAVA, administer_in_java
from tests.interop.programs import Report
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def report(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The program's report; it runs once."""
    return administer_in_java(broker, tmp_path_factory.mktemp("java"))


@pytest.mark.parametrize("scenario", IN_JAVA)
def test_the_java_administration_client(report: Report, scenario: str) -> None:
    report.check(scenario)
