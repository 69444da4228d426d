"""Topics can be administered, but messages are not passed through them yet: clients learn that, and not that
the topics do not exist.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusError

from tests.interop.test_admin_python import client_of
from tests.support.azure_client import azure_client
from tests.support.broker_process import BrokerProcess, configuration

TOPICS = [
    {
        "Name": "Topic.1",
        "Properties": {"EnablePartitioning": True},
        "Subscriptions": [{"Name": "subscription.1"}],
    }
]
WORDS = "topics yet"


def test_a_topic_of_the_configuration_file_is_there_but_takes_no_messages_yet(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, [])
    content = configuration([])
    content["UserConfig"]["Namespaces"][0]["Topics"] = TOPICS  # type: ignore[index]
    broker.config_path.write_text(json.dumps(content), encoding="utf-8")
    with (
        broker,
        azure_client(broker.addresses.connection_string(), retry_total=0) as client,
    ):
        with (
            pytest.raises(ServiceBusError, match=WORDS) as refused,
            client.get_topic_sender("topic.1") as sender,
        ):
            sender.send_messages(ServiceBusMessage("hello"))
        assert not isinstance(refused.value, MessagingEntityNotFoundError)
        with (
            pytest.raises(ServiceBusError, match=WORDS),
            client.get_subscription_receiver("topic.1", "subscription.1") as receiver,
        ):
            receiver.receive_messages(max_wait_time=1)
        with pytest.raises(MessagingEntityNotFoundError), client.get_topic_sender("topic.2") as sender:
            sender.send_messages(ServiceBusMessage("hello"))
        with client_of(broker) as admin:
            assert admin.get_topic("topic.1").enable_partitioning
            assert [each.name for each in admin.list_subscriptions("topic.1")] == ["subscription.1"]
