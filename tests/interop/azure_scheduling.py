"""Scenarios of the official Python client with scheduled messages.

Importing this module registers its scenarios beside those of `azure_scenarios.py`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusMessage, ServiceBusMessageState

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
async def scheduled_messages_live_from_their_time(bench: Bench) -> None:
    """The time to live counts from the time at which the message is enqueued."""
    lives = timedelta(seconds=1)
    await bench.send(ServiceBusMessage("x", scheduled_enqueue_time_utc=at(2 * lives), time_to_live=lives))
    dead_letters = await bench.dead_letters()
    (dead,) = await receive_exactly(dead_letters, 1, within_s=WITHIN_S)
    assert dead.dead_letter_reason == "TTLExpiredException"
    assert dead.enqueued_time_utc is not None and dead.scheduled_enqueue_time_utc is not None
    assert dead.enqueued_time_utc >= dead.scheduled_enqueue_time_utc
