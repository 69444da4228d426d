"""Scenarios of the official Python client with scheduled messages.

Importing this module registers its scenarios beside those of `azure_scenarios.py`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageNotFoundError

from tests.interop.azure_clients import body, receive_exactly
from tests.interop.azure_scenarios import SCENARIOS, Bench, scenario

__all__ = ["SCENARIOS"]

SOON = timedelta(seconds=8)
"""Long enough to look at the message before, on a busy machine."""
LATE = timedelta(hours=1)
WITHIN_S = 30.0


def at(later: timedelta) -> datetime:
    return datetime.now(UTC) + later


@scenario
async def scheduled_by_annotation(bench: Bench) -> None:
    """Messages with a time, alone and in a batch, wait for it; a time that has passed means now."""
    sender = await bench.client.sender(bench.queue)
    soon = at(SOON)
    await sender.send_messages(ServiceBusMessage("alone", scheduled_enqueue_time_utc=soon))
    batch = await sender.create_message_batch()
    batch.add_message(ServiceBusMessage("in a batch", scheduled_enqueue_time_utc=soon))
    batch.add_message(ServiceBusMessage("beside it", time_to_live=timedelta(minutes=1)))
    batch.add_message(ServiceBusMessage("late", scheduled_enqueue_time_utc=at(LATE)))
    await sender.send_messages(batch)
    await sender.send_messages(ServiceBusMessage("past", scheduled_enqueue_time_utc=at(-LATE)))

    receiver = await bench.receiver()
    shown = {body(each): each for each in await receiver.peek_messages(10, sequence_number=1)}
    assert {name: each.state for name, each in shown.items()} == {
        b"alone": ServiceBusMessageState.SCHEDULED,
        b"in a batch": ServiceBusMessageState.SCHEDULED,
        b"late": ServiceBusMessageState.SCHEDULED,
        b"beside it": ServiceBusMessageState.ACTIVE,
        b"past": ServiceBusMessageState.ACTIVE,
    }
    for message in await receive_exactly(receiver, 2):
        assert body(message) in (b"beside it", b"past")
        await receiver.complete_message(message)
    due = await receive_exactly(receiver, 2, within_s=WITHIN_S)
    assert {body(message) for message in due} == {b"alone", b"in a batch"}
    for message in due:
        before = shown[body(message)]
        assert message.sequence_number != before.sequence_number
        assert message.scheduled_enqueue_time_utc == before.scheduled_enqueue_time_utc
        assert message.enqueued_time_utc is not None and message.scheduled_enqueue_time_utc is not None
        assert message.enqueued_time_utc >= message.scheduled_enqueue_time_utc
        await receiver.complete_message(message)
    (left,) = await receiver.peek_messages(10, sequence_number=1)
    assert body(left) == b"late" and left.state == ServiceBusMessageState.SCHEDULED


@scenario
async def schedule_and_cancel(bench: Bench) -> None:
    """Requests to schedule name sequence numbers, by which the messages can be cancelled before their time
    (AMQP contract 7.3.6, 7.3.7).
    """
    sender = await bench.client.sender(bench.queue)
    keys = (None, "a", "b", "a", None)
    messages = [
        ServiceBusMessage(f"{place}", message_id=f"id-{place}", partition_key=key)
        for place, key in enumerate(keys)
    ]
    numbers = await sender.schedule_messages(messages, at(SOON))
    late = await sender.schedule_messages(ServiceBusMessage("late"), at(LATE))
    receiver = await bench.receiver()
    shown = {body(each): each.sequence_number for each in await receiver.peek_messages(10, sequence_number=1)}
    assert shown == {b"late": late[0]} | {b"%d" % place: number for place, number in enumerate(numbers)}
    same_key = numbers[1] >> 48
    assert numbers[3] >> 48 == same_key and numbers[0] >> 48 == numbers[4] >> 48
    await sender.cancel_scheduled_messages([numbers[1], late[0], numbers[4]])
    due = await receive_exactly(receiver, 3, within_s=WITHIN_S)
    assert {body(message) for message in due} == {b"0", b"2", b"3"}
    for message in due:
        await receiver.complete_message(message)
    assert await receiver.peek_messages(10, sequence_number=1) == []
    async with bench.connect(retry_total=0) as impatient:
        other = await impatient.sender(bench.queue)
        with pytest.raises(MessageNotFoundError):
            await other.cancel_scheduled_messages(numbers[0])


@scenario
async def scheduled_messages_live_from_their_time(bench: Bench) -> None:
    """The time to live counts from the time at which the message is enqueued."""
    lives = timedelta(seconds=1)
    await bench.send(ServiceBusMessage("x", scheduled_enqueue_time_utc=at(2 * lives), time_to_live=lives))
    dead_letters = await bench.dead_letters()
    (dead,) = await receive_exactly(dead_letters, 1, within_s=WITHIN_S)
    assert dead.dead_letter_reason == "TTLExpiredException"
    assert dead.enqueued_time_utc is not None and dead.scheduled_enqueue_time_utc is not None
    assert dead.enqueued_time_utc >= dead.scheduled_enqueue_time_utc
