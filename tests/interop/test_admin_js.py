"""The JavaScript administration client, unchanged."""

from __future__ import annotations

import pytest

from tests.interop.admin_programs import IN_JAVASCRIPT, administer_in_javascript
from tests.interop.programs import Report
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def report(broker: BrokerProcess) -> Report:
    """The program's report; it runs once."""
    return administer_in_javascript(broker)


@pytest.mark.parametrize("scenario", IN_JAVASCRIPT)
def test_the_javascript_administration_client(report: Report, scenario: str) -> None:
    report.check(scenario)
