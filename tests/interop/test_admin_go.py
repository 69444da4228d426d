"""The Go administration client, unchanged."""

from __future__ import annotations

import pytest

from tests.interop.admin_programs import IN_GO, administer_in_go
from tests.interop.programs import Report
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def report(broker: BrokerProcess) -> Report:
    """The program's report; it runs once."""
    return administer_in_go(broker)


@pytest.mark.parametrize("scenario", IN_GO)
def test_the_go_administration_client(report: Report, scenario: str) -> None:
    report.check(scenario)
