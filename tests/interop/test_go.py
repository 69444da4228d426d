"""The official Go client, unchanged, against the running broker."""

from __future__ import annotations

import pytest

from tests.interop.programs import CACHE, HERE, Report, build, run_program
from tests.interop.scenarios import CLIENTS
from tests.support.broker_process import BrokerProcess

PROGRAM = CACHE / "go-client"


@pytest.fixture(scope="session")
def report(broker: BrokerProcess) -> Report:
    """The program's results. Go's own build cache makes repeated builds cheap."""
    build(["go", "build", "-o", str(PROGRAM), "."], HERE / "go")
    return run_program([str(PROGRAM)], HERE / "go", "go", broker.addresses)


@pytest.mark.parametrize("scenario", CLIENTS["go"])
def test_the_go_client(report: Report, scenario: str) -> None:
    report.check(scenario)
