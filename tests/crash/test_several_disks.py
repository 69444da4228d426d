"""Partitions spread over several data folders: a problem with one disk affects only the partitions on it."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from broker.server import Broker
from broker.settings.settings import load_settings
from storage.disk import Disk, LocalDisk
from storage.errors import DiskFailed, StorageError
from storage.folder_identity import WrongFolders
from storage.spread_store import place
from tests.crash.test_broker_disk_faults import (
    PARTITIONS,
    RESOURCE_LIMIT,
    SERVER_BUSY,
    Client,
    check_nothing_lost,
    client_of,
    commit_failures,
    health,
    wait_until,
)
from tests.crash.test_hanging_disk import BACK_WITHIN_S, connection_string
from tests.support import scrapes
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.faulty_disk import OPERATIONS, FaultyDisk
from tests.support.sas import sas_token
from tests.support.small_disk import SmallDisk

BOTH = ("first", "second")
LOST = ("missing", "hangs")


def broker_on(
    folder: Path,
    disk: Disk | None = None,
    names: tuple[str, ...] = BOTH,
    queues: tuple[str, ...] = ("orders",),
    **settings: Any,
) -> BrokerThread:
    first, *more = (folder / name for name in names)
    given = {"data_dir": first, "more_data_dirs": tuple(more), **settings}
    return BrokerThread(folder, list(map(queue, queues)), disk or LocalDisk(), **given)


def numbers_in(broker: BrokerThread, folder: int) -> set[int]:
    """The queue's partitions in this folder."""
    found = broker.broker.namespace.find("orders")
    assert found is not None and found.description.folders == len(BOTH)
    return {
        number
        for number in range(PARTITIONS)
        if place(found.description.generation, number, len(BOTH)) == folder
    }


def folder_states(broker: BrokerThread) -> list[str]:
    """Folder states as `/health` shows them; the metrics must agree."""
    shown: list[str] = []
    lines: list[str] = []
    before: list[str] | None = None
    while shown != before:  # a state may change between two requests
        before = shown
        lines = scrapes.metrics(broker.addresses, BACK_WITHIN_S).splitlines()
        shown = scrapes.health(broker.addresses, BACK_WITHIN_S)["data_folders"]
    for state in set(shown):
        assert f'partibus_data_folders{{state="{state}"}} {float(shown.count(state))}' in lines
    return shown


def send_to_each(client: Client) -> list[str | None]:
    return [client.send(number) for number in range(PARTITIONS)]


def check_all_back(broker: BrokerThread, client: Client, meanwhile: Client) -> None:
    """Both folders are there, all partitions take messages, and nothing is lost that either client sent."""
    wait_until(lambda: folder_states(broker) == ["ok", "ok"], "the folders are there", BACK_WITHIN_S)
    wait_until(
        lambda: send_to_each(meanwhile) == [None] * PARTITIONS, "all partitions are back", BACK_WITHIN_S
    )
    client.ledger.sending(list(meanwhile.ledger.attempted))
    client.ledger.sent(list(meanwhile.ledger.acknowledged))
    check_nothing_lost(broker.addresses, client.ledger)


def segments(folder: Path) -> set[int]:
    return {int(path.parent.name, 16) for path in folder.glob("logs/*/*/*.segment")}


def test_partitions_are_spread_and_found_again_in_whatever_order_the_folders_are_named(
    tmp_path: Path,
) -> None:
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
        for number, name in enumerate(BOTH):
            assert (
                segments(tmp_path / name) == numbers_in(broker, number)
                and len(numbers_in(broker, number)) == PARTITIONS // 2
            )
            assert (tmp_path / name / "lock").exists()
        certificate = (tmp_path / "first" / "tls" / "ca.pem").read_bytes()
    with broker_on(tmp_path, names=BOTH[::-1]) as broker:
        assert (tmp_path / "first" / "tls" / "ca.pem").read_bytes() == certificate and not (
            tmp_path / "second" / "tls"
        ).exists()
        check_nothing_lost(broker.addresses, client.ledger)


