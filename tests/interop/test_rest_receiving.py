"""Clients that receive and settle with plain HTTP, beside official AMQP clients (HTTP contract 4.3, 4.6)."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.support.broker_process import BrokerProcess, queue
from tests.support.rest_client import RestClient
from tests.support.sas import sas_token

WITHIN_S = 30.0
OCTETS, TEXT, JSON = (
    "application/octet-stream",
    "text/plain; charset=utf-8",
    "application/json; charset=utf-8",
)
LOCK = {"LockToken", "LockedUntilUtc"}
BROKER_PROPERTIES = {
    "DeliveryCount",
    "EnqueuedSequenceNumber",
    "EnqueuedTimeUtc",
    "MessageId",
    "SequenceNumber",
    "State",
    "TimeToLive",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    names = ("typed", "settled", "dead", "bodies", "mixed", "awaited")
    queues = [queue(name, PartitionCount=4) for name in names]
    queues.append(queue("sessions", RequiresSession=True))
    environment = {"PARTIBUS_PARTITION_PROCESS": "true"}
    with BrokerProcess(tmp_path_factory.mktemp("rest"), queues, environment=environment) as running:
        yield running


def send(azure: ServiceBusClient, name: str, *messages: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
    with azure.get_queue_sender(name) as sender:
        for message in messages:
            sender.send_messages(message)


def test_properties_and_types_of_an_amqp_client_are_shown(azure: ServiceBusClient, rest: RestClient) -> None:
    identifier = uuid.uuid4()
    moment = datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC)
    properties: dict[Any, Any] = {
        "Priority": 'High "5"',
        "whole": 5,
        "fraction": 1.5,
        "truth": True,
        "when": moment,
        "id": identifier,
        "umlaut": "ü",
        "a name": "with a space",
    }
    message = ServiceBusMessage(
        b"\x00\xffbody",
        message_id="m",
        correlation_id="c",
        subject="l",
        to="t",
        reply_to="r",
        reply_to_session_id="rs",
        partition_key="p",
        content_type="application/x-own",
        time_to_live=timedelta(hours=1),
        application_properties=properties,
    )
    send(azure, "typed", message)
    answer = rest.receive("/typed", timeout=WITHIN_S)
    assert (answer.status, answer.body) == (201, b"\x00\xffbody")
    assert answer.headers["content-type"] == "application/x-own"
    assert {"Priority", "whole", "fraction", "truth", "when", "id", "umlaut"} <= {*answer.names}
    assert answer.headers["priority"] == r'"High \"5\""'
    assert [answer.headers[name] for name in ("whole", "fraction", "truth")] == ["5", "1.5", "true"]
    assert answer.headers["when"] == '"Sun, 06 Nov 1994 08:49:37 GMT"'
    assert (answer.headers["id"], answer.headers["umlaut"]) == (f'"{identifier}"', '"ü"')
    assert json.loads(answer.headers["partibus-properties"]) == {"a name": "with a space"}
    shown = answer.broker_properties
    assert answer.headers["brokerproperties"] == json.dumps(shown, sort_keys=True, separators=(",", ":"))
    texts = {"CorrelationId": "c", "Label": "l", "MessageId": "m", "PartitionKey": "p", "ReplyTo": "r"}
    assert shown.items() >= (texts | {"ReplyToSessionId": "rs", "To": "t", "TimeToLive": 3600}).items()
    assert shown.keys() == BROKER_PROPERTIES | texts.keys() | {
        "ReplyToSessionId",
        "To",
        "LockToken",
        "LockedUntilUtc",
    }
    assert (shown["State"], shown["DeliveryCount"]) == ("Active", 1)
    locked_s = parsedate_to_datetime(shown["LockedUntilUtc"]) - parsedate_to_datetime(
        shown["EnqueuedTimeUtc"]
    )
    assert timedelta(seconds=59) <= locked_s <= timedelta(seconds=90)
    assert answer.lock == f"/typed/messages/{shown['SequenceNumber']}/{shown['LockToken']}"
    assert rest.ask("DELETE", answer.lock).status == 200
    assert rest.ask("DELETE", answer.lock).status == 404


def test_what_rest_sends_rest_receives_unchanged(rest: RestClient) -> None:
    headers = {"Content-Type": "text/x", "Text": r'"a\"b\\c"', "Whole": "-5", "f": "1.5", "Truth": "false"}
    headers["Umlauts"] = f'"{"äÅ€😀" * 1_000}"'  # 11 KB of the 16 KiB that a header may have
    headers |= {"When": '"Sun, 06 Nov 1994 08:49:37 GMT"', "Partibus-Properties": '{"a name":"\\u00fc"}'}
    rest.send("/typed", b"body", **headers)
    answer = rest.receive("/typed", method="DELETE", timeout=WITHIN_S)
    assert (answer.status, answer.body) == (200, b"body")
    assert {name: answer.headers[name.lower()] for name in headers} == headers
    assert answer.broker_properties.keys() == BROKER_PROPERTIES
    assert "location" not in answer.headers


def test_locks_are_settled_renewed_and_lost_from_any_connection(
    broker: BrokerProcess, rest: RestClient
) -> None:
    rest.send("/settled", b"x")
    first = rest.receive("/settled", timeout=WITHIN_S)
    with RestClient(broker.addresses.http_port) as other:
        assert other.receive("/settled").status == 204, "it is locked"
        assert other.ask("POST", first.lock).status == 200
        assert other.ask("PUT", first.lock).status == 200
        assert other.ask("POST", first.lock).status == 404
    again = rest.receive("/settled", timeout=WITHIN_S)
    assert again.broker_properties["DeliveryCount"] == 2
    token = again.broker_properties["LockToken"]
    assert rest.ask("DELETE", f"/SETTLED/Messages/any%2Fid/{token.upper()}").status == 200
    lost = rest.ask("PUT", again.lock)
    assert (lost.status, b"SubCode=40400" in lost.body) == (404, True)
    assert rest.ask("DELETE", f"/settled/messages/1/{uuid.uuid4()}").status == 404
    assert rest.ask("DELETE", f"/missing/messages/1/{token}").status == 410


def test_dead_letters_show_why(azure: ServiceBusClient, rest: RestClient) -> None:
    send(azure, "dead", ServiceBusMessage("poison"))
    with azure.get_queue_receiver("dead") as receiver:
        (message,) = receiver.receive_messages(max_wait_time=WITHIN_S)
        receiver.dead_letter_message(message, reason="bad", error_description="very")
    answer = rest.receive("/dead/$DeadLetterQueue", timeout=WITHIN_S)
    assert (answer.status, answer.body) == (201, b"poison")
    assert (answer.headers["deadletterreason"], answer.headers["deadlettererrordescription"]) == (
        '"bad"',
        '"very"',
    )
    assert answer.lock.startswith("/dead/$deadletterqueue/messages/")
    assert rest.ask("DELETE", answer.lock).status == 200


def test_subscriptions_are_received_from(azure: ServiceBusClient, rest: RestClient) -> None:
    rest.create("/news", kind="TopicDescription")
    rest.create("/news/subscriptions/All", kind="SubscriptionDescription")
    with azure.get_topic_sender("news") as sender:
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    answer = rest.receive("/news/Subscriptions/all", timeout=WITHIN_S)
    assert answer.lock.startswith("/news/subscriptions/all/messages/")
    assert rest.ask("DELETE", answer.lock).status == 200
    assert rest.receive("/news/subscriptions/ALL", method="DELETE", timeout=WITHIN_S).status == 200
    assert rest.receive("/news").status == 400
    assert rest.receive("/news/subscriptions/other").status == 410


def test_a_lock_is_lost_at_every_other_path(
    broker: BrokerProcess, azure: ServiceBusClient, rest: RestClient
) -> None:
    """A client with a token for one subscription alone has the lock tokens of another one."""
    rest.create("/split", kind="TopicDescription")
    for name in ("a", "b"):
        rest.create(f"/split/subscriptions/{name}", kind="SubscriptionDescription")
    with azure.get_topic_sender("split") as sender:
        sender.send_messages(ServiceBusMessage("x"))
    locked = rest.receive("/split/subscriptions/b", timeout=WITHIN_S)
    place, lock_token = (
        locked.lock.removeprefix("/split/subscriptions/b"),
        locked.broker_properties["LockToken"],
    )
    own = sas_token(f"http://127.0.0.1:{broker.addresses.http_port}/split/subscriptions/a")
    for method in ("DELETE", "PUT", "POST"):
        assert rest.ask(method, locked.lock, token=own).status == 401
        assert rest.ask(method, f"/split/subscriptions/a{place}", token=own).status == 404
        assert rest.ask(method, f"/split/subscriptions/a/$deadletterqueue{place}", token=own).status == 404
        assert rest.ask(method, f"/split/subscriptions/b/$deadletterqueue{place}").status == 404
        assert rest.ask(method, f"/split{place}").status == 404
        assert rest.ask(method, f"/split/subscriptions/c{place}").status == 410
    body = json.dumps({"lockTokens": [lock_token]})
    abandoned = rest.ask("POST", "/$partibus/abandon-messages/split/subscriptions/a", body, token=own)
    assert (abandoned.status, abandoned.json) == (200, {"abandoned": [], "lost": [lock_token]})
    assert rest.ask("DELETE", locked.lock).status == 200
    assert rest.receive("/split/subscriptions/a", timeout=WITHIN_S).status == 201


@pytest.mark.parametrize(
    ("message", "body", "content_type"),
    [
        (AmqpAnnotatedMessage(data_body=[b"a", b"b"]), b"ab", OCTETS),
        (AmqpAnnotatedMessage(value_body="téxt"), "téxt".encode(), TEXT),
        (
            AmqpAnnotatedMessage(value_body={"a": [1, None]}),
            b'{"a":[1,null]}',
            "application/json; charset=utf-8",
        ),
        (
            AmqpAnnotatedMessage(sequence_body=[[1, True], ["x"]]),
            b'[1,true,"x"]',
            "application/json; charset=utf-8",
        ),
    ],
)
def test_bodies_of_every_kind_are_shown(
    azure: ServiceBusClient, rest: RestClient, message: Any, body: bytes, content_type: str
) -> None:
    send(azure, "bodies", message)
    answer = rest.receive("/bodies", method="DELETE", timeout=WITHIN_S)
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, body, content_type)


def test_large_messages_come_in_one_piece(azure: ServiceBusClient, rest: RestClient) -> None:
    body = bytes(range(256)) * 3_900
    rest.send("/bodies", body)
    with azure.get_queue_receiver("bodies") as receiver:
        (message,) = receiver.receive_messages(max_wait_time=WITHIN_S)
        assert b"".join(message.body) == body
        receiver.abandon_message(message)
    assert rest.receive("/bodies", method="DELETE", timeout=WITHIN_S).body == body


def test_messages_of_sessions_cannot_be_received(rest: RestClient) -> None:
    answer = rest.receive("/sessions")
    assert (answer.status, b"SubCode=40000" in answer.body) == (400, True)


async def test_waiting_clients_hold_up_nobody(broker: BrokerProcess, azure: ServiceBusClient) -> None:
    """A hundred requests wait in one event loop of the broker; each gets its message from an AMQP client."""
    url = f"{broker.addresses.http_url}/awaited/messages/head?timeout={WITHIN_S:.0f}"
    headers = {"Authorization": sas_token(broker.addresses.http_url)}

    async def receive(session: aiohttp.ClientSession) -> bytes:
        async with session.delete(url, headers=headers) as answer:
            assert answer.status == 200
            return await answer.read()

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(receive(session)) for _ in range(100)]
        messages = [ServiceBusMessage(str(number)) for number in range(100)]
        await asyncio.to_thread(send, azure, "awaited", *messages)
    assert sorted(int(each.result()) for each in waiting) == [*range(100)]
