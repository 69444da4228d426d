"""Clients that send with plain HTTP, and official AMQP clients that receive (HTTP contract 4.2)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiveMode

from tests.support.broker_process import BrokerProcess, queue
from tests.support.rest_client import RestClient

BATCH = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
WITHIN_S = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    queues = [queue(name, PartitionCount=4) for name in ("typed", "batches", "later", "plain")]
    queues.append(queue("sessions", RequiresSession=True))
    environment = {"PARTIBUS_PARTITION_PROCESS": "true"}
    with BrokerProcess(tmp_path_factory.mktemp("rest"), queues, environment=environment) as running:
        yield running


def received(
    azure: ServiceBusClient, name: str, count: int = 1, **where: Any
) -> list[ServiceBusReceivedMessage]:
    """The next messages of a queue, or of a subscription of the topic with this name."""
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    receiver = (
        azure.get_subscription_receiver(name, receive_mode=mode, **where)
        if where
        else azure.get_queue_receiver(name, receive_mode=mode)
    )
    found: list[ServiceBusReceivedMessage] = []
    with receiver:
        while len(found) < count:
            more = receiver.receive_messages(count - len(found), max_wait_time=WITHIN_S)
            assert more, "the messages come in time"
            found += more
    return found


def test_properties_and_types_reach_an_amqp_client(rest: RestClient, azure: ServiceBusClient) -> None:
    answer = rest.ask(
        "POST",
        "/typed/messages?timeout=60&api-version=2015-01",
        b"\x00\xffbody",
        {
            "Content-Type": "application/x-own",
            "BrokerProperties": json.dumps(
                {
                    "MessageId": "m",
                    "CorrelationId": "c",
                    "Label": "l",
                    "To": "t",
                    "ReplyTo": "r",
                    "ReplyToSessionId": "rs",
                    "PartitionKey": "p",
                    "TimeToLive": 60,
                }
            ),
            "Priority": '"High"',
            "customerId": "5",
            "Weight": "1.5",
            "urgent": "true",
            "when": '"Sun, 06 Nov 1994 08:49:37 GMT"',
            "Partibus-Properties": '{"a name": "ü"}',
            "x-ms-retrypolicy": "NoRetry",
            "Accept": "*/*",
        },
    )
    assert (answer.status, answer.body) == (201, b"")
    (message,) = received(azure, "typed")
    assert b"".join(message.body) == b"\x00\xffbody"
    assert (message.message_id, message.correlation_id, message.subject) == ("m", "c", "l")
    assert (message.to, message.reply_to, message.reply_to_session_id) == ("t", "r", "rs")
    assert (message.content_type, message.partition_key) == ("application/x-own", "p")
    assert message.time_to_live == timedelta(seconds=60)
    assert message.application_properties == {
        b"Priority": b"High",
        b"customerId": 5,
        b"Weight": 1.5,
        b"urgent": True,
        b"when": 784_111_777_000,
        b"a name": "ü".encode(),
    }


def test_a_message_without_anything_gets_an_id(rest: RestClient, azure: ServiceBusClient) -> None:
    rest.send("/plain")
    (message,) = received(azure, "plain")
    assert b"".join(message.body) == b""
    assert message.message_id is not None and len(message.message_id) == 32


def test_a_batch_arrives_as_a_whole(rest: RestClient, azure: ServiceBusClient) -> None:
    batch = [
        {"Body": "first", "BrokerProperties": {"Label": "M1", "TimeToLiveTimeSpan": "0.00:00:40"}},
        {"Body": "zwölf", "UserProperties": {"Priority": "Low", "n": 2, "f": 0.5, "b": False}},
        {},
    ]
    headers = {**BATCH, "BrokerProperties": '{"Label":"ignored"}', "Ignored": "1"}
    assert rest.ask("POST", "/batches/messages", json.dumps(batch), headers).status == 201
    messages = received(azure, "batches", 3)
    assert sorted(b"".join(each.body).decode() for each in messages) == ["", "first", "zwölf"]
    by_body = {b"".join(each.body): each for each in messages}
    assert by_body[b"first"].subject == "M1"
    assert by_body[b"first"].time_to_live == timedelta(seconds=40)
    assert not by_body[b"first"].application_properties
    assert by_body["zwölf".encode()].application_properties == {
        b"Priority": b"Low",
        b"n": 2,
        b"f": 0.5,
        b"b": False,
    }
    partitions = {(each.sequence_number or 0) >> 48 for each in messages}
    assert len(partitions) == 1, "a batch goes to one partition"


def test_a_scheduled_message_waits(rest: RestClient, azure: ServiceBusClient) -> None:
    at = (datetime.now(UTC) + timedelta(hours=1)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    rest.send("/later", b"later", BrokerProperties=json.dumps({"ScheduledEnqueueTimeUtc": at}))
    with azure.get_queue_receiver("later") as receiver:
        (message,) = receiver.peek_messages()
    assert message.state.name == "SCHEDULED"
    assert message.scheduled_enqueue_time_utc is not None
    assert message.scheduled_enqueue_time_utc.strftime("%a, %d %b %Y %H:%M:%S GMT") == at


def test_a_topic_passes_messages_to_its_subscriptions(rest: RestClient, azure: ServiceBusClient) -> None:
    rest.create("/news", kind="TopicDescription")
    rest.create("/news/subscriptions/all", kind="SubscriptionDescription")
    rest.send("/news", b"hello", colour='"red"')
    (message,) = received(azure, "news", subscription_name="all")
    assert (b"".join(message.body), message.application_properties) == (b"hello", {b"colour": b"red"})
    refused = rest.ask("POST", "/news/subscriptions/all/messages", b"x")
    assert refused.status == 400


def test_messages_of_sessions_need_one(rest: RestClient, azure: ServiceBusClient) -> None:
    rest.send("/sessions", b"a", BrokerProperties='{"SessionId":"s"}')
    refused = rest.ask("POST", "/sessions/messages", b"b")
    assert (refused.status, b"SubCode=40000" in refused.body) == (400, True)
    with azure.get_queue_receiver("sessions", session_id="s") as receiver:
        (message,) = receiver.receive_messages(max_wait_time=WITHIN_S)
        assert (message.session_id, b"".join(message.body)) == ("s", b"a")