def test_a_queue_from_before_a_folder_was_added_stays_where_it_is_and_new_ones_are_spread(
    tmp_path: Path,
) -> None:
    with broker_on(tmp_path, names=BOTH[:1]) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
    with BrokerThread(
        tmp_path,
        [queue("orders"), queue("new")],
        LocalDisk(),
        data_dir=tmp_path / "second",
        more_data_dirs=(tmp_path / "first",),
    ) as broker:
        assert segments(tmp_path / "first") == set(range(PARTITIONS)) and not segments(tmp_path / "second")
        with client_of(broker.addresses, queue_name="new") as other:
            assert send_to_each(other) == [None] * PARTITIONS
        assert len(segments(tmp_path / "second")) == PARTITIONS // 2
        check_nothing_lost(broker.addresses, client.ledger)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_folder_that_is_missing_at_the_start_takes_its_own_partitions_with_it_and_no_others(
    missing: int, tmp_path: Path
) -> None:
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
    away = tmp_path / "away"
    (tmp_path / BOTH[missing]).rename(away)
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as meanwhile:
        meanwhile._number = 1_000
        gone = numbers_in(broker, missing)
        assert send_to_each(meanwhile) == [
            SERVER_BUSY if number in gone else None for number in range(PARTITIONS)
        ]
        for _ in range(PARTITIONS):
            assert meanwhile.send() is None, "without a key there is always another partition"
        # Symptom: they became `recovering` when a client asked for them.
        assert shown_as_lost(broker, "missing") == gone
    assert not list((tmp_path / BOTH[missing]).rglob("*.segment")), (
        "nothing was begun in the place of the missing folder"
    )
    shutil.rmtree(tmp_path / BOTH[missing], ignore_errors=True)
    away.rename(tmp_path / BOTH[missing])
    with broker_on(tmp_path, names=BOTH[::-1]) as broker:
        client.ledger.sending(list(meanwhile.ledger.attempted))
        client.ledger.sent(list(meanwhile.ledger.acknowledged))
        check_nothing_lost(broker.addresses, client.ledger)


def shown_as_lost(broker: BrokerThread, state: str) -> set[int]:
    """The queue's partitions that `/health` and the metrics call down and incompletely counted."""
    shown = health(broker.addresses)
    numbers = {number for number, each in enumerate(shown["partitions"]) if each == state}
    assert shown["availability"] == ("Limited" if numbers else "Available")
    assert set(shown.get("uncounted_partitions", ())) == numbers
    lines = scrapes.metrics(broker.addresses, BACK_WITHIN_S).splitlines()
    assert f'partibus_entity_available{{entity="orders"}} {0.0 if numbers else 1.0}' in lines
    assert (f'partibus_uncounted_partitions{{entity="orders"}} {float(len(numbers))}' in lines) == bool(
        numbers
    )
    for number in numbers:
        which = f'entity="orders",partition="{number}",state="{state}"'
        assert f"partibus_partition_down{{{which}}} 1.0" in lines
    return numbers


def wait_for(broker: BrokerThread, state: str, availability: str) -> None:
    """Wait until the second folder, or the missing one, is in this state and the queue is as available."""

    def is_so() -> bool:
        shown = scrapes.health(broker.addresses, BACK_WITHIN_S)
        return (
            shown["data_folders"] in (["ok", state], [state, "ok"])
            and shown["entities"]["orders"]["availability"] == availability
        )

    wait_until(is_so, f"a folder is {state} and the queue is {availability}", BACK_WITHIN_S)
    assert state in folder_states(broker)


