"""Clients that want the messages of very many partitions at once after a restart: the logs are opened a few
at a time, nobody gets an error while the disk is healthy, and others do not wait for all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.namespace.router import partition_of_key
from broker.partition.task import PartitionTask
from storage.disk import LocalDisk
from storage.spread_store import place
from tests.crash.test_broker_disk_faults import SERVER_BUSY, wait_until
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.faulty_disk import FaultyDisk

WITHIN_S = 60.0
ANSWERED_WITHIN_S = 15.0
"""The time that clients of the service are told to allow."""
PARTITIONS = 16
MANY = [queue(f"many{number}") for number in range(20)]
SMALL = queue("small", PartitionCount=2)
QUEUES = [*MANY, queue("sent"), SMALL]
ALL = PARTITIONS * len(MANY)
KEYS = [f"key{number}" for number in range(200)]
SYNC_S = 0.004
TIMEOUT_MS = 1_000


class SlowDisk(LocalDisk):
    """A disk that takes its time: four threads open fewer than a hundred logs in a second."""

    def _take_time(self) -> None:
        threading.Event().wait(SYNC_S)

    def sync(self, fd: int) -> None:
        self._take_time()
        super().sync(fd)

    def sync_directory(self, path: Path) -> None:
        self._take_time()
        super().sync_directory(path)

    def create(self, path: Path) -> int:
        self._take_time()
        return super().create(path)


def keyed(key: str) -> bytes:
    return message(annotations={"x-opt-partition-key": key})


def fill(folder: Path, **settings: Any) -> None:
    """Store a message in every partition of every queue, and stop."""
    with BrokerThread(folder, QUEUES, LocalDisk(), **settings) as broker:
        for each in QUEUES:
            with raw.opened(broker.addresses.amqp_port) as client:
                count = 2 if each is SMALL else PARTITIONS
                client.attach_sender(0, str(each["Name"]))
                for number in range(count):
                    key = next(key for key in KEYS if partition_of_key(key, count) == number)
                    client.send_frame(raw.TRANSFER, raw.transfer_fields(0, number), keyed(key))
                client.read_dispositions(count, WITHIN_S)


def open_partitions(broker: BrokerThread) -> int:
    return [task.health for task in list(broker.broker.host._tasks)].count("healthy")  # type: ignore[attr-defined]


def receive_from_all(client: raw.RawConnection) -> None:
    """Ask for all messages of the many queues."""
    for handle, each in enumerate(MANY):
        client.attach_receiver(handle, str(each["Name"]), settled=True)
    for handle in range(len(MANY)):
        client.send_frame(raw.FLOW, raw.flow_fields(handle, 0, 2 * PARTITIONS))


def send(client: raw.RawConnection, number: int, key: str) -> str | None:
    """Send a message with a key; gives the error, or None if it was accepted."""
    client.send_frame(raw.TRANSFER, raw.transfer_fields(0, number), keyed(key))
    outcome = client.read_until(raw.DISPOSITION, within_s=WITHIN_S).field(4)
    return None if int(outcome.descriptor) == raw.ACCEPTED else str(outcome.value[0].value[0])


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions that were late."""
    found: list[int] = []
    opens_late: Callable[[PartitionTask], None] = PartitionTask._opens_late

    def note(task: PartitionTask) -> None:
        found.append(task.number)
        opens_late(task)

    monkeypatch.setattr(PartitionTask, "_opens_late", note)
    return found


def test_receivers_of_very_many_partitions_hold_up_no_other_client_and_no_partition_is_late(
    tmp_path: Path, late: list[int]
) -> None:
    """Symptom: receivers on 2,720 partitions with messages had all of them opened side by side. 2,318 were
    late on a healthy disk, and an unrelated queue waited for all of them."""
    fill(tmp_path)
    with (
        BrokerThread(tmp_path, QUEUES, SlowDisk(), disk_timeout_ms=TIMEOUT_MS) as broker,
        raw.opened(broker.addresses.amqp_port) as many,
        raw.opened(broker.addresses.amqp_port) as sender,
        raw.opened(broker.addresses.amqp_port) as small,
    ):
        sender.attach_sender(0, "sent")
        small.attach_receiver(0, "small", settled=True)
        receive_from_all(many)
        many.read_until(raw.TRANSFER, within_s=WITHIN_S)
        small.send_frame(raw.FLOW, raw.flow_fields(0, 0, 1))
        small.read_until(raw.TRANSFER, within_s=WITHIN_S)
        received_after = open_partitions(broker)
        assert send(sender, 0, KEYS[0]) is None
        sent_after = open_partitions(broker)
        for _ in range(ALL - 1):
            many.read_until(raw.TRANSFER, within_s=WITHIN_S)
        assert received_after < ALL // 2 and sent_after < ALL // 2
        assert late == []


def test_a_folder_that_hangs_delays_its_own_partitions_and_everybody_is_answered(
    tmp_path: Path, late: list[int]
) -> None:
    disk = FaultyDisk(LocalDisk())
    folders: dict[str, Any] = {"data_dir": tmp_path / "first", "more_data_dirs": (tmp_path / "second",)}
    fill(tmp_path, **folders)
    disk.hang("open_write", "/second/logs/")
    disk.hang("create", "/second/logs/")
    with (
        BrokerThread(tmp_path, QUEUES, disk, disk_timeout_ms=TIMEOUT_MS, **folders) as broker,
        raw.opened(broker.addresses.amqp_port) as many,
        raw.opened(broker.addresses.amqp_port) as sender,
    ):
        generation = broker.queue("sent").description.generation
        receive_from_all(many)
        for _ in range(ALL // 2):
            many.read_until(raw.TRANSFER, within_s=WITHIN_S)
        sender.attach_sender(0, "sent")
        router = broker.queue("sent").router
        for number, key in enumerate(KEYS[: 2 * PARTITIONS]):
            hangs = place(generation, router.number_of(key), 2) == 1
            began = time.monotonic()
            assert send(sender, number, key) == (SERVER_BUSY if hangs else None)
            assert time.monotonic() - began < ANSWERED_WITHIN_S
        wait_until(lambda: len(late) >= ALL // 2, "all that wait hear of it", WITHIN_S)
        disk.release()
        for _ in range(ALL // 2):
            many.read_until(raw.TRANSFER, within_s=WITHIN_S)
