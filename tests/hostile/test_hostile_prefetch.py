"""Clients that take far more messages than they settle, from a broker above its memory mark, or than they let
it send."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker.namespace.meter import EntityMeter
from broker.throttle.memory_mark import UNSETTLED_ABOVE_MARK_MAX
from protocol.codec import UInt
from storage.disk import LocalDisk
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import HEADER, message, sections
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.raw_amqp import RawConnection
from tests.support.waiting import until_seen

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


def take_with_a_shut_window(client: RawConnection, meter: EntityMeter) -> None:
    """Give credit for everything, and wait until the broker would send something."""
    client.attach_receiver(0, "orders")
    before, fields = meter.outgoing_messages, raw.flow_fields(0, 0, MESSAGES)
    fields[1] = UInt(0)
    client.send_frame(raw.FLOW, fields)
    until_seen(lambda: meter.outgoing_messages > before)


@pytest.mark.parametrize("parting", [[(raw.DETACH, raw.detach_fields(0))], [(raw.END, [])], []])
def test_clients_that_let_nothing_be_sent_and_go_count_no_deliveries(
    tmp_path: Path, parting: list[tuple[int, list[object]]]
) -> None:
    """Symptom: with as many such clients as MaxDeliveryCount, messages were dead-lettered."""
    fill(tmp_path)
    with BrokerThread(tmp_path, QUEUES, LocalDisk()) as broker:
        for _ in range(3):
            with raw.opened(broker.addresses.amqp_port) as client:
                take_with_a_shut_window(client, broker.queue("orders").meter)
                for code, fields in parting:
                    client.send_frame(code, fields)
                    client.read_until(code)
        with raw.opened(broker.addresses.amqp_port) as client:
            client.attach_receiver(0, "orders")
            client.send_frame(raw.FLOW, raw.flow_fields(0, 0, MESSAGES))
            for _ in range(MESSAGES):
                received = client.read_until(raw.TRANSFER, within_s=WITHIN_S)
                assert sections(received.payload)[HEADER][4] in (None, 0)
