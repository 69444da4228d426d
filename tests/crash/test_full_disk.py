"""A full disk recovers by draining alone (durability rule 6), however small it is compared with a segment.

Only the broker frees room here. Every acknowledged message is received, no settlement that frees room is
refused, and once the queue is empty it accepts at least half as many messages again within a minute.
"""

from __future__ import annotations

import os
import subprocess
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import ServiceBusQuotaExceededError

from storage.disk import LocalDisk
from tests.bench.load.client import LoadConnection, Receiver, Sender, drive, encode_message
from tests.bench.load.endpoint import Endpoint
from tests.support.broker_process import KEY, KEY_NAME, queue, topic
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
def connected(broker: BrokerThread, address: str = "orders") -> Iterator[LoadConnection]:
    endpoint = Endpoint("127.0.0.1", broker.addresses.amqp_port, KEY_NAME, KEY, address)
    connection = LoadConnection(endpoint, settles_first=False)
    try:
        yield connection
    finally:
        connection.close()


def fill(broker: BrokerThread, body_bytes: int, address: str = "orders") -> int:
    """Send until the disk is full; gives the number of accepted messages."""
    with connected(broker, address) as connection:
        sender = Filler(connection, encode_message(body_bytes), 20)
        drive([connection], lambda: sender.is_ready, WITHIN_S)
        sender.send(1_000_000)
        drive([connection], lambda: sender.is_done, WITHIN_S)
        return sender.accepted


def send(broker: BrokerThread, count: int, body_bytes: int, address: str) -> None:
    """Send messages, one at a time; raises if any is refused."""
    with connected(broker, address) as connection:
        sender = Sender(connection, encode_message(body_bytes), 1)
        drive([connection], lambda: sender.is_ready, WITHIN_S)
        sender.send(count)
        drive([connection], lambda: sender.is_done, WITHIN_S)


def drain(broker: BrokerThread, count: int, body_bytes: int, window: int, address: str = "orders") -> None:
    """Receive and complete `count` messages; raises if any completion is refused."""
    with connected(broker, address) as connection:
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
MORE_CASES = [(2 * MIB, 10, 1), (64 * MIB, 100_000, 20)]
if "PARTIBUS_CRASH_ROUNDS" in os.environ:
    MORE_CASES += [(2 * MIB, 1_000, 1), (2 * MIB, 64_000, 1), (8 * MIB, 10, 10), (8 * MIB, 64_000, 1)]
    MORE_CASES += [(64 * MIB, 10, 100), (64 * MIB, 1_000, 10), (64 * MIB, 64_000, 1)]


@pytest.mark.parametrize(("disk_bytes", "body_bytes", "window"), CASES)
def test_a_disk_with_a_limit_recovers_by_draining_alone(
    disk_bytes: int, body_bytes: int, window: int, tmp_path: Path
) -> None:
    with BrokerThread(
        tmp_path, [queue("orders")], RecordingDisk(queued=True, capacity_bytes=disk_bytes)
    ) as broker:
        fill_and_drain(broker, body_bytes, window)


def may_mount() -> bool:
    """Whether this process may mount a file system."""
    with TemporaryDirectory() as folder:
        try:
            with mounted(Path(folder) / "small", MIB):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


@contextmanager
def mounted(folder: Path, size_bytes: int) -> Iterator[None]:
    """Mount a tmpfs of this size at `folder`. Raises CalledProcessError if this process may not."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def limited(folder: Path, size_bytes: int) -> Iterator[LocalDisk]:
    """The folder's own file system behind a limit, for machines on which this process may not mount one."""
    folder.mkdir()
    disk = SmallDisk(folder)
    disk.capacity_bytes = size_bytes
    yield disk


@contextmanager
def small_file_system(folder: Path, size_bytes: int) -> Iterator[LocalDisk]:
    """A file system of its own with this size."""
    with mounted(folder, size_bytes):
        yield LocalDisk()


