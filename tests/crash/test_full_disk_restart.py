"""A full disk recovers by draining alone after a restart as well (durability rule 6): room for draining is
kept for what nobody has used since.

A queue or a topic has filled the disk. After the restart, another queue is filled and drained before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from storage.disk import LocalDisk
from tests.crash.test_full_disk import (
    FILE_SYSTEM,
    MIB,
    drain,
    fill,
    limited,
    mounted,
    reserve_untouched,
    small_file_system,
)
from tests.support import scrapes
from tests.support.broker_process import queue, topic
from tests.support.broker_thread import BrokerThread

FileSystem = Callable[[Path, int], AbstractContextManager[LocalDisk]]


def fill_up(broker: BrokerThread, body_bytes: int, address: str = "orders") -> int:
    """Fill the disk, again and again, because upkeep finds out how much the messages need once it is full;
    gives the number of accepted messages."""
    counts = [fill(broker, body_bytes, address)]
    while counts[-1] > counts[0] // 100:
        assert len(counts) < 60, "upkeep frees no more than there is"
        time.sleep(1)
        counts.append(fill(broker, body_bytes, address))
    return sum(counts)


def until_full(broker: BrokerThread) -> None:
    """Wait until `/health` shows that the disk is full, before anybody has sent. A process that runs the
    partitions tells what it has found a moment later."""
    deadline = time.monotonic() + 5
    while scrapes.health(broker.addresses, 5)["data_folders"] != ["full"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("file_system", [FILE_SYSTEM])
@pytest.mark.parametrize("is_process", [False, True])
def test_after_a_restart_room_is_kept_for_a_queue_that_nobody_has_used(
    is_process: bool, file_system: FileSystem, tmp_path: Path
) -> None:
    """Symptom: some partitions of the first queue could not be drained."""
    folder, queues = tmp_path / "small", [queue("orders"), queue("bills")]
    settings: dict[str, Any] = {"partition_process": is_process and file_system is not limited}
    with file_system(folder, 4 * MIB) as disk:
        with BrokerThread(folder, queues, disk, **settings) as broker:
            count = fill_up(broker, 10)
        with BrokerThread(folder, queues, disk, **settings) as broker, reserve_untouched(folder):
            until_full(broker)
            bills = fill(broker, 10, "bills")
            assert bills < count // 20, "the disk was full before"
            drain(broker, bills, 10, 1, "bills")
            drain(broker, count, 10, 10)


@pytest.mark.parametrize("file_system", [FILE_SYSTEM])
def test_after_a_restart_a_topic_that_nobody_has_used_keeps_what_it_needs_and_no_more(
    file_system: FileSystem, tmp_path: Path
) -> None:
    """Its subscriptions share their messages, so what each of them holds says little about what it needs."""
    folder, names = tmp_path / "small", [f"s{number}" for number in range(20)]
    given: dict[str, Any] = {"topics": [topic("events", names)]}
    with file_system(folder, 8 * MIB) as disk:
        with BrokerThread(folder, [queue("bills")], disk, **given) as broker:
            count = fill_up(broker, 1_000, "events")
            drain(broker, count, 1_000, 100, "events/subscriptions/s0")
            drain(broker, fill(broker, 1_000, "bills"), 1_000, 10, "bills")
        with (
            BrokerThread(folder, [queue("bills")], disk, **given) as broker,
            reserve_untouched(folder),
        ):
            drain(broker, fill(broker, 10, "bills"), 10, 1, "bills")
            for name in names[1:]:
                drain(broker, count, 1_000, 100, f"events/subscriptions/{name}")


def test_after_a_restart_each_data_folder_keeps_the_room_for_its_own_partitions(tmp_path: Path) -> None:
    queues = [queue("orders"), queue("bills")]
    folders = tmp_path / "one", tmp_path / "two"
    with ExitStack() as stack:
        if FILE_SYSTEM.values[0] is small_file_system:
            for each in folders:
                stack.enter_context(mounted(each, 2 * MIB))
            disk = LocalDisk()
        else:  # a limit on the folder that has both
            disk = stack.enter_context(limited(tmp_path / "both", 4 * MIB))
            folders = tmp_path / "both" / "one", tmp_path / "both" / "two"
        where: dict[str, Any] = {"data_dir": folders[0] / "data", "more_data_dirs": (folders[1] / "data",)}
        with BrokerThread(tmp_path, queues, disk, **where) as broker:
            count = fill_up(broker, 10)
        with BrokerThread(tmp_path, queues, disk, **where) as broker:
            for each in folders:
                stack.enter_context(reserve_untouched(each))
            bills = fill(broker, 10, "bills")
            assert bills < count // 20
            drain(broker, bills, 10, 1, "bills")
            drain(broker, count, 10, 10)
