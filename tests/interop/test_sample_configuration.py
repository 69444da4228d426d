"""The sample configuration, whose topic is that of the emulator's own file: each subscription gets what its
rules say, and a change in the file is applied at the next start."""

from __future__ import annotations

from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

from tests.support.azure_client import azure_client
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import WAIT_S

SAMPLE = Path(__file__).parents[2] / "docker" / "config.json"
END = "end"
"""The body of a message that every subscription gets."""


def publish(client: ServiceBusClient, *messages: ServiceBusMessage) -> None:
    end = ServiceBusMessage(
        END,
        message_id="123456",
        content_type="application/json",
        application_properties={"prop1": "value1", "userProp1": "value1", "color": "red"},
    )
    with client.get_topic_sender("topic.1") as sender:
        for message in (*messages, end):
            message.partition_key = "p"
            sender.send_messages(message)


def received(client: ServiceBusClient, number: int) -> list[tuple[str, str | None]]:
    """The bodies and the `to` of the messages in a subscription, up to the end."""
    found: list[tuple[str, str | None]] = []
    with client.get_subscription_receiver(
        "topic.1",
        f"subscription.{number}",
        receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
        max_wait_time=WAIT_S,
    ) as receiver:
        for message in receiver:
            found.append((str(message), message.to))
            if found[-1][0] == END:
                return found
    raise AssertionError(f"subscription.{number} got only {found}")


def test_the_emulators_topic_works_as_its_file_says_and_follows_changes_of_the_file(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, [])
    sample = SAMPLE.read_text(encoding="utf-8")
    broker.config_path.write_text(sample, encoding="utf-8")
    with broker, azure_client(broker.addresses.connection_string(), retry_total=0) as client:
        publish(
            client,
            ServiceBusMessage("json", content_type="application/json"),
            ServiceBusMessage("property", application_properties={"prop1": "value1"}),
            ServiceBusMessage("sql", message_id="123456", application_properties={"userProp1": "value1"}),
            ServiceBusMessage("none", message_id="123456"),
        )
        assert received(client, 1) == [("json", None), (END, None)]
        assert received(client, 2) == [("property", None), (END, None)]
        everything = [(body, None) for body in ("json", "property", "sql", "none", END)]
        assert received(client, 3) == everything
        assert received(client, 4) == [("sql", "Entity"), (END, "Entity")]
    changed = sample.replace("sys.MessageId = '123456' AND userProp1 = 'value1'", "color = 'red'")
    assert changed != sample
    broker.config_path.write_text(changed, encoding="utf-8")
    with broker, azure_client(broker.addresses.connection_string(), retry_total=0) as client:
        publish(
            client,
            ServiceBusMessage("red", application_properties={"color": "red"}),
            ServiceBusMessage("sql", message_id="123456", application_properties={"userProp1": "value1"}),
        )
        assert received(client, 4) == [("red", "Entity"), (END, "Entity")]