FILE_SYSTEM = (
    pytest.param(small_file_system, id="tmpfs")
    if may_mount()
    else pytest.param(
        limited,
        id="no_tmpfs_without_the_right_to_mount",
        marks=pytest.mark.filterwarnings("default:no small file system"),
    )
)
"""The id in the test's name shows which one it was, and a warning at the end of the run says so."""


@pytest.mark.parametrize("file_system", [FILE_SYSTEM])
@pytest.mark.parametrize(("disk_bytes", "body_bytes", "window"), [*CASES, *MORE_CASES])
def test_a_small_file_system_recovers_by_draining_alone(
    disk_bytes: int,
    body_bytes: int,
    window: int,
    file_system: Callable[[Path, int], AbstractContextManager[LocalDisk]],
    tmp_path: Path,
) -> None:
    if file_system is limited:
        warnings.warn(
            "no small file system: this process may not mount a tmpfs, so a limit on the folder stood in",
            stacklevel=1,
        )
    with (
        file_system(tmp_path / "small", disk_bytes) as disk,
        BrokerThread(tmp_path / "small", [queue("orders")], disk) as broker,
        reserve_untouched(tmp_path / "small"),
    ):
        fill_and_drain(broker, body_bytes, window)


@contextmanager
def reserve_untouched(folder: Path) -> Iterator[None]:
    """Check that what is done in the block needs no reserve: what draining needs is foreseen."""

    def found() -> list[int]:
        return [(folder / "data" / name).stat().st_ino for name in ("reserve", "reserve-upkeep")]

    before = found()
    yield
    assert found() == before


TOPICS = [(2 * MIB, 30, 1_000), (3 * MIB, 30, 10)]
"""Disk size in bytes, subscriptions, and message size in bytes."""
if "PARTIBUS_CRASH_ROUNDS" in os.environ:
    TOPICS += [(4 * MIB, 5, 1_000), (3 * MIB, 100, 100), (12 * MIB, 30, 1_000), (64 * MIB, 30, 20_000)]
    TOPICS += [(2 * MIB, 1, 10), (2 * MIB, 100, 10), (8 * MIB, 1, 64_000), (8 * MIB, 30, 64_000)]
    TOPICS += [(8 * MIB, 100, 1_000), (8 * MIB, 30, 10), (64 * MIB, 1, 1_000), (64 * MIB, 100, 64_000)]


@pytest.mark.parametrize("file_system", [FILE_SYSTEM])
@pytest.mark.parametrize(("disk_bytes", "subscriptions", "body_bytes"), TOPICS)
def test_a_small_file_system_recovers_when_one_subscription_after_the_other_is_drained(
    disk_bytes: int,
    subscriptions: int,
    body_bytes: int,
    file_system: Callable[[Path, int], AbstractContextManager[LocalDisk]],
    tmp_path: Path,
) -> None:
    """No message leaves the disk before the last subscription is drained, while thousands of completions
    are written."""
    names = [f"s{number}" for number in range(subscriptions)]
    with (
        file_system(tmp_path / "small", disk_bytes) as disk,
        BrokerThread(tmp_path / "small", [], disk, topics=[topic("orders", names)]) as broker,
    ):
        with reserve_untouched(tmp_path / "small"):
            count = fill(broker, body_bytes)
            assert count * max(body_bytes, 1_000) > disk_bytes // 6
            for name in names:
                drain(broker, count, body_bytes, 100, f"orders/subscriptions/{name}")
        taken, deadline = 0, time.monotonic() + WITHIN_S
        while taken < count // 2:
            assert time.monotonic() < deadline, f"of {count} messages only {taken} are taken again"
            time.sleep(0.2)
            taken += fill(broker, body_bytes)


