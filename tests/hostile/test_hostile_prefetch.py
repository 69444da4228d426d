"""A client that takes far more messages than it settles, from a broker above its memory mark."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker.throttle.memory_mark import UNSETTLED_ABOVE_MARK_MAX
from storage.disk import LocalDisk
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread

WITHIN_S = 30.0
MESSAGES = 3 * UNSETTLED_ABOVE_MARK_MAX + 1
QUEUES = [queue("orders", PartitionCount=4)]


def fill(folder: Path) -> None:
    """Leave MESSAGES messages in a queue of this data folder."""
    with (
        BrokerThread(folder, QUEUES, LocalDisk()) as broker,
        raw.opened(broker.addresses.amqp_port) as client,
    ):
        client.attach_sender(0, "orders")
        for number in range(MESSAGES):
            client.send_frame(raw.TRANSFER, raw.transfer_fields(0, number), message())
        client.read_dispositions(MESSAGES, WITHIN_S)


def above_its_mark(folder: Path) -> BrokerThread:
    """A broker on this folder. Any process uses more memory than its mark."""
    return BrokerThread(folder, QUEUES, LocalDisk(), memory_bytes_max=1 << 20)


def accepted(first: int, last: int) -> list[object]:
    """The fields of a disposition that completes these deliveries."""
    return raw.disposition_fields(True, first, last, True, raw.outcome(raw.ACCEPTED))


def test_above_the_memory_mark_a_client_that_settles_nothing_gets_few_messages_and_all_when_it_settles(
    tmp_path: Path,
) -> None:
    fill(tmp_path)
    with above_its_mark(tmp_path) as broker, raw.opened(broker.addresses.amqp_port) as client:
        client.attach_receiver(0, "orders")
        client.send_frame(raw.FLOW, raw.flow_fields(0, 0, MESSAGES))
        for _ in range(UNSETTLED_ABOVE_MARK_MAX):
            client.read_until(raw.TRANSFER, within_s=WITHIN_S)
        with pytest.raises(TimeoutError):
            client.read_until(raw.TRANSFER, within_s=0.5)
        received = UNSETTLED_ABOVE_MARK_MAX
        for first in range(0, MESSAGES, 50):  # half of the permitted unsettled messages
            last = min(first + 50, MESSAGES) - 1
            client.send_frame(raw.DISPOSITION, accepted(first, last))
            due = min(last + 1 + UNSETTLED_ABOVE_MARK_MAX, MESSAGES)
            deadline = time.monotonic() + WITHIN_S
            while received < due:
                client.read_until(raw.TRANSFER, within_s=max(deadline - time.monotonic(), 0.001))
                received += 1
        assert received == MESSAGES


def test_above_the_memory_mark_many_clients_hold_no_more_than_one_does_and_each_goes_on(
    tmp_path: Path,
) -> None:
    """With so small a mark, all links together may hold as many unsettled deliveries as one."""
    fill(tmp_path)
    with above_its_mark(tmp_path) as broker, raw.opened(broker.addresses.amqp_port) as second:
        with raw.opened(broker.addresses.amqp_port) as first:
            for client, count in ((first, UNSETTLED_ABOVE_MARK_MAX), (second, 1)):
                client.attach_receiver(0, "orders")
                client.send_frame(raw.FLOW, raw.flow_fields(0, 0, MESSAGES))
                for _ in range(count):
                    client.read_until(raw.TRANSFER, within_s=WITHIN_S)
            with pytest.raises(TimeoutError):  # before, each link could hold as many as the first one
                second.read_until(raw.TRANSFER, within_s=0.5)
            for number in range(20):
                second.send_frame(raw.DISPOSITION, accepted(number, number))
                second.read_until(raw.TRANSFER, within_s=WITHIN_S)
        for _ in range(UNSETTLED_ABOVE_MARK_MAX - 1):  # the first client is gone, and leaves its room
            second.read_until(raw.TRANSFER, within_s=WITHIN_S)
