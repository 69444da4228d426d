"""A file system that is frozen (`fsfreeze`) holds up every write, even into memory: what clients see of it.

On machines on which this process may not mount a file system, a disk takes its place whose writes hang.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

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
from tests.crash.test_hanging_disk import ANSWERED_WITHIN_S, BACK_WITHIN_S, TIMEOUT_MS
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
from tests.support.freezable import MountRefused, freezable

FROZEN_AND_KILLED = """
import os, threading
from tests.support.freezable import freezable
with freezable("small") as file_system:
    fd = os.open(file_system.folder / "file", os.O_RDWR | os.O_CREAT)
    file_system.freeze()
    threading.Thread(target=os.write, args=(fd, b"waits")).start()
    print(file_system.folder, flush=True)
    threading.Event().wait()
"""


class Freezer:
    """The data folders of a broker. One of them can be frozen."""

    def __init__(
        self, around: Path, disk: Disk, freeze: Callable[[], None], thaw: Callable[[], None]
    ) -> None:
        self.around, self.disk = around, disk
        self._freeze, self._thaw = freeze, thaw

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self._freeze()
        try:
            yield
        finally:
            self._thaw()


@contextmanager
def hanging_writes(around: Path, name: str) -> Iterator[Freezer]:
    disk = FaultyDisk(LocalDisk())

    def freeze() -> None:
        for operation in (
            "make_directory", "remove_tree", "create", "write", "truncate", "rename", "remove"
        ):  # fmt: skip
            disk.hang(operation, f"/{name}/")

    try:
        yield Freezer(around, disk, freeze, disk.release)
    finally:
        disk.release()


@contextmanager
def freezer_of(name: str, tmp_path: Path) -> Iterator[Freezer]:
    """The folder of this name can be frozen."""
    with ExitStack() as stack:
        try:
            mounted = stack.enter_context(freezable(name))
            freezer = Freezer(mounted.folder.parent, LocalDisk(), mounted.freeze, mounted.thaw)
        except MountRefused:
            freezer = stack.enter_context(hanging_writes(tmp_path, name))
        yield freezer


def check_answers(broker: BrokerThread, client: Client, frozen: int) -> None:
    """Partitions on the frozen file system refuse, all others take messages, and everybody is answered."""

    gone = numbers_in(broker, frozen)

    def send_one(number: int) -> str | None:
        with client_of(broker.addresses) as other:
            return other.send(number)

    with ThreadPoolExecutor(len(gone) + 1) as clients:
        began = time.monotonic()
        refused = [clients.submit(send_one, number) for number in gone]
        created = clients.submit(Admin(broker).create, "new")
        for number in set(range(PARTITIONS)) - gone:
            assert client.send(number) is None
        assert time.monotonic() - began < ANSWERED_WITHIN_S
        assert [each.result(ANSWERED_WITHIN_S) for each in refused] == [SERVER_BUSY] * len(gone)
        assert created.result(ANSWERED_WITHIN_S)[0] == 503
    began = time.monotonic()
    for number in range(PARTITIONS):
        assert client.send(number) == (SERVER_BUSY if number in gone else None)
        assert client.send() is None, "without a key there is always another partition"
    assert time.monotonic() - began < ANSWERED_WITHIN_S
    states = health(broker.addresses)["partitions"]
    assert {number for number, state in enumerate(states) if state == "recovering"} == gone
    assert folder_states(broker) == ["stalls" if number == frozen else "ok" for number in range(len(BOTH))]
    lines = scrapes.metrics(broker.addresses, BACK_WITHIN_S).splitlines()
    assert f'partibus_partitions{{state="recovering"}} {float(len(gone))}' in lines


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_file_system_takes_its_own_partitions_with_it_and_gives_them_back(
    frozen: int, tmp_path: Path
) -> None:
    with (
        freezer_of(BOTH[frozen], tmp_path) as freezer,
        broker_on(freezer.around, freezer.disk, disk_timeout_ms=TIMEOUT_MS) as broker,
        client_of(broker.addresses) as client,
    ):
        assert send_to_each(client) == [None] * PARTITIONS
        with freezer.frozen():
            check_answers(broker, client, frozen)
        wait_until(lambda: folder_states(broker) == ["ok", "ok"], "the folders are there", BACK_WITHIN_S)
        wait_until(lambda: send_to_each(client) == [None] * PARTITIONS, "all are back", BACK_WITHIN_S)
        check_nothing_lost(broker.addresses, client.ledger)


def test_a_test_that_is_killed_leaves_nothing_frozen_and_nothing_mounted() -> None:
    try:
        with freezable("small"):
            pass
    except MountRefused as error:
        pytest.skip(f"this process may not mount a file system: {error}")
    killed = subprocess.Popen([sys.executable, "-c", FROZEN_AND_KILLED], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    folder = Path(killed.stdout.readline().strip())
    killed.stdout.close()
    assert str(folder) in Path("/proc/self/mounts").read_text()
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait(BACK_WITHIN_S) == -signal.SIGKILL, "what waited for the file system has ended"
    wait_until(lambda: not folder.parent.exists(), "the file system is gone", BACK_WITHIN_S)
    assert str(folder) not in Path("/proc/self/mounts").read_text()
