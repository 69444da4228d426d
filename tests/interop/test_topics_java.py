"""Topics through the official Java client, unchanged, against the running broker."""

from __future__ import annotations

import pytest

from tests.interop.programs import JAVA, Report, run_java
from tests.interop.topic_scenarios import TOPICS, TRANSACTIONS, create_topics, topic_name
from tests.support.azure_client import admin_of
from tests.support.broker_process import BrokerProcess

SCENARIOS = {**TOPICS, **TRANSACTIONS}


@pytest.fixture(scope="module")
def report(broker: BrokerProcess) -> Report:
    """The program's results."""
    with admin_of(broker) as admin:
        create_topics(admin, "java", SCENARIOS)
    extra = {"PARTIBUS_QUEUE_PREFIX": topic_name("java", ""), "PARTIBUS_SCENARIOS": ",".join(SCENARIOS)}
    return run_java(JAVA, "interop.Topics", "512m", "java", broker.addresses, extra)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_topics_of_the_java_client(report: Report, scenario: str) -> None:
    report.check(scenario)
