"""A flipped bit in a checkpoint of a trimmed log costs a real broker nothing but a line in its log.

`test_storage_checkpoint_damage.py` flips bits everywhere, in the log alone.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

from storage.checkpoint import read_checkpoint
from storage.disk import LocalDisk
from storage.segment import SEGMENT_HEADER_BYTES, decode_segment_header
from tests.support.broker_process import BrokerProcess, queue
from tests.support.logs import flip

SMALL_LOGS = {"PARTIBUS_SEGMENT_BYTES": "65536", "PARTIBUS_CHECKPOINT_BYTES": "65536"}
WAIT_S = 30
SENT, KEPT = 300, 40


def work(client: ServiceBusClient) -> dict[int, bytes]:
    """Send a MiB and consume most of it; gives the bodies that remain, by sequence number."""
    with client.get_queue_sender("orders") as sender:
        for first in range(0, SENT, 50):
            sender.send_messages(
                [ServiceBusMessage(b"%04d" % number * 1_024) for number in range(first, first + 50)]
            )
    with client.get_queue_receiver("orders", prefetch_count=0) as receiver:
        for place, message in enumerate(receiver.receive_messages(max_message_count=8, max_wait_time=WAIT_S)):
            settle = (receiver.defer_message, receiver.abandon_message, receiver.complete_message)[place % 3]
            settle(message)
    with client.get_queue_receiver(
        "orders", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=0
    ) as receiver:
        consumed = 0
        while consumed < SENT - KEPT:
            messages = receiver.receive_messages(
                max_message_count=min(100, SENT - KEPT - consumed), max_wait_time=WAIT_S
            )
            assert messages
            consumed += len(messages)
    return peeked(client)


def peeked(client: ServiceBusClient) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    with client.get_queue_receiver("orders") as receiver:
        start = 1
        while page := receiver.peek_messages(max_message_count=100, sequence_number=start, timeout=WAIT_S):
            for message in page:
                assert message.sequence_number is not None
                found[message.sequence_number] = (
                    f"{message.delivery_count} {message.state} ".encode() + b"".join(message.body)
                )
            start = max(found) + 1
    return found


def files(broker: BrokerProcess, suffix: str) -> list[Path]:
    """Files of the only log, oldest first."""
    return sorted((broker.data_dir / "logs").rglob(f"*{suffix}"))


def places(path: Path) -> list[int]:
    """Offsets of a byte in the tables and a byte in a block of a checkpoint file."""
    disk = LocalDisk()
    segment = sorted(path.parent.glob("*.segment"))[-1]
    stored = read_checkpoint(
        disk, path, decode_segment_header(segment.read_bytes()[:SEGMENT_HEADER_BYTES], segment).salt
    )
    own = [
        place
        for section in stored.sections.values()
        for place in section.places.values()
        if place.file == stored.serial
    ]
    return [min(place.offset for place in own) - 9, max(place.offset for place in own) + 1]


def test_a_flipped_bit_in_either_checkpoint_loses_nothing_over_a_restart(tmp_path: Path) -> None:
    broker = BrokerProcess(
        tmp_path, [queue("orders", PartitionCount=1)], environment=SMALL_LOGS, keeps_ports=False
    )
    with broker, ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client:
        expected = work(client)
        deadline = time.monotonic() + WAIT_S
        while files(broker, ".segment")[0].name.startswith("0" * 16):
            assert time.monotonic() < deadline, f"the log was never trimmed:\n{broker.log_tail()}"
            time.sleep(0.1)
        assert 0 < len(expected) <= KEPT
    good = tmp_path / "good"
    shutil.copytree(broker.data_dir, good)
    older, newest = files(broker, ".checkpoint")[-2:]
    for path, offset in [(newest, offset) for offset in places(newest)] + [(older, places(older)[1])]:
        shutil.rmtree(broker.data_dir)
        shutil.copytree(good, broker.data_dir)
        flip(path, offset)
        with broker, ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client:
            assert peeked(client) == expected, (path.name, offset, broker.log_tail())
        assert broker.log.count('"checkpoint.damaged"') > 0, "it is reported"
        assert '"partition.failed"' not in broker.log
