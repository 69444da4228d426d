"""Links that name a via entity: which are accepted, and what becomes of the messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import AuthorizationRule, EntityStatus, QueueSettings
from broker.frontend.links.via_link import TRANSFER_DESTINATION
from broker.namespace.router import partition_of_key
from broker.operations.columns import DESTINATION
from broker.operations.general import Failed
from broker.operations.sending import Send
from broker.operations.transactions import Transact, Transacted
from protocol.codec import Symbol
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message
from tests.support.link_stack import Client, LinkStack
from tests.support.put_token import put
from tests.support.raw_amqp import Frame
from tests.support.transactions import Coordinator, condition_of, outcome_of


async def attach(client: Client, destination: object, address: str = "queue", handle: int = 0) -> list[Frame]:
    fields = [
        *raw.sender_attach(handle, address),
        None,
        None,
        None,
        {Symbol(TRANSFER_DESTINATION): destination},
    ]
    return await client.attach(fields)


async def sending(**given: Any) -> tuple[LinkStack, Client]:
    stack = LinkStack(4, **given)
    stack.add_queue("other", 1)
    client = await stack.connect()
    frames = await attach(client, "amqps://host/Other")
    assert [frame.code for frame in frames] == [raw.ATTACH, raw.FLOW], frames
    return stack, client


async def test_each_message_is_kept_by_its_partition_and_accepted_once_it_is_durable() -> None:
    stack, client = await sending()
    notes = ({"x-opt-via-partition-key": "a"}, {"x-opt-partition-key": "b"}, None)
    for number, note in enumerate(notes):
        client.transfer(0, number, message(annotations=note, body=[b"x"]))
    assert outcome_of(await client.hear()) is None
    places = [part.number for part in stack.parts for _ in range(len(part.posted))]
    assert len(places) == 3
    assert {partition_of_key("a", 4), partition_of_key("b", 4)} <= set(places)
    for part in stack.parts:
        while part.has(Transact):
            transact, tell = part.take(Transact)
            assert transact.send.messages == () and transact.transfers is not None
            assert transact.transfers.columns == {DESTINATION: [b"other"]}
            tell(Transacted(1, transact.cookie))
    accepted = [frame for frame in await client.hear() if frame.code == raw.DISPOSITION]
    assert accepted and all(frame.field(4).descriptor == raw.ACCEPTED for frame in accepted)


async def test_a_refusal_reaches_the_sender() -> None:
    stack, client = await sending()
    client.transfer(0, 0, message(annotations={"x-opt-via-partition-key": "a"}, body=[b"x"]))
    await client.hear()
    transact, tell = stack.part_of(Transact).take(Transact)
    tell(Failed(Reason.QUOTA_EXCEEDED, "full", transact.cookie))
    assert condition_of(outcome_of(await client.hear()))[0] == "amqp:resource-limit-exceeded"
    client.transfer(0, 1, b"no message")
    assert condition_of(outcome_of(await client.hear()))[0] == "amqp:decode-error"


async def test_messages_that_come_together_are_kept_together_unless_one_cannot_be_sent() -> None:
    stack, client = await sending()
    good = message(annotations={"x-opt-via-partition-key": "a"}, body=[b"x"])
    transfers = [
        raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), payload)
        for number, payload in enumerate([good, good, good, b"no message", good])
    ]
    client.say(*transfers[:3])
    await client.hear()
    part = stack.part_of(Transact)
    transact, tell = part.take(Transact)
    assert transact.transfers is not None and len(transact.transfers.messages) == 3
    tell(Transacted(3, transact.cookie))
    (accepted,) = (frame for frame in await client.hear() if frame.code == raw.DISPOSITION)
    assert (accepted.field(1), accepted.field(2)) == (0, 2)
    client.say(*transfers[3:])
    assert condition_of(outcome_of(await client.hear()))[0] == "amqp:decode-error"
    (transact,) = part.take_all(Transact)
    assert transact.transfers is not None and len(transact.transfers.messages) == 1


async def test_a_transaction_goes_through_the_entity_that_the_link_names() -> None:
    stack, client = await sending()
    coordinator = await Coordinator.attach(client)
    txn_id = await coordinator.declare()
    stack.clock.advance(1_000)
    coordinator.send(0, message(body=[b"x"]), txn_id)
    assert outcome_of(await client.hear()).descriptor == raw.TRANSACTIONAL
    assert stack.queue.accessed_at_ms == stack.clock.now_ms(), "the via entity is not idle"
    await coordinator.discharge(txn_id)
    transact, _ = stack.part_of(Transact).take(Transact)
    assert transact.transfers is not None and transact.send == Send([], None)


@pytest.mark.parametrize(
    ("destination", "condition"),
    [
        (7, "com.microsoft:argument-error"),
        ("", "com.microsoft:argument-error"),
        ("nothing", "amqp:not-found"),
        ("other/$deadletterqueue", "amqp:not-allowed"),
        ("queue/$deadletterqueue", "amqp:not-allowed"),
        ("other/$management", "amqp:not-allowed"),
    ],
)
async def test_a_destination_that_takes_no_messages_is_refused(destination: object, condition: str) -> None:
    stack = LinkStack()
    stack.add_queue("other", 1)
    client = await stack.connect()
    answer, detach = await attach(client, destination)
    assert answer.field(5) is None and answer.field(6) is None
    assert detach.field(2).value[0] == condition


@pytest.mark.parametrize("destination", [None, "queue"])
async def test_a_link_to_the_destination_itself_is_an_ordinary_one(destination: object) -> None:
    stack = LinkStack()
    client = await stack.connect()
    await attach(client, destination)
    client.transfer(0, 0, message(body=[b"x"]))
    await client.hear()
    assert stack.part_of(Send).has(Send)


@pytest.mark.parametrize("allowed", ["queue", "other"])
async def test_the_right_to_send_is_needed_on_both(allowed: str) -> None:
    stack = LinkStack()
    stack.add_queue("other", 1)
    client = await stack.connect(raw.sasl_anonymous())
    await put(client, stack, allowed)
    answer, detach = await attach(client, "other")
    assert answer.field(5) is None and answer.field(6) is None
    condition, text, _ = detach.field(2).value
    assert condition == "amqp:unauthorized-access" and allowed not in text.rpartition("/")[2]


@pytest.mark.parametrize("in_transaction", [False, True], ids=["plain", "in a transaction"])
@pytest.mark.parametrize("ended", ["queue", "other"])
async def test_the_link_ends_with_the_claim_for_either_entity(ended: str, in_transaction: bool) -> None:
    stack = LinkStack()
    stack.add_queue("other", 1)
    client = await stack.connect(raw.sasl_anonymous())
    for name in ("queue", "other"):
        await put(client, stack, name, seconds=60 if name == ended else 600)
    await attach(client, "other")
    assert client.connection.tokens.claims.keys() == {"sb://test/queue", "sb://test/other"}
    coordinator = await Coordinator.attach(client)
    txn_id = await coordinator.declare()
    stack.clock.advance(60_000)
    client.connection.clock_was_set()
    (detach,) = await client.heard(raw.DETACH)
    assert detach.field(2).value[0] == "amqp:unauthorized-access"
    if in_transaction:
        coordinator.send(0, message(body=[b"x"]), txn_id)
    else:
        client.transfer(0, coordinator.number, message(body=[b"x"]))
    assert outcome_of(await client.hear()) is None
    assert not any(part.has(Transact) for part in stack.parts)


async def test_the_link_ends_when_the_rule_of_the_destination_loses_its_right() -> None:
    stack = LinkStack()
    stack.add_queue("other", 1)
    client = await stack.connect(raw.sasl_anonymous())
    stack.namespace.change_rules("other", AuthorizationRule("app", "key", "", frozenset({"Send"})))
    await put(client, stack, "queue")
    await put(client, stack, "other", "app", "key")
    await attach(client, "other")
    stack.namespace.change_rules("other", AuthorizationRule("app", "key", "", frozenset({"Listen"})))
    assert len(await client.heard(raw.DETACH)) == 1


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
async def test_a_destination_that_is_disabled_is_refused_as_for_any_sender(status: EntityStatus) -> None:
    stack = LinkStack()
    stack.add_queue("other", 1, QueueSettings(status=status))
    client = await stack.connect()
    answer, detach = await attach(client, "other")
    assert answer.field(5) is None and answer.field(6) is None
    assert detach.field(2).value[0] == "com.microsoft:entity-disabled"


async def test_the_link_ends_with_either_entity() -> None:
    for name in ("queue", "other"):
        stack, client = await sending()
        queue = stack.namespace.queues[name]
        settings = replace(queue.description.settings, status=EntityStatus.DISABLED)
        queue.description = queue.description.updated(settings, 0)
        for watcher in list(queue.watchers):
            watcher.queue_changed()
        frames = await client.hear()
        assert [frame.code for frame in frames] == [raw.DETACH], name
