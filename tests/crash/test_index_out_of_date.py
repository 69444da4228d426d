"""The index of partitions is behind the logs: its disk hangs, or it comes from a backup. Nothing waits for
it, and it is not trusted.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from storage.disk import LocalDisk
from storage.index_witness import WITNESS_NAME, Says, decode
from storage.partition_index import COPY_NAME, INDEX_NAME
from storage.spread_store import place
from tests.crash.test_broker_disk_faults import PARTITIONS, client_of, wait_until
from tests.crash.test_hanging_disk import ANSWERED_WITHIN_S, BACK_WITHIN_S
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.faulty_disk import OPERATIONS, FaultyDisk
from tests.support.scrapes import by_entity, metrics

FOLDERS = ("first", "second")


def broker_on(folder: Path, disk: FaultyDisk | None = None, **settings: Any) -> BrokerThread:
    first, second = (folder / name for name in FOLDERS)
    queues = [queue("orders"), queue("other")]
    return BrokerThread(
        folder, queues, disk or LocalDisk(), data_dir=first, more_data_dirs=(second,), **settings
    )


def in_second(broker: BrokerThread, name: str) -> list[int]:
    """The queue's partitions in the second folder."""
    found = broker.broker.namespace.find(name)
    assert found is not None
    return [
        number
        for number in range(PARTITIONS)
        if place(found.description.generation, number, len(FOLDERS)) == 1
    ]


def messages(broker: BrokerThread) -> dict[str, int]:
    """Messages per queue, from one scrape."""
    return by_entity(metrics(broker.addresses, BACK_WITHIN_S), "messages")


def witness(folder: Path) -> Says:
    """What the folder's witness says; a missing witness counts as void."""
    path = folder / WITNESS_NAME
    found = decode(path.read_bytes()) if path.exists() else None
    return Says.VOID if found is None else found[0]


def test_while_the_first_folder_hangs_partitions_elsewhere_open_and_a_crash_loses_count_of_none(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(LocalDisk())
    with (
        broker_on(tmp_path / "used", disk, disk_timeout_ms=2_000, log_idle_ms=100) as broker,
        client_of(broker.addresses) as client,
        client_of(broker.addresses, queue_name="other") as other,
    ):
        orders = in_second(broker, "orders")
        generation = broker.broker.namespace.descriptions()[0].generation

        def are_at_rest() -> bool:
            return all(broker.broker._resting.summary(generation, number) is not None for number in orders)

        for number in range(PARTITIONS):
            assert client.send(number) is None
        wait_until(are_at_rest, "the partitions are at rest", BACK_WITHIN_S)
        wait_until(
            lambda: witness(tmp_path / "used" / "second") is Says.VALID, "the index is written", BACK_WITHIN_S
        )
        for operation in OPERATIONS:
            disk.hang(operation, "/used/first/")
        try:
            began = time.monotonic()
            for _ in range(2):
                for number in orders:
                    assert client.send(number) is None, "it leaves its rest"
                wait_until(are_at_rest, "they come to rest again", BACK_WITHIN_S)
            for number in in_second(broker, "other"):
                assert other.send(number) is None, "it is opened"
            assert time.monotonic() - began < ANSWERED_WITHIN_S
            assert witness(tmp_path / "used" / "second") is Says.VOID
            shutil.copytree(tmp_path / "used", tmp_path / "crashed")
        finally:
            disk.release()
        wait_until(
            lambda: witness(tmp_path / "used" / "second") is Says.VALID,
            "the index is made up for",
            BACK_WITHIN_S,
        )
    with capture_logs() as lines, broker_on(tmp_path / "crashed") as broker:
        assert messages(broker) == {"orders": PARTITIONS + 2 * len(orders), "other": PARTITIONS // 2}
    assert "index.out_of_date" in {line["event"] for line in lines}


def test_an_index_from_a_backup_is_noticed_and_what_the_logs_hold_counts(tmp_path: Path) -> None:
    paths = [tmp_path / "first" / "catalogue" / name for name in (INDEX_NAME, COPY_NAME)]
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        for number in range(PARTITIONS):
            assert client.send(number) is None
    backup = [path.read_bytes() for path in paths]
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        for number in range(PARTITIONS):
            assert client.send(number) is None
    for path, content in zip(paths, backup, strict=True):
        path.write_bytes(content)
    with capture_logs() as lines, broker_on(tmp_path) as broker:
        assert messages(broker) == {"orders": 2 * PARTITIONS, "other": 0}
    assert [line["partitions"] for line in lines if line["event"] == "index.out_of_date"] == [PARTITIONS]
