"""Sends of HTTP requests: what a batch may be, and that none of a wrong one is stored (HTTP contract 4.2)."""

from __future__ import annotations

import json

import pytest

from broker.http import request_sends
from broker.message.plain_message import PlainMessage, encoded
from tests.support.broker_thread import BrokerThread
from tests.support.rest_client import RestClient

BATCH = {"Content-Type": "application/vnd.microsoft.servicebus.json"}


def test_nothing_of_a_refused_batch_is_sent(broker: BrokerThread, rest: RestClient) -> None:
    wrong: list[object] = [
        [],
        {},
        5,
        [5],
        [{"Body": 5}],
        [{"body": "misspelt"}],
        [{"UserProperties": {"a": []}}],
        [{"Body": "fine"}, {"BrokerProperties": {"TimeToLive": -1}}],
        [{"BrokerProperties": {"PartitionKey": "a"}}, {"BrokerProperties": {"PartitionKey": "b"}}],
    ]
    texts = [json.dumps(each) for each in wrong] + ["", "[", '[{"Body":"a"},', '[{"Body":"a"}]x', "[" * 5_000]
    texts.append('[{"Body":"a","UserProperties":{"a":1,"a":2}}]')
    for text in texts:
        answer = rest.ask("POST", "/keyed/messages", text, BATCH)
        assert (answer.status, b"SubCode=40000" in answer.body) == (400, True), (text, answer.body)
    assert broker.messages_of("keyed") == 0


def test_a_message_is_stored_once_it_is_answered(broker: BrokerThread, rest: RestClient) -> None:
    rest.send("/plain", b"one")
    batch = json.dumps([{"Body": str(number)} for number in range(200)])
    assert rest.ask("POST", "/plain/messages", f" {batch} ", BATCH).status == 201
    assert broker.messages_of("plain") == 201
    assert broker.broker.memory.under_way == 0, "nothing is left under way"


def test_a_batch_is_no_larger_than_a_message_may_be(broker: BrokerThread, rest: RestClient) -> None:
    batch = json.dumps([{"Body": "x" * 1_020}] * 1_000)
    answer = rest.ask("POST", "/keyed/messages", batch, BATCH)
    assert (answer.status, b"SubCode=40300" in answer.body) == (403, True)
    assert broker.messages_of("keyed") == 0


def test_a_batch_is_refused_as_soon_as_its_messages_are_too_large(
    broker: BrokerThread, rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def noting(message: PlainMessage) -> bytes:
        payload = encoded(message)
        sizes.append(len(payload))
        return payload

    monkeypatch.setattr(request_sends, "encoded", noting)
    count = 340_000
    assert rest.ask("POST", "/keyed/messages", f"[{'{},' * (count - 1)}{{}}]", BATCH).status == 403
    assert sum(sizes[:-1]) <= 1024 * 1024, "no more is gathered than a message may have"
    assert broker.messages_of("keyed") == 0


def test_a_batch_is_refused_by_its_size_even_where_a_message_may_be_larger(
    broker: BrokerThread, rest: RestClient
) -> None:
    rest.create("/large", "<MaxMessageSizeInKilobytes>10240</MaxMessageSizeInKilobytes>")
    answer = rest.ask("POST", "/large/messages", "[" + " " * (1 << 20), BATCH)
    assert (answer.status, b"the limit for a batch is 1048576" in answer.body) == (403, True)
    many = json.dumps([{}] * 100_000)
    answer = rest.ask("POST", "/large/messages", many, BATCH)
    assert (answer.status, b"the limit for a batch is 1048576" in answer.body) == (403, True)
    assert broker.messages_of("large") == 0
    rest.send("/large", bytes(2 << 20))


def test_a_batch_may_be_full_of_spaces(broker: BrokerThread, rest: RestClient) -> None:
    spaces = " \t\r\n" * 250_000
    assert rest.ask("POST", "/plain/messages", f'[{{"Body":"a"}}{spaces}]', BATCH).status == 201
