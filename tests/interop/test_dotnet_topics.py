"""Topics, subscriptions and rules in the shapes of the official client for .NET, which does not run here,
against the running broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from protocol.codec import Array, Described, Int, Long, Symbol, TypeCode
from tests.support import raw_amqp as raw
from tests.support.broker_process import BrokerProcess, topic
from tests.support.dotnet_client import DotNetClient, message

ACCEPTED = raw.outcome(raw.ACCEPTED)
ONE, TWO = "events/Subscriptions/one", "events/Subscriptions/two"
RULE, NO_ACTION, SQL_ACTION = 0x137_0000_0004, 0x137_0000_0005, 0x137_0000_0006
SQL_FILTER, TRUE_FILTER, CORRELATION_FILTER = 0x13_7000_0006, 0x13_7000_0007, 0x13_7000_0009
RULES: Mapping[str, Mapping[str, Any]] = {
    "sized": {"sql-filter": {"expression": "size > 1"}, "sql-rule-action": {"expression": "SET seen = TRUE"}},
    "red": {
        "correlation-filter": {
            "correlation-id": None,
            "message-id": None,
            "to": None,
            "reply-to": None,
            "label": None,
            "session-id": None,
            "reply-to-session-id": None,
            "content-type": None,
            "properties": {
                "color": "red",
                "span": Described(Symbol("com.microsoft:timespan"), Long(70)),
            },
        },
        "sql-rule-action": None,
    },
}
"""By name, as a request describes them."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    topics = [topic("events", ["one", "two"])]
    with BrokerProcess(tmp_path_factory.mktemp("dotnet"), [], topics=topics) as process:
        yield process
        assert process.errors == []


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[DotNetClient]:
    with DotNetClient(broker.addresses.amqp_port) as connected:
        for entity in ("events", ONE, TWO):
            connected.authorize(entity)
        yield connected


def rules_of(client: DotNetClient, subscription: str) -> list[Described]:
    """All rules, read in pages."""
    found: list[Described] = []
    while True:
        asked = {"top": Int(2), "skip": Int(len(found))}
        status, answer, _ = client.ask(subscription, "com.microsoft:enumerate-rules", asked)
        if status == 204:
            return found
        assert status == 200 and 0 < len(answer["rules"]) <= 2
        found += [each["rule-description"] for each in answer["rules"]]


def add_rule(client: DotNetClient, name: str) -> tuple[int, str | None]:
    body = {"rule-name": name, "rule-description": {**RULES[name], "rule-name": name}}
    status, _, properties = client.ask(TWO, "com.microsoft:add-rule", body)
    return status, properties.get("errorCondition")


def of_colour(color: str, size: int) -> bytes:
    span = Described(Symbol("com.microsoft:timespan"), Long(70))
    properties = {"color": color, "size": Int(size), "span": span}
    return message(color.encode(), color, application_properties=properties)


def test_rules_are_added_listed_in_pages_and_removed(client: DotNetClient) -> None:
    assert [add_rule(client, name) for name in RULES] == [(200, None)] * 2
    assert add_rule(client, "red") == (409, "com.microsoft:entity-already-exists")
    first, sized, red = rules_of(client, TWO)
    assert {each.descriptor for each in (first, sized, red)} == {RULE}
    assert (first.value[0].descriptor, first.value[1].descriptor) == (TRUE_FILTER, NO_ACTION)
    of_filter, action, name, _ = sized.value
    assert (of_filter.descriptor, of_filter.value[0], name) == (SQL_FILTER, "size > 1", "sized")
    assert (action.descriptor, action.value[0]) == (SQL_ACTION, "SET seen = TRUE")
    of_filter, action, name, _ = red.value
    correlation = RULES["red"]["correlation-filter"]
    assert (of_filter.descriptor, action.descriptor, name) == (CORRELATION_FILTER, NO_ACTION, "red")
    assert of_filter.value == [None] * 8 + [correlation["properties"]]
    for name, outcome in (("$Default", 200), ("none", 404)):
        assert client.ask(TWO, "com.microsoft:remove-rule", {"rule-name": name})[0] == outcome

    sender = client.sender("events")
    for color, size in (("red", 1), ("red", 2), ("blue", 1)):
        assert client.send(sender, of_colour(color, size)) == ACCEPTED
    receiver = client.receiver(TWO)
    found = client.receive(receiver, 3)
    seen = sorted((each.body, "seen" in each.application_properties) for each in found)
    assert seen == [(b"red", False), (b"red", False), (b"red", True)]
    assert all(client.settle(each, ACCEPTED) == ACCEPTED for each in found)


def test_a_subscription_is_received_from_like_a_queue(client: DotNetClient) -> None:
    receiver = client.receiver(ONE)
    sender = client.sender("events")
    client.send(sender, message(b"first", "1", partition_key="k"))
    client.send(sender, message(b"second", "2", partition_key="k"))
    before = {each.body: each for each in client.receive(receiver, 5)}
    tokens = {"lock-tokens": Array(TypeCode.UUID, [before[b"first"].lock_token])}
    assert client.ask(ONE, "com.microsoft:renew-lock", tokens, receiver)[0] == 200
    assert client.settle(before[b"first"], raw.outcome(raw.MODIFIED)).descriptor == raw.MODIFIED
    (again,) = client.receive(receiver, 1)
    assert (again.body, again.delivery_count) == (b"first", 1)
    for each in (again, before[b"second"]):
        client.settle(each, raw.outcome(raw.REJECTED))
    client.authorize(f"{ONE}/$DeadLetterQueue")
    dead = client.receive(client.receiver(f"{ONE}/$DeadLetterQueue"), 2)
    assert {each.body for each in dead} == {b"first", b"second"}
