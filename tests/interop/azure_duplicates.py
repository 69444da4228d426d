"""Scenarios of the official Python client with duplicate detection (AMQP contract 10.5).

Importing this module registers its scenarios beside those of `azure_scenarios.py`.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from tests.interop.azure_clients import body, receive_exactly
from tests.interop.azure_scenarios import SCENARIOS, Bench, scenario

__all__ = ["SCENARIOS"]

FORGOTTEN_AFTER_S = 5.2
"""A little more than the window of the queue `duplicates-forgotten`."""


def message(text: str, message_id: str, key: str | None = None) -> ServiceBusMessage:
    return ServiceBusMessage(text, message_id=message_id, partition_key=key)


@scenario
async def duplicates_dropped(bench: Bench) -> None:
    """A message whose id was sent within the window is acknowledged and dropped: alone, in a batch,
    scheduled. Ids are compared as text, and together with the partition key.
    """
    sender = await bench.client.sender(bench.queue)
    for text in ("first", "second"):
        await sender.send_messages(message(text, "a"))
    for text in ("in a batch", "the batch again"):
        batch = await sender.create_message_batch()
        for name in ("a", "b", "c", "d", "b"):
            batch.add_message(message(f"{text} {name}", name))
        await sender.send_messages(batch)
    unique = uuid4()
    properties = AmqpMessageProperties(message_id=unique)
    await sender.send_messages(AmqpAnnotatedMessage(data_body=b"uuid", properties=properties))
    await sender.send_messages(message("the same as text", str(unique)))
    for key in ("k", "l", "k"):
        await sender.send_messages(message(f"key {key}", "a", key))
    late = datetime.now(UTC) + timedelta(hours=1)
    (number,) = await sender.schedule_messages(message("scheduled", "e"), late)
    await sender.send_messages(message("not scheduled", "e"))
    assert await sender.schedule_messages([message("a", "a"), message("e", "e")], late) == [0, 0]

    receiver = await bench.receiver()
    found = await receive_exactly(receiver, 7)
    assert {body(each) for each in found} == {
        b"first",
        b"in a batch b",
        b"in a batch c",
        b"in a batch d",
        b"uuid",
        b"key k",
        b"key l",
    }
    for each in found:
        await receiver.complete_message(each)
    await sender.send_messages(message("after it was received", "a"))
    (left,) = await receiver.peek_messages(10, sequence_number=1)
    assert left.sequence_number == number and body(left) == b"scheduled"


@scenario
async def duplicates_forgotten(bench: Bench) -> None:
    """After the window, an id is new again."""
    sender = await bench.client.sender(bench.queue)
    await sender.send_messages(message("once", "a"))
    await asyncio.sleep(FORGOTTEN_AFTER_S)
    await sender.send_messages(message("again", "a"))
    found = await receive_exactly(await bench.receiver(), 2)
    assert {body(each) for each in found} == {b"once", b"again"}
