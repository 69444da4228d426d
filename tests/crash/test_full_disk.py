"""A full disk recovers by draining alone (durability rule 6), however small it is compared with a segment.

Only the broker frees room here. Every acknowledged message is received, no settlement is refused, and once
the queue is empty it accepts at least half as many messages again within a minute.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.disk import LocalDisk
from tests.bench.load.client import LoadConnection, Receiver, Sender, drive, encode_message
from tests.bench.load.endpoint import Endpoint
from tests.support.broker_process import KEY, KEY_NAME, queue
from tests.support.broker_thread import BrokerThread
from tests.support.recording_disk import RecordingDisk
from tests.support.small_disk import SmallDisk

MIB = 1 << 20
PARTITIONS = 16
WITHIN_S = 60.0
ROUNDS = 2
REFUSALS = 50
"""This many refusals in a row mean a full disk: a partition with room left in its last file accepts a few
more messages.
"""


class Filler(Sender):
    """Sends until the broker accepts no more."""

    refusals: tuple[int, int] = 0, 0
    """Consecutive refusals, and the number of accepted messages at that point."""

    def on_refused(self, outcome: str) -> None:
        assert outcome == "rejected amqp:resource-limit-exceeded", outcome
        count, accepted = self.refusals
        self.refusals = (count + 1 if accepted == self.accepted else 1), self.accepted
        if self.refusals[0] >= REFUSALS:
            self.remaining = 0


@contextmanager
def connected(broker: BrokerThread) -> Iterator[LoadConnection]:
    endpoint = Endpoint("127.0.0.1", broker.addresses.amqp_port, KEY_NAME, KEY, "orders")
    connection = LoadConnection(endpoint, settles_first=False)
    try:
        yield connection
    finally:
        connection.close()


def fill(broker: BrokerThread, body_bytes: int) -> int:
    """Send until the disk is full; gives the number of accepted messages."""
    with connected(broker) as connection:
        sender = Filler(connection, encode_message(body_bytes), 20)
        drive([connection], lambda: sender.is_ready, WITHIN_S)
        sender.send(1_000_000)
        drive([connection], lambda: sender.is_done, WITHIN_S)
        return sender.accepted


def drain(broker: BrokerThread, count: int, body_bytes: int, window: int) -> None:
    """Receive and complete `count` messages; raises if any completion is refused."""
    with connected(broker) as connection:
        receiver = Receiver(connection, window, body_bytes)
        drive([connection], lambda: receiver.is_ready, WITHIN_S)
        receiver.receive(count)
        drive([connection], lambda: receiver.is_done, 2 * WITHIN_S)


def fill_and_drain(broker: BrokerThread, body_bytes: int, window: int) -> None:
    counts = []
    for _ in range(ROUNDS):
        deadline = time.monotonic() + WITHIN_S
        counts.append(fill(broker, body_bytes))
        while counts[-1] < counts[0] // 2:  # room is freed in the background
            assert time.monotonic() < deadline, f"of {counts[0]} messages only {counts[-1]} are taken again"
            time.sleep(0.2)
            counts[-1] += fill(broker, body_bytes)
        drain(broker, counts[-1], body_bytes, window)
    assert counts[0] > 2 * PARTITIONS


CASES = [(2 * MIB, 3_000, 1), (8 * MIB, 30_000, 10)]
"""Disk size and message size in bytes, and how many messages are received at a time."""


@pytest.mark.parametrize(("disk_bytes", "body_bytes", "window"), CASES)
def test_a_disk_with_a_limit_recovers_by_draining_alone(
    disk_bytes: int, body_bytes: int, window: int, tmp_path: Path
) -> None:
    with BrokerThread(
        tmp_path, [queue("orders")], RecordingDisk(queued=True, capacity_bytes=disk_bytes)
    ) as broker:
        fill_and_drain(broker, body_bytes, window)


@contextmanager
def mounted(folder: Path, size_bytes: int) -> Iterator[bool]:
    """Mount a file system of this size at `folder`; False if this process may not mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    is_mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(("disk_bytes", "body_bytes", "window"), [*CASES, (64 * MIB, 100_000, 20)])
def test_a_small_file_system_recovers_by_draining_alone(
    disk_bytes: int, body_bytes: int, window: int, tmp_path: Path
) -> None:
    """Uses a tmpfs, or, where mounting is not permitted, the folder's own file system behind the limit."""
    with mounted(tmp_path / "small", disk_bytes) as is_mounted:
        disk: LocalDisk = LocalDisk()
        if not is_mounted:
            disk = SmallDisk(tmp_path / "small")
            disk.capacity_bytes = disk_bytes
        with BrokerThread(tmp_path / "small", [queue("orders")], disk) as broker:
            fill_and_drain(broker, body_bytes, window)
