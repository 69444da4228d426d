"""More scenarios for the official Python client: dead-letter queues, many deferred messages,
delivery-annotations.

Importing this module registers its scenarios beside those of `azure_scenarios.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.interop.azure_clients import Receiver, body, receive_exactly
from tests.interop.azure_scenarios import RECEIVE_AND_DELETE, SCENARIOS, Bench, scenario

__all__ = ["SCENARIOS"]


@scenario
async def dead_letter_queue_leads_no_further(bench: Bench) -> None:
    """A dead-letter queue does not count deliveries and refuses dead-lettering, on links and on `$management`
    (AMQP contract 5.6, 10.4).
    """
    await bench.send(ServiceBusMessage("spoilt"))
    receiver = await bench.receiver()
    (message,) = await receive_exactly(receiver, 1)
    await receiver.dead_letter_message(message, reason="no good", error_description="it cannot be read")
    dead_letters = await bench.dead_letters()
    for _ in range(3):
        (dead,) = await receive_exactly(dead_letters, 1)
        assert dead.delivery_count == 0
        await dead_letters.abandon_message(dead)
    (dead,) = await receive_exactly(dead_letters, 1)
    await refuse_dead_lettering(dead_letters, dead)
    await dead_letters.peek_messages(1)  # after the error the client has closed its link, and opens another
    await dead_letters.renew_message_lock(dead)
    await dead_letters.defer_message(dead)
    (deferred,) = await dead_letters.receive_deferred_messages([dead.sequence_number or 0])
    await refuse_dead_lettering(dead_letters, deferred)
    await dead_letters.peek_messages(1)
    assert (deferred.delivery_count, deferred.dead_letter_reason, deferred.dead_letter_error_description) == (
        0,
        "no good",
        "it cannot be read",
    )
    await dead_letters.complete_message(deferred)
    assert await dead_letters.peek_messages(1) == []


async def refuse_dead_lettering(dead_letters: Receiver, dead: ServiceBusReceivedMessage) -> None:
    try:
        await dead_letters.dead_letter_message(dead, reason="again", error_description="and again")
    except ServiceBusError as refusal:
        assert "amqp:not-allowed" in str(refusal) or "cannot be dead-lettered again" in str(refusal), refusal
    else:
        raise AssertionError("it was dead-lettered")


@scenario
async def deferred_in_bulk(bench: Bench) -> None:
    """More deferred messages than fit into one response are refused together, and none of them stays locked;
    in smaller requests, all of them come.
    """
    sender = await bench.client.sender(bench.queue)
    for _ in range(24):
        await sender.send_messages(ServiceBusMessage(b"x" * 900_000, partition_key="together"))
    receiver = await bench.receiver()
    left = []
    for message in await receive_exactly(receiver, 24, within_s=30):
        left.append(message.sequence_number or 0)
        await receiver.defer_message(message)
    with pytest.raises(ServiceBusError, match="Receive fewer messages with one request"):
        await receiver.receive_deferred_messages(left)
    for start in range(0, 24, 4):
        found = await receiver.receive_deferred_messages(left[start : start + 4])
        assert [message.sequence_number for message in found] == left[start : start + 4]
        for message in found:
            await receiver.complete_message(message)
    assert await receiver.peek_messages(1, sequence_number=1) == []


@scenario
async def delivery_annotations(bench: Bench) -> None:
    """The lock token and the sender's annotations arrive with every way of receiving (AMQP contract 5.5)."""
    key = b"x-opt-lock-token"
    await bench.send(
        *[AmqpAnnotatedMessage(data_body=b"x", delivery_annotations={"hop": b"first"}) for _ in range(2)],
        ServiceBusMessage("y"),
    )
    receiver = await bench.receiver()
    found = await receive_exactly(receiver, 3)
    for message in found:
        assert delivered_annotations(message)[key] == message.lock_token
    own = sorted(
        (message for message in found if body(message) == b"x"), key=lambda each: each.sequence_number or 0
    )
    for message in own:
        assert delivered_annotations(message)[b"hop"] == b"first"
    await receiver.defer_message(own[0])
    (deferred,) = await receiver.receive_deferred_messages([own[0].sequence_number or 0])
    assert delivered_annotations(deferred) == {b"hop": b"first", key: deferred.lock_token}
    await receiver.complete_message(deferred)
    for message in found:
        if message is not own[0]:
            await receiver.abandon_message(message)
    (shown,) = [
        message for message in await receiver.peek_messages(5, sequence_number=1) if body(message) == b"x"
    ]
    assert delivered_annotations(shown) == {b"hop": b"first"}
    await bench.client.close_receivers()
    destructive = await bench.receiver(receive_mode=RECEIVE_AND_DELETE)
    removed = {
        body(message): delivered_annotations(message) for message in await receive_exactly(destructive, 2)
    }
    assert removed == {b"x": {b"hop": b"first"}, b"y": {}}


def delivered_annotations(message: ServiceBusReceivedMessage) -> dict[Any, Any]:
    found = message.raw_amqp_message.delivery_annotations
    assert found is not None, "a delivery has the section always"
    return dict(found)
