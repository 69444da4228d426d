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


def test_above_the_memory_mark_a_client_that_settles_nothing_gets_few_messages_and_all_when_it_settles(
    tmp_path: Path,
) -> None:
    queues = [queue("orders", PartitionCount=4)]
    with (
        BrokerThread(tmp_path, queues, LocalDisk()) as broker,
        raw.opened(broker.addresses.amqp_port) as client,
    ):
        client.attach_sender(0, "orders")
        for number in range(MESSAGES):
            client.send_frame(raw.TRANSFER, raw.transfer_fields(0, number), message())
        settled = 0
        while settled < MESSAGES:
            answer = client.read_until(raw.DISPOSITION, within_s=WITHIN_S)
            first = answer.field(1)
            settled += (first if answer.field(2) is None else answer.field(2)) - first + 1
    # Any process uses more memory than this mark.
    with (
        BrokerThread(tmp_path, queues, LocalDisk(), memory_bytes_max=1 << 20) as broker,
        raw.opened(broker.addresses.amqp_port) as client,
    ):
        client.attach_receiver(0, "orders")
        client.send_frame(raw.FLOW, raw.flow_fields(0, 0, MESSAGES))
        for _ in range(UNSETTLED_ABOVE_MARK_MAX):
            client.read_until(raw.TRANSFER, within_s=WITHIN_S)
        with pytest.raises(TimeoutError):
            client.read_until(raw.TRANSFER, within_s=0.5)
        received = UNSETTLED_ABOVE_MARK_MAX
        for first in range(0, MESSAGES, 50):  # half of the permitted unsettled messages
            last = min(first + 50, MESSAGES) - 1
            client.send_frame(
                raw.DISPOSITION, raw.disposition_fields(True, first, last, True, raw.outcome(raw.ACCEPTED))
            )
            due = min(last + 1 + UNSETTLED_ABOVE_MARK_MAX, MESSAGES)
            deadline = time.monotonic() + WITHIN_S
            while received < due:
                client.read_until(raw.TRANSFER, within_s=max(deadline - time.monotonic(), 0.001))
                received += 1
        assert received == MESSAGES
