"""The rule manager of the official Java client, unchanged."""

from __future__ import annotations

from tests.interop.programs import JAVA, run_java
from tests.interop.test_admin_python import client_of
from tests.support.broker_process import BrokerProcess


def test_the_java_client_manages_the_rules_of_a_subscription(broker: BrokerProcess) -> None:
    topic = "rules-java"
    with client_of(broker) as admin:
        admin.create_topic(topic)
        admin.create_subscription(topic, "one")
    extra = {"PARTIBUS_TOPIC": topic, "PARTIBUS_SCENARIOS": "rule-manager"}
    run_java(JAVA, "interop.Main", "512m", "java", broker.addresses, extra).check("rule-manager")
