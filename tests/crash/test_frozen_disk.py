"""A file system that is frozen (`fsfreeze`) holds up every write, even into memory: what clients see of it.

On machines on which this process may not mount a file system, a disk takes its place whose writes hang.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from storage.disk import Disk, LocalDisk
from tests.crash.test_broker_disk_faults import (
    PARTITIONS,
    SERVER_BUSY,
    Client,
    check_nothing_lost,
    client_of,
    health,
    wait_until,
)
from tests.crash.test_hanging_catalogue import Admin
from tests.crash.test_hanging_disk import ANSWERED_WITHIN_S, BACK_WITHIN_S
from tests.crash.test_several_disks import (
    BOTH,
    broker_on,
    folder_states,
    numbers_in,
    send_to_each,
)
from tests.support import scrapes
from tests.support.broker_thread import BrokerThread
from tests.support.faulty_disk import FaultyDisk

SIZE_BYTES = 64 << 20
THAWED_AFTER_S = 120.0
"""So that a broker that waits for the frozen file system fails the test instead of hanging it."""
TIMEOUT_MS = 1_000


class Freezer:
    """A folder on a file system that can be frozen."""

    def __init__(self, disk: Disk, freeze: Callable[[], None], thaw: Callable[[], None]) -> None:
        self.disk = disk
        self._freeze, self._thaw = freeze, thaw

    @contextmanager
    def frozen(self) -> Iterator[None]:
        late = threading.Timer(THAWED_AFTER_S, self._thaw)
        self._freeze()
        late.start()
        try:
            yield
        finally:
            is_in_time = late.is_alive()
            late.cancel()
            late.join()
            if is_in_time:
                self._thaw()
            assert is_in_time, "the broker waited for the frozen file system"


@contextmanager
def real_freezer(folder: Path) -> Iterator[Freezer]:
    """An ext4 of its own at `folder`. Raises OSError or CalledProcessError if this process may not mount."""

    def run(*command: str) -> None:
        subprocess.run([*command, str(folder)], check=True, capture_output=True)

    image = folder.with_name(f"{folder.name}.image")
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
    folder.mkdir()
    run("mount", "-o", "loop", str(image))
    try:
        yield Freezer(LocalDisk(), lambda: run("fsfreeze", "-f"), lambda: run("fsfreeze", "-u"))
    finally:
        run("umount")


@contextmanager
def hanging_writes(folder: Path) -> Iterator[Freezer]:
    disk = FaultyDisk(LocalDisk())

    def freeze() -> None:
        for operation in (
            "make_directory", "remove_tree", "create", "write", "truncate", "rename", "remove"
        ):  # fmt: skip
            disk.hang(operation, f"/{folder.name}/")

    try:
        yield Freezer(disk, freeze, disk.release)
    finally:
        disk.release()


def may_freeze() -> bool:
    """Whether this process may mount a file system and freeze it."""
    with TemporaryDirectory() as folder:
        try:
            with real_freezer(Path(folder) / "small") as freezer, freezer.frozen():
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


FREEZER = (
    pytest.param(real_freezer, id="ext4")
    if may_freeze()
    else pytest.param(hanging_writes, id="no_file_system_without_the_right_to_mount")
)


def check_answers(broker: BrokerThread, client: Client, gone: set[int]) -> None:
    """Partitions on the frozen file system refuse, all others take messages, and everybody is answered."""
    began = time.monotonic()
    for number in range(PARTITIONS):
        assert client.send(number) == (SERVER_BUSY if number in gone else None)
        for _ in range(3):
            assert client.send() is None, "without a key there is always another partition"
        assert time.monotonic() - began < ANSWERED_WITHIN_S
        began = time.monotonic()
    states = health(broker.addresses)["partitions"]
    assert {number for number, state in enumerate(states) if state == "recovering"} == gone
    lines = scrapes.metrics(broker.addresses, BACK_WITHIN_S).splitlines()
    assert f'partibus_partitions{{state="recovering"}} {float(len(gone))}' in lines


@pytest.mark.parametrize("freezer_at", [FREEZER])
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_file_system_takes_its_own_partitions_with_it_and_gives_them_back(
    frozen: int, freezer_at: Callable[[Path], AbstractContextManager[Freezer]], tmp_path: Path
) -> None:
    with (
        freezer_at(tmp_path / BOTH[frozen]) as freezer,
        broker_on(tmp_path, freezer.disk, disk_timeout_ms=TIMEOUT_MS) as broker,
        client_of(broker.addresses) as client,
    ):
        assert send_to_each(client) == [None] * PARTITIONS
        with freezer.frozen():
            check_answers(broker, client, numbers_in(broker, frozen))
            assert Admin(broker).create("new")[0] == 503
        wait_until(lambda: folder_states(broker) == ["ok", "ok"], "the folders are there", BACK_WITHIN_S)
        wait_until(lambda: send_to_each(client) == [None] * PARTITIONS, "all are back", BACK_WITHIN_S)
        check_nothing_lost(broker.addresses, client.ledger)