@pytest.mark.parametrize("partition_process", [False, True], ids=["here", "in a process"])
def test_while_the_folder_with_the_index_is_missing_nobody_takes_the_counts_for_complete(
    tmp_path: Path, partition_process: bool
) -> None:
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
        assert shown_as_lost(broker, "missing") == set()
    away = tmp_path / "away"
    (tmp_path / "first").rename(away)
    with broker_on(tmp_path, disk_timeout_ms=500, partition_process=partition_process) as broker:
        # Symptom: the queue was available and held half of its messages, as if the others had never been.
        gone = numbers_in(broker, 0)
        assert shown_as_lost(broker, "missing") == gone
        shutil.rmtree(tmp_path / "first", ignore_errors=True)
        away.rename(tmp_path / "first")
        wait_for(broker, "ok", "Available")
        check_nothing_lost(broker.addresses, client.ledger)


def test_a_folder_that_is_unmounted_or_hangs_while_the_broker_runs_is_shown(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    with broker_on(tmp_path, disk, disk_timeout_ms=500) as broker:
        second, away = tmp_path / "second", tmp_path / "away"
        assert folder_states(broker) == ["ok", "ok"]
        second.rename(away)
        second.mkdir()  # a mount point without its disk
        # Symptom: the folder was `ok` until the next restart.
        wait_for(broker, "missing", "Limited")
        assert shown_as_lost(broker, "missing") == numbers_in(broker, 1)
        second.rmdir()
        away.rename(second)
        wait_for(broker, "ok", "Available")
        assert shown_as_lost(broker, "missing") == set()
        disk.hang("open_read", "/second/lock")
        wait_for(broker, "hangs", "Limited")
        assert shown_as_lost(broker, "missing") == numbers_in(broker, 1)
        disk.release()
        wait_for(broker, "ok", "Available")


@pytest.mark.parametrize("what", ["commit", "opening"])
def test_a_folder_that_is_seen_from_memory_is_shown_as_stalling_while_its_disk_hangs(
    what: str, tmp_path: Path
) -> None:
    disk = FaultyDisk(LocalDisk())
    with broker_on(tmp_path, disk) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
    with (
        broker_on(tmp_path, disk, queues=("orders", "idle"), disk_timeout_ms=1_000) as broker,
        client_of(broker.addresses) as meanwhile,
    ):
        meanwhile._number = 1_000
        victim, other, *_ = sorted(numbers_in(broker, 1))
        if what == "commit":
            wait_until(lambda: meanwhile.send(victim) is None, "it is open", BACK_WITHIN_S)
        assert folder_states(broker) == ["ok", "ok"]
        disk.hang("sync" if what == "commit" else "open_read", "/second/logs/")
        try:
            assert meanwhile.send(victim) == SERVER_BUSY
            # Symptom: the folder was `ok`, because the look at it needs no disk.
            wait_until(lambda: folder_states(broker) == ["ok", "stalls"], "it is shown", BACK_WITHIN_S)
            partitions = health(broker.addresses)["partitions"]
            assert partitions[victim] == "recovering"
            assert partitions[other] == "closed", "nobody has waited for it in vain"
            assert scrapes.health(broker.addresses, 5)["entities"]["idle"]["availability"] == "Available"
        finally:
            disk.release()
        check_all_back(broker, client, meanwhile)


def test_a_folder_that_comes_back_while_the_broker_runs_serves_again(tmp_path: Path) -> None:
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
    (tmp_path / "second").rename(tmp_path / "away")
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as meanwhile:
        meanwhile._number = 1_000
        gone = numbers_in(broker, 1)
        assert folder_states(broker) == ["ok", "missing"], "before anybody has used the folder"
        assert meanwhile.send(min(gone)) == SERVER_BUSY
        (tmp_path / "away").rename(tmp_path / "second")
        wait_until(lambda: meanwhile.send(min(gone)) is None, "the folder is back", BACK_WITHIN_S)
        check_all_back(broker, client, meanwhile)


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("hanging", [0, 1])
def test_a_folder_that_hangs_at_the_start_holds_up_its_own_partitions_only_and_comes_back(
    hanging: int, is_named: bool, tmp_path: Path
) -> None:
    """Symptom: a folder that was no longer named kept the broker from starting."""
    names = BOTH if is_named else (BOTH[1 - hanging],)
    disk = FaultyDisk(LocalDisk())
    with broker_on(tmp_path, disk) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
    for operation in OPERATIONS:
        disk.hang(operation, str(tmp_path / BOTH[hanging]))
    try:
        with (
            broker_on(tmp_path, disk, names, disk_timeout_ms=500) as broker,
            client_of(broker.addresses) as meanwhile,
        ):
            meanwhile._number = 1_000
            gone = numbers_in(broker, hanging)
            assert folder_states(broker)[1 - hanging] == "ok" and folder_states(broker)[hanging] in LOST
            for number in set(range(PARTITIONS)) - gone:
                assert meanwhile.send(number) is None
            assert meanwhile.send(min(gone)) == SERVER_BUSY
            for _ in range(2 * PARTITIONS):
                assert meanwhile.send() is None
            disk.release()
            wait_until(lambda: meanwhile.send(min(gone)) is None, "the disk answers", BACK_WITHIN_S)
            check_all_back(broker, client, meanwhile)
    finally:
        disk.release()
    with broker_on(tmp_path) as broker:
        assert folder_states(broker) == ["ok", "ok"]


@pytest.mark.parametrize("missing", [0, 1])
def test_a_change_that_is_refused_while_a_folder_is_missing_costs_no_queue_and_no_start(
    missing: int, tmp_path: Path
) -> None:
    with broker_on(tmp_path):
        pass
    away = tmp_path / "away"
    (tmp_path / BOTH[missing]).rename(away)
    with broker_on(tmp_path, queues=("orders", "new")) as broker, client_of(broker.addresses) as client:
        url = broker.addresses.http_url
        delete = urllib.request.Request(
            f"{url}/orders?api-version=2021-05", method="DELETE", headers={"Authorization": sas_token(url)}
        )
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            urllib.request.urlopen(delete, timeout=BACK_WITHIN_S)
        assert "left as it is" in refused.value.read().decode()
        for _ in range(2 * PARTITIONS):
            assert client.send() is None, "nothing has happened to the queue"
        assert broker.broker.namespace.find("new") is None
    shutil.rmtree(tmp_path / BOTH[missing], ignore_errors=True)
    away.rename(tmp_path / BOTH[missing])
    with broker_on(tmp_path, queues=("orders", "new")) as broker:
        assert broker.broker.namespace.find("new") is not None
        check_nothing_lost(broker.addresses, client.ledger)


def test_a_full_disk_refuses_what_belongs_to_it_and_takes_nothing_from_the_others(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "second")
    with broker_on(tmp_path, disk) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
        full = numbers_in(broker, 1)
        disk.capacity_bytes = disk.used_bytes
        padded = Client(broker.addresses.amqp_port, body_bytes=30_000)
        wait_until(
            lambda: [padded.send(number) for number in full] == [RESOURCE_LIMIT] * len(full),
            "the disk is full for each of its partitions",
            BACK_WITHIN_S,
        )
        assert folder_states(broker) == ["ok", "full"]
        for _ in range(2 * PARTITIONS):
            assert client.send() is None, "without a key the other disk takes it"
        for number in set(range(PARTITIONS)) - full:
            assert client.send(number) is None
        padded.close()
        disk.capacity_bytes = None
        wait_until(lambda: send_to_each(client) == [None] * PARTITIONS, "there is room again", BACK_WITHIN_S)


def hang(disk: FaultyDisk) -> None:
    disk.hang("sync", "/second/logs/")


def fail(disk: FaultyDisk) -> None:
    for operation in ("write", "sync", "create", "open_read", "open_write", "sync_directory"):
        disk.fail(operation, times=1 << 30, path_part="/second/")


@pytest.mark.parametrize("fault", [hang, fail])
def test_a_disk_that_hangs_or_fails_takes_its_own_partitions_with_it_and_no_others(
    fault: Callable[[FaultyDisk], None], tmp_path: Path
) -> None:
    disk = FaultyDisk(LocalDisk())
    with (
        broker_on(tmp_path, disk, disk_timeout_ms=500) as broker,
        client_of(broker.addresses) as client,
        ServiceBusClient.from_connection_string(connection_string(broker)) as official,
        official.get_queue_sender("orders") as sender,
    ):
        assert send_to_each(client) == [None] * PARTITIONS
        gone = numbers_in(broker, 1)
        fault(disk)
        for number in gone:
            assert client.send(number) == SERVER_BUSY
        for number in set(range(PARTITIONS)) - gone:
            assert client.send(number) is None
        for _ in range(2 * PARTITIONS):
            assert client.send() is None
        sender.send_messages([ServiceBusMessage("batch"), ServiceBusMessage("batch")])
        disk.heal()
        disk.release()
        wait_until(lambda: send_to_each(client) == [None] * PARTITIONS, "the disk is back", BACK_WITHIN_S)


def test_one_message_at_most_waits_for_a_disk_that_hangs_whatever_partitions_are_on_it(
    tmp_path: Path,
) -> None:
    """Symptom: each of them waited out the time-out with the first message that it got."""
    disk = FaultyDisk(LocalDisk())
    with (
        broker_on(tmp_path, disk, disk_timeout_ms=1_000) as broker,
        client_of(broker.addresses) as client,
    ):
        assert send_to_each(client) == [None] * PARTITIONS
        hang(disk)
        for _ in range(2 * PARTITIONS):
            assert client.send() is None
        assert commit_failures(broker.addresses) == 1
        disk.release()
        wait_until(lambda: send_to_each(client) == [None] * PARTITIONS, "the disk is back", BACK_WITHIN_S)


def test_each_folder_is_locked(tmp_path: Path) -> None:
    with broker_on(tmp_path):
        for names in (BOTH, BOTH[::-1]):
            first, *more = (tmp_path / name for name in names)
            with pytest.raises(DiskFailed, match="another process"):
                Broker(load_settings(data_dir=first, more_data_dirs=tuple(more)))


def refusal(folder: Path, *names: str) -> StorageError:
    with pytest.raises(WrongFolders) as caught:
        Broker(
            load_settings(
                data_dir=folder / names[0], more_data_dirs=tuple(folder / name for name in names[1:])
            )
        )
    return caught.value


def test_folders_of_two_brokers_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with broker_on(tmp_path, names=(name,)):
            pass
    assert "two" in str(refusal(tmp_path, "one", "two"))
    with broker_on(tmp_path):
        pass
    assert "one" in str(refusal(tmp_path, "first", "one"))


def test_a_queue_that_is_created_while_a_folder_is_missing_has_no_partitions_in_it(tmp_path: Path) -> None:
    names = (*BOTH, "third")
    with broker_on(tmp_path, names=names) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
    (tmp_path / "third").rename(tmp_path / "away")
    with broker_on(tmp_path, names=names, queues=("orders", "new")) as broker:
        found = broker.broker.namespace.find("new")
        assert found is not None and found.description.folders == 2
        with client_of(broker.addresses, queue_name="new") as other:
            assert send_to_each(other) == [None] * PARTITIONS
    (tmp_path / "away").rename(tmp_path / "third")
    with broker_on(tmp_path, names=names, queues=("orders", "new", "newest")) as broker:
        folders = {}
        for name in ("orders", "new", "newest"):
            found = broker.broker.namespace.find(name)
            assert found is not None
            folders[name] = found.description.folders
        assert folders == {"orders": 3, "new": 2, "newest": 3}
        check_nothing_lost(broker.addresses, client.ledger)


def test_a_folder_that_is_not_named_is_used_from_the_start_without_an_error(tmp_path: Path) -> None:
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
    with (
        structlog.testing.capture_logs() as lines,
        broker_on(tmp_path, names=BOTH[:1]) as broker,
        client_of(broker.addresses) as meanwhile,
    ):
        meanwhile._number = 1_000
        assert folder_states(broker) == ["ok", "ok"]
        check_all_back(broker, client, meanwhile)
    assert [line["event"] for line in lines if line["event"].startswith("folder.")] == ["folder.not_named"]