@pytest.mark.parametrize("file_system", [FILE_SYSTEM])
def test_after_a_restart_what_is_stored_is_drained_though_another_queue_fills_the_disk(
    file_system: Callable[[Path, int], AbstractContextManager[LocalDisk]], tmp_path: Path
) -> None:
    folder, queues = tmp_path / "small", [queue("orders"), queue("bills")]
    with file_system(folder, 2 * MIB) as disk:
        with BrokerThread(folder, queues, disk) as broker:
            count = fill(broker, 10)
            drain(broker, count // 5, 10, 10)
        with BrokerThread(folder, queues, disk) as broker, reserve_untouched(folder):
            bills = fill(broker, 10, "bills")
            drain(broker, count - count // 5, 10, 1)
            drain(broker, bills, 10, 1, "bills")


def test_partitions_that_were_used_once_do_not_fill_a_small_disk(tmp_path: Path) -> None:
    """Zeros ahead of the first frame, 16 KiB for each partition, would take the whole disk. Without them,
    some 300 messages fit beside the room that draining needs; checkpoints decide how many."""
    names = [f"orders{number}" for number in range(8)]
    disk = RecordingDisk(queued=True, capacity_bytes=2 * MIB)
    with BrokerThread(tmp_path, [queue(name) for name in names], disk) as broker:
        for name in names:
            send(broker, 2 * PARTITIONS, 100, name)
            drain(broker, 2 * PARTITIONS, 100, 10, name)
        assert fill(broker, 1_000, names[0]) > 250


def until_refused(change: Callable[[int], object]) -> int:
    """Make one change after the other until a full disk refuses one; gives how many it has taken."""
    for count in range(2_000):
        try:
            change(count)
        except ServiceBusQuotaExceededError as error:
            assert "the disk is full" in error.message and ".segment" not in error.message
            return count
    raise AssertionError("none is ever refused")


def complete_all(client: ServiceBusClient, subqueue: ServiceBusSubQueue | None = None) -> int:
    """Complete all messages; gives their number. Raises if any completion is refused."""
    count = 0
    with client.get_queue_receiver("orders", sub_queue=subqueue) as receiver:
        while messages := receiver.receive_messages(max_message_count=100, max_wait_time=1):
            for message in messages:
                receiver.complete_message(message)
            count += len(messages)
    return count


def dead_letter_until_refused(client: ServiceBusClient, text_bytes: int) -> tuple[int, int]:
    """Dead-letter messages with a text of this size until that is refused, and complete the last ones that
    were received; gives how many were dead-lettered, and how many completed."""
    with client.get_queue_receiver("orders") as receiver:
        waiting: deque[ServiceBusReceivedMessage] = deque()

        def dead_letter(_: int) -> None:
            if not waiting:
                waiting.extend(receiver.receive_messages(max_message_count=10, max_wait_time=5))
            receiver.dead_letter_message(waiting[0], reason="bad", error_description="d" * text_bytes)
            waiting.popleft()

        moved = until_refused(dead_letter)
        for message in waiting:
            receiver.complete_message(message)
        return moved, len(waiting)


def test_what_only_adds_to_a_full_disk_leaves_the_reserve_to_completions(tmp_path: Path) -> None:
    queues = [queue("orders"), queue("work", RequiresSession=True)]
    with (
        BrokerThread(tmp_path, queues, RecordingDisk(queued=True, capacity_bytes=2 * MIB)) as broker,
        ServiceBusClient.from_connection_string(
            broker.addresses.connection_string(), retry_total=0
        ) as client,
    ):
        sent = fill(broker, 8_000)
        long, completed = dead_letter_until_refused(client, 2_000)
        short, completed_too = dead_letter_until_refused(client, 500)
        assert long < sent // 4 and short > 10, "a long text is refused at once, a sentence is not"
        with client.get_queue_receiver("work", session_id="mine") as receiver:
            until_refused(lambda count: receiver.session.set_state(bytes(1_000 * count)))
        assert complete_all(client) == sent - long - short - completed - completed_too
        assert complete_all(client, ServiceBusSubQueue.DEAD_LETTER) == long + short
        with client.get_queue_sender("orders") as sender:
            taken = 0
            deadline = time.monotonic() + WITHIN_S
            while taken < sent // 2:
                try:
                    sender.send_messages(ServiceBusMessage(bytes(8_000)))
                    taken += 1
                except ServiceBusQuotaExceededError:  # room is freed in the background
                    assert time.monotonic() < deadline, f"of {sent} messages only {taken} are taken again"
                    time.sleep(0.2)
