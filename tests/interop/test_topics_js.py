"""Topics through the official JavaScript client, unchanged, against the running broker."""

from __future__ import annotations

import pytest

from tests.interop.programs import Report, run_node
from tests.interop.topic_scenarios import TOPICS, create_topics, topic_name
from tests.support.azure_client import admin_of
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def report(broker: BrokerProcess) -> Report:
    """The program's results."""
    with admin_of(broker) as admin:
        create_topics(admin, "javascript", TOPICS)
    extra = {
        "PARTIBUS_QUEUE_PREFIX": topic_name("javascript", ""),
        "PARTIBUS_SCENARIOS": ",".join(TOPICS),
    }
    return run_node("topics.mjs", "javascript", broker.addresses, extra)


@pytest.mark.parametrize("scenario", TOPICS)
def test_topics_of_the_javascript_client(report: Report, scenario: str) -> None:
    report.check(scenario)
