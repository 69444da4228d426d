"""A link on which a client sends to a queue that detects duplicates: where messages go, and when a batch has
its outcome."""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import QueueSettings
from broker.message.identity import IDENTITY_BYTES, id_text
from broker.operations.general import Failed
from broker.operations.sending import Send, Sent
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message
from tests.support.link_stack import Client, LinkStack


async def outcomes(client: Client) -> list[Any]:
    """The outcomes that the client has heard."""
    return [frame.field(4) for frame in await client.heard(raw.DISPOSITION)]


def condition_of(outcome: Any) -> str:
    assert outcome.descriptor == raw.REJECTED
    return str(outcome.value[0].value[0])


def batch(*messages: bytes) -> bytes:
    return message(body=messages)


def named(*ids: str) -> list[bytes]:
    return [message(properties=[each], body=[each.encode()]) for each in ids]


async def detecting() -> tuple[LinkStack, Client]:
    stack = LinkStack(4, QueueSettings(requires_duplicate_detection=True))
    client = await stack.connect()
    await client.sender()
    return stack, client


async def test_where_duplicates_are_detected_messages_go_by_their_ids_with_their_identities() -> None:
    stack, client = await detecting()
    ids = ("one", "two", "three", "four", "five")
    for number, each in enumerate(named(*ids)):
        client.transfer(0, number, each)
    client.transfer(0, 5, batch(*named(*ids)), batch=True)
    await outcomes(client)
    seen: dict[bytes, set[tuple[int, bytes]]] = {}
    for part in stack.parts:
        for send in part.take_all(Send):
            assert send.identities is not None
            for stored, own in zip(send.messages, send.identities, strict=True):
                seen.setdefault(id_text(stored), set()).add((part.number, own))
    router = stack.queue.router
    assert {each.decode() for each in seen} == set(ids)
    for each, places in seen.items():
        [(number, own)] = places
        assert number == router.number_of(each.decode()) and len(own) == IDENTITY_BYTES


async def test_an_id_counts_however_the_descriptor_of_its_section_is_spelled() -> None:
    stack, client = await detecting()
    (plain,) = named("one")
    assert plain.startswith(b"\0\x53")
    for number, payload in enumerate((plain, b"\0\x80" + bytes(7) + plain[2:])):
        client.transfer(0, number, payload)
    assert await outcomes(client) == [], "nothing is refused"
    sent = [send for part in stack.parts for send in part.take_all(Send)]
    first, second = [own for send in sent for own in send.identities or ()]
    assert first == second


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_batch_of_several_partitions_has_its_outcome_when_all_have_answered(refuses: bool) -> None:
    stack, client = await detecting()
    client.transfer(0, 0, batch(*named(*map(str, range(20)))), batch=True)
    await outcomes(client)
    asked = [part for part in stack.parts if part.has(Send)]
    assert len(asked) == 4
    for place, part in enumerate(asked):
        assert await outcomes(client) == [], "not all of it is durable"
        if refuses and place == 1:
            part.answer(Send, lambda send: Failed(Reason.QUOTA_EXCEEDED, "full", send.cookie))
        else:
            part.answer(Send, lambda send: Sent(1, send.cookie, [0]))
    (outcome,) = await outcomes(client)
    if refuses:
        assert condition_of(outcome) == "amqp:resource-limit-exceeded"
    else:
        assert outcome.descriptor == raw.ACCEPTED
    meter = stack.metrics.entities["queue"]
    assert (meter.duplicate_messages, meter.successful_requests) == (3 if refuses else 4, int(not refuses))


async def test_nothing_of_a_batch_is_posted_while_a_partition_that_it_needs_is_down() -> None:
    stack, client = await detecting()
    stack.parts[2].available = False
    client.transfer(0, 0, batch(*named(*map(str, range(20)))), batch=True)
    (outcome,) = await outcomes(client)
    assert condition_of(outcome) == "com.microsoft:server-busy"
    assert not any(part.has(Send) for part in stack.parts)


async def test_messages_of_a_batch_without_an_id_are_stored_together_once_the_others_are() -> None:
    stack, client = await detecting()
    client.transfer(0, 0, batch(*named("one", "two"), *[message(body=[b"x"])] * 9), batch=True)
    await outcomes(client)
    first = [part for part in stack.parts if part.has(Send)]
    numbers = {stack.queue.router.number_of(each) for each in ("one", "two")}
    assert {part.number for part in first} == numbers
    for part in first:
        part.answer(Send, lambda send: Sent(1, send.cookie))
    assert await outcomes(client) == []
    refusing = stack.part_of(Send)
    refusing.answer(Send, lambda send: Failed(Reason.PARTITION_UNAVAILABLE, "down", send.cookie))
    another = stack.part_of(Send)
    assert another is not refusing
    last = another.answer(Send, lambda send: Sent(1, send.cookie))
    assert isinstance(last, Send) and len(last.messages) == len(last.identities or ()) == 9
    (outcome,) = await outcomes(client)
    assert outcome.descriptor == raw.ACCEPTED
    meter = stack.metrics.entities["queue"]
    assert (meter.incoming_messages, meter.successful_requests) == (11, 1)
    assert stack.services.inflight.bytes == 0


async def test_messages_of_a_batch_without_an_id_are_not_stored_if_the_others_are_refused() -> None:
    stack, client = await detecting()
    client.transfer(0, 0, batch(*named("one"), message(body=[b"x"])), batch=True)
    await outcomes(client)
    stack.part_of(Send).answer(Send, lambda send: Failed(Reason.QUOTA_EXCEEDED, "full", send.cookie))
    (outcome,) = await outcomes(client)
    assert condition_of(outcome) == "amqp:resource-limit-exceeded"
    assert not any(part.has(Send) for part in stack.parts)
    assert stack.services.inflight.bytes == 0


async def test_a_batch_without_ids_goes_to_one_partition_also_where_duplicates_are_detected() -> None:
    stack, client = await detecting()
    client.transfer(0, 0, batch(*[message(body=[b"x"])] * 20), batch=True)
    await outcomes(client)
    (part,) = [part for part in stack.parts if part.has(Send)]
    part.answer(Send, lambda send: Failed(Reason.PARTITION_UNAVAILABLE, "down", send.cookie))
    assert stack.part_of(Send) is not part


async def test_a_batch_with_a_key_goes_to_one_partition_also_where_duplicates_are_detected() -> None:
    stack, client = await detecting()
    keyed = message(annotations={"x-opt-partition-key": "a"}, body=[b"x"])
    client.transfer(0, 0, batch(keyed, *named("one", "two")), batch=True)
    await outcomes(client)
    asked = [part.number for part in stack.parts if part.has(Send)]
    assert asked == [stack.queue.router.number_of("a")]
