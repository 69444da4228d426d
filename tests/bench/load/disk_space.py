"""Disk space that a queue uses after its traffic: when drained, and with a few deferred messages.

Responsible for the load and for reading the folder's size; knows neither figures nor verdicts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load import footprint, traffic
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message
from tests.support.broker_process import BrokerProcess
from tests.support.disk_use import allocated_bytes
from tests.support.raw_amqp import RawConnection

DEFERRED = 64
BODY = b"abc"
CONNECTIONS = 4
AT_REST_S = 10.0
MIB = 1024 * 1024


@dataclass(slots=True, frozen=True)
class DiskSpace:
    """Size of the data folder in MiB, ten seconds after the last of many messages was consumed."""

    drained_mib: float
    deferred_mib: float


def disk_space(folder: Path, count: int) -> DiskSpace:
    """Consume count messages of an otherwise empty queue, and of a queue that holds 64 deferred messages of 3
    bytes.
    """
    with footprint.fresh_broker(folder) as broker:
        drained_mib = _after_traffic(broker, count)
        _defer(broker)
        return DiskSpace(drained_mib, _after_traffic(broker, count))


def _after_traffic(broker: BrokerProcess, count: int) -> float:
    traffic.send_and_receive(footprint.target_of(broker.addresses), count, CONNECTIONS)
    time.sleep(AT_REST_S)
    return allocated_bytes(broker.data_dir) / MIB


def _defer(broker: BrokerProcess) -> None:
    """Send the messages, which take turns over the partitions, and defer them."""
    with RawConnection(broker.addresses.amqp_port) as connection:
        connection.open()
        connection.begin()
        connection.attach_sender(0, footprint.QUEUE)
        for number in range(DEFERRED):
            connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, number), message(body=[BODY]))
            assert connection.read_until(raw.DISPOSITION).field(4).descriptor == raw.ACCEPTED
        connection.attach_receiver(1, footprint.QUEUE)
        connection.send_frame(raw.FLOW, raw.flow_fields(1, 0, DEFERRED))
        numbers = [connection.read_until(raw.TRANSFER).field(1) for _ in range(DEFERRED)]
        outcome = raw.outcome(raw.MODIFIED, [False, True])  # undeliverable-here
        connection.send_frame(
            raw.DISPOSITION, raw.disposition_fields(raw.RECEIVER, numbers[0], numbers[-1], False, outcome)
        )
        settled = 0
        while settled < DEFERRED:
            answer = connection.read_until(raw.DISPOSITION)
            assert answer.field(4).descriptor == raw.MODIFIED
            settled += (answer.field(2) or answer.field(1)) - answer.field(1) + 1
