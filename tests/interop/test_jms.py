"""Qpid JMS, a plain AMQP 1.0 client in Java, unchanged, against the running broker."""

from __future__ import annotations

import pytest

from tests.interop.programs import JMS, Report, run_java
from tests.interop.scenarios import CLIENTS, queue_name
from tests.interop.topic_scenarios import JMS as TOPICS
from tests.interop.topic_scenarios import JMS_SUBSCRIPTIONS, create_subscription
from tests.support.azure_client import admin_of
from tests.support.broker_process import BrokerProcess

SCENARIOS = [*CLIENTS["jms"], *TOPICS]


@pytest.fixture(scope="session")
def report(broker: BrokerProcess) -> Report:
    """The program's results."""
    with admin_of(broker) as admin:
        for scenario in TOPICS:
            admin.create_topic(queue_name("jms", scenario))
            for subscription in JMS_SUBSCRIPTIONS:
                create_subscription(admin, queue_name("jms", scenario), subscription)
    extra = {"PARTIBUS_SCENARIOS": ",".join(SCENARIOS)}
    return run_java(JMS, "interop.Jms", "256m", "jms", broker.addresses, extra)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_qpid_jms(report: Report, scenario: str) -> None:
    report.check(scenario)
