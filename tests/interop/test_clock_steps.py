"""The wall clock of the broker's machine is set while an official client holds locks. The client's own clock
stays right.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
)

from broker.base.clock import SystemClock
from storage.disk import LocalDisk
from tests.support.azure_client import azure_client
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread

LOCK_S = 5.0
WITHIN_S = 60.0
"""Time limit for any wait; on a busy machine things happen much later than they are due."""
FORWARD, BACK = timedelta(minutes=50), timedelta(minutes=-60)
"""The forward steps are shorter than the lifetime of tokens, because tokens expire by the wall clock."""


class SettableClock(SystemClock):
    """The machine's clock, with a wall time that tests can set."""

    __slots__ = ("ahead_ms",)

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def step(self, by: timedelta) -> None:
        self.ahead_ms += int(by.total_seconds() * 1000)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def client(tmp_path: Path, clock: SettableClock) -> Iterator[ServiceBusClient]:
    queues = [queue("orders", LockDuration=f"PT{LOCK_S:g}S")]
    with (
        BrokerThread(tmp_path, queues, LocalDisk(), clock=clock) as broker,
        azure_client(broker.addresses.connection_string()) as client,
    ):
        yield client


def send(client: ServiceBusClient, body: str, time_to_live: timedelta | None = None) -> None:
    with client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage(body, time_to_live=time_to_live))


def receive(receiver: ServiceBusReceiver, within_s: float = WITHIN_S) -> ServiceBusReceivedMessage:
    (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=within_s)
    return message


def seconds_from_now(moment: datetime | None, ahead: timedelta) -> float:
    """Seconds until a moment by the broker's wall clock, which is `ahead` of ours."""
    assert moment is not None
    return (moment - datetime.now(UTC) - ahead).total_seconds()


steps = pytest.mark.parametrize("step", [FORWARD, BACK], ids=["forward", "back"])


@steps
def test_a_lock_ends_after_its_duration_when_the_wall_clock_is_set(
    client: ServiceBusClient, clock: SettableClock, step: timedelta
) -> None:
    send(client, "one")
    with client.get_queue_receiver("orders") as first, client.get_queue_receiver("orders") as second:
        asked = time.monotonic()
        held = receive(first)
        assert 0 < seconds_from_now(held.locked_until_utc, timedelta()) <= LOCK_S
        clock.step(step)
        again = receive(second)
        waited_s = time.monotonic() - asked
        assert waited_s >= LOCK_S - 0.1, "the step has ended the lock"
        assert again.delivery_count == 1 and str(again) == "one"
        assert 0 < seconds_from_now(again.locked_until_utc, step) <= LOCK_S, (
            "shown in the wall time of the moment"
        )


@steps
def test_a_lock_is_renewed_and_settled_when_the_wall_clock_is_set(
    client: ServiceBusClient, clock: SettableClock, step: timedelta
) -> None:
    send(client, "one")
    with client.get_queue_receiver("orders") as receiver:
        held = receive(receiver)
        clock.step(step)
        assert 0 < seconds_from_now(receiver.renew_message_lock(held), step) <= LOCK_S
        if (
            step > timedelta()
        ):  # the client considers a lock that ends in its own past as expired, and does not ask
            receiver.complete_message(held)
            assert receiver.peek_messages(max_message_count=5, sequence_number=1) == []


@steps
def test_a_time_to_live_counts_what_passes_when_the_wall_clock_is_set(
    client: ServiceBusClient, clock: SettableClock, step: timedelta
) -> None:
    send(client, "short", timedelta(seconds=3))
    send(client, "long", timedelta(hours=2))
    clock.step(step)
    with client.get_queue_receiver("orders") as receiver:
        shown: list[str] = []
        until = time.monotonic() + WITHIN_S
        while shown != ["long"] and time.monotonic() < until:
            shown = [str(each) for each in receiver.peek_messages(max_message_count=5, sequence_number=1)]
            time.sleep(0.1)
        assert shown == ["long"]
