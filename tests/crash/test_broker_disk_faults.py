"""What clients see of a failing disk: one partition goes down and comes back, the others never notice."""

from __future__ import annotations

import errno
import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from broker.namespace.router import partition_of_key
from protocol.codec import Symbol
from storage.disk import LocalDisk
from tests.crash.clients import Place, body_of, drain
from tests.crash.ledger import QueueLedger, name_of
from tests.support import raw_amqp as raw
from tests.support import scrapes
from tests.support.amqp_messages import message
from tests.support.broker_process import Addresses, BrokerProcess, queue
from tests.support.broker_thread import BrokerThread
from tests.support.faulty_disk import FaultyDisk
from tests.support.raw_amqp import RawConnection
from tests.support.sas import sas_token
from tests.support.small_disk import SmallDisk

PARTITIONS = 16
VICTIM = 5
VICTIM_FOLDER = f"/{VICTIM:04x}"
BACK_WITHIN_S = 10.0
BACK_AFTER_LONG_WITHIN_S = 20.0
"""The longer a partition has been down, the longer it pauses between two attempts: up to 10 s."""
SERVER_BUSY, RESOURCE_LIMIT = "com.microsoft:server-busy", "amqp:resource-limit-exceeded"
KEYS = {partition_of_key(f"key{number}", PARTITIONS): f"key{number}" for number in range(400)}
"""A key for each partition."""
IDS = list(KEYS.values())
"""Message-ids that belong to all partitions."""


class Client:
    """A sender that reports the outcome of each message and records it."""

    def __init__(self, port: int, queue_name: str = "orders", body_bytes: int = 0) -> None:
        self.ledger = QueueLedger()
        self._connection = RawConnection(port)
        self._connection.open()
        self._connection.begin()
        self._connection.attach_sender(0, queue_name)
        self._number = 0
        self._padding = [bytes(body_bytes)] if body_bytes else []

    def send(self, partition: int | None = None) -> str | None:
        """Send one message, with a key for the given partition or without one; None if it was accepted,
        otherwise the condition of its refusal.
        """
        name = name_of("sender", "", self._number)
        annotations = None if partition is None else {"x-opt-partition-key": KEYS[partition]}
        self.ledger.sending([name])
        payload = message(
            annotations=annotations, properties=[name], application=self._application(), body=[body_of(name)]
        )
        self._connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, self._number), payload)
        self._number += 1
        state = self._connection.read_until(raw.DISPOSITION).field(4)
        if state.descriptor == raw.ACCEPTED:
            self.ledger.sent([name])
            return None
        return str(state.value[0].value[0])

    def _application(self) -> dict[str, Any] | None:
        return {"padding": self._padding[0]} if self._padding else None

    def close(self) -> None:
        self._connection.socket.close()


@contextmanager
def client_of(addresses: Addresses, **options: Any) -> Iterator[Client]:
    client = Client(addresses.amqp_port, **options)
    try:
        yield client
    finally:
        client.close()


def health(addresses: Addresses) -> dict[str, Any]:
    """The queue's part of `/health`."""
    entity: dict[str, Any] = scrapes.health(addresses, within_s=5)["entities"]["orders"]
    return entity


def availability(addresses: Addresses) -> str:
    """`EntityAvailabilityStatus` as administration clients see it."""
    url = f"{addresses.http_url}/orders?api-version=2021-05"
    request = urllib.request.Request(url, headers={"Authorization": sas_token(addresses.http_url)})
    with urllib.request.urlopen(request, timeout=5) as answer:
        text = answer.read().decode()
    return str(text.split("<EntityAvailabilityStatus>")[1].split("<")[0])


def commit_failures(addresses: Addresses) -> int:
    lines = scrapes.metrics(addresses, within_s=5).splitlines()
    (line,) = [line for line in lines if line.startswith("partibus_commit_failures_total ")]
    return int(float(line.split()[1]))


def wait_until(holds: Callable[[], bool], what: str, within_s: float = BACK_WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"{what} within {within_s} s"
        time.sleep(0.02)


def check_nothing_lost(addresses: Addresses, ledger: QueueLedger) -> None:
    """Check that every acknowledged message is there, and no refused one."""
    place = Place(addresses.amqp_port)
    refused = ledger.attempted - ledger.acknowledged
    drain(place, "orders", ledger)
    assert ledger.problems() == []
    assert not refused & {receipt.name for receipt in ledger.receipts}, "what was refused is shown"


def fail_a_write(disk: FaultyDisk) -> None:
    disk.fail("write", path_part=VICTIM_FOLDER)


def fail_a_sync(disk: FaultyDisk) -> None:
    disk.fail("sync", path_part=VICTIM_FOLDER)


def cut_a_write_short(disk: FaultyDisk) -> None:
    """Write part of a frame to the disk and refuse the rest."""
    disk.shorten(20, path_part=VICTIM_FOLDER)
    disk.fail("write", path_part=VICTIM_FOLDER)


@pytest.mark.parametrize("fault", [fail_a_write, fail_a_sync, cut_a_write_short])
def test_a_partition_whose_disk_fails_goes_down_alone_and_comes_back_by_itself(
    fault: Callable[[FaultyDisk], None], tmp_path: Path
) -> None:
    disk = FaultyDisk(LocalDisk())
    with BrokerThread(tmp_path, [queue("orders")], disk) as broker, client_of(broker.addresses) as client:
        for number in range(PARTITIONS):
            assert client.send(number) is None
        assert health(broker.addresses)["availability"] == availability(broker.addresses) == "Available"

        for operation in (
            "names",
            "open_read",
            "open_write",
            "create",
        ):  # the partition does not come back before we look
            disk.fail(operation, times=1_000_000, path_part=VICTIM_FOLDER)
        fault(disk)
        assert client.send(VICTIM) == SERVER_BUSY
        assert health(broker.addresses)["partitions"][VICTIM] == "recovering"
        assert health(broker.addresses)["availability"] == availability(broker.addresses) == "Limited"
        for number in range(PARTITIONS):
            assert client.send(number) == (SERVER_BUSY if number == VICTIM else None)
        for _ in range(3 * PARTITIONS):
            assert client.send() is None, "without a key there is always another partition"

        disk.heal()
        wait_until(lambda: client.send(VICTIM) is None, "the partition is back")
        assert set(health(broker.addresses)["partitions"]) == {"healthy"}
        assert health(broker.addresses)["availability"] == availability(broker.addresses) == "Available"
        check_nothing_lost(broker.addresses, client.ledger)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_an_unkeyed_message_whose_own_commit_fails_is_taken_by_another_partition_exactly_once(
    operation: str, tmp_path: Path
) -> None:
    disk = FaultyDisk(LocalDisk())
    with BrokerThread(tmp_path, [queue("orders")], disk) as broker, client_of(broker.addresses) as client:
        for number in range(PARTITIONS):
            assert client.send(number) is None
        for failures in range(1, 6):
            disk.fail(
                operation, path_part="/logs/"
            )  # the next commit's call, whichever partition the message goes to
            assert client.send() is None
            assert commit_failures(broker.addresses) == failures
        wait_until(
            lambda: set(health(broker.addresses)["partitions"]) == {"healthy"}, "all partitions are back"
        )
        check_nothing_lost(broker.addresses, client.ledger)
        assert Counter(receipt.name for receipt in client.ledger.receipts) == dict.fromkeys(
            client.ledger.attempted, 1
        )


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_keyed_message_whose_own_commit_fails_is_refused_as_busy_and_never_seen(
    operation: str, tmp_path: Path
) -> None:
    disk = FaultyDisk(LocalDisk())
    with BrokerThread(tmp_path, [queue("orders")], disk) as broker, client_of(broker.addresses) as client:
        assert client.send(VICTIM) is None
        disk.fail(operation, path_part=VICTIM_FOLDER)
        assert client.send(VICTIM) == SERVER_BUSY
        assert commit_failures(broker.addresses) == 1
        wait_until(lambda: client.send(VICTIM) is None, "the partition is back")
        check_nothing_lost(broker.addresses, client.ledger)


def test_a_short_write_alone_is_carried_to_its_end(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    with BrokerThread(tmp_path, [queue("orders")], disk) as broker, client_of(broker.addresses) as client:
        for _ in range(10):
            disk.shorten(20, path_part=VICTIM_FOLDER)
            assert client.send(VICTIM) is None
        check_nothing_lost(broker.addresses, client.ledger)


def test_the_official_client_rides_out_a_failed_sync_with_a_key_and_without(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    with BrokerThread(tmp_path, [queue("orders")], disk) as broker:
        text = broker.addresses.connection_string()
        with (
            ServiceBusClient.from_connection_string(text, retry_backoff_factor=0.1) as sdk,
            sdk.get_queue_sender("orders") as sender,
        ):
            for round_number in range(4):
                disk.fail("sync", path_part=VICTIM_FOLDER)
                sender.send_messages(ServiceBusMessage(f"keyed {round_number}", partition_key=KEYS[VICTIM]))
                for number in range(PARTITIONS):
                    sender.send_messages(ServiceBusMessage(f"free {round_number} {number}"))
            with sdk.get_queue_receiver("orders", max_wait_time=2) as receiver:
                bodies = []
                for received in receiver:
                    bodies.append(str(received))
                    receiver.complete_message(received)
        expected = [f"keyed {number}" for number in range(4)] + [
            f"free {number} {each}" for number in range(4) for each in range(PARTITIONS)
        ]
        assert sorted(bodies) == sorted(expected)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_batch_that_is_split_by_its_message_ids_is_stored_once_although_a_partition_refuses(
    operation: str, tmp_path: Path
) -> None:
    """The first attempt of each batch fails in one partition, after others have stored their messages. Some
    messages have no id by which a second attempt could be known."""
    disk = FaultyDisk(LocalDisk())
    orders = queue("orders", RequiresDuplicateDetection=True)
    expected: list[str] = []
    with BrokerThread(tmp_path, [orders], disk) as broker, client_of(broker.addresses) as keyed:
        text = broker.addresses.connection_string()
        for number in range(PARTITIONS):
            assert keyed.send(number) is None
        with (
            ServiceBusClient.from_connection_string(text, retry_total=0) as sdk,
            sdk.get_queue_sender("orders") as sender,
        ):
            for attempt in range(3):
                named = [ServiceBusMessage(f"{attempt} {id}", message_id=f"{attempt} {id}") for id in IDS]
                unnamed = [ServiceBusMessage(f"{attempt} unnamed {number}") for number in range(10)]
                messages = [*named, *unnamed]
                expected += [str(each) for each in messages]
                disk.fail(operation, path_part=VICTIM_FOLDER)
                with pytest.raises(ServiceBusServerBusyError):
                    sender.send_messages(messages)
                assert commit_failures(broker.addresses) == attempt + 1
                wait_until(lambda: keyed.send(VICTIM) is None, "the partition is back")
                sender.send_messages(messages)
                sender.send_messages(named)
            with sdk.get_queue_receiver("orders", max_wait_time=2) as receiver:
                found = []
                for received in receiver:
                    found.append(b"".join(received.body).decode("latin-1"))
                    receiver.complete_message(received)
    assert Counter(body for body in found if "|" not in body) == dict.fromkeys(expected, 1)


def test_nothing_of_a_split_batch_is_stored_while_a_partition_that_it_needs_is_down(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    orders = queue("orders", RequiresDuplicateDetection=True)
    with BrokerThread(tmp_path, [orders], disk) as broker, client_of(broker.addresses) as keyed:
        text = broker.addresses.connection_string()
        for number in range(PARTITIONS):
            assert keyed.send(number) is None
        for operation in ("names", "open_read", "open_write", "create"):
            disk.fail(operation, times=1_000_000, path_part=VICTIM_FOLDER)
        fail_a_write(disk)
        assert keyed.send(VICTIM) == SERVER_BUSY
        with (
            ServiceBusClient.from_connection_string(text, retry_total=0) as sdk,
            sdk.get_queue_sender("orders") as sender,
            sdk.get_queue_receiver("orders") as receiver,
        ):
            with pytest.raises(ServiceBusServerBusyError):
                sender.send_messages([ServiceBusMessage(id, message_id=id) for id in IDS])
            assert len(receiver.peek_messages(100)) == PARTITIONS - 1
            disk.heal()


def browsed(connection_string: str, page: int = 7, **options: Any) -> list[str]:
    """Bodies that the official client browses, page after page; it remembers by itself where the next page
    begins.
    """
    found: list[str] = []
    with (
        ServiceBusClient.from_connection_string(connection_string, **options) as sdk,
        sdk.get_queue_receiver("orders") as receiver,
    ):
        while messages := receiver.peek_messages(page):
            assert len(messages) <= page
            found += [b"".join(each.body).decode("latin-1") for each in messages]
    return found


def test_browsing_shows_what_the_other_partitions_hold_while_one_is_down(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    with BrokerThread(tmp_path, [queue("orders")], disk) as broker:
        text = broker.addresses.connection_string()
        sent = [f"{number} {each}" for number in range(PARTITIONS) for each in range(3)]
        with ServiceBusClient.from_connection_string(text) as sdk, sdk.get_queue_sender("orders") as sender:
            for number in range(PARTITIONS):
                sender.send_messages(
                    [ServiceBusMessage(f"{number} {each}", partition_key=KEYS[number]) for each in range(3)]
                )
        assert browsed(text) == sent

        for operation in ("names", "open_read", "open_write", "create"):
            disk.fail(operation, times=1_000_000, path_part=VICTIM_FOLDER)
        fail_a_write(disk)
        with client_of(broker.addresses) as client:
            assert client.send(VICTIM) == SERVER_BUSY
        assert health(broker.addresses)["partitions"][VICTIM] == "recovering"
        assert browsed(text) == [body for body in sent if not body.startswith(f"{VICTIM} ")]

        disk.heal()
        wait_until(
            lambda: set(health(broker.addresses)["partitions"]) == {"healthy"},
            "the partition is back",
            BACK_AFTER_LONG_WITHIN_S,
        )
        assert browsed(text) == sent


def test_sessions_of_the_other_partitions_are_listed_while_one_is_down(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    with (
        BrokerThread(tmp_path, [queue("orders", RequiresSession=True)], disk) as broker,
        ServiceBusClient.from_connection_string(broker.addresses.connection_string(), retry_total=0) as sdk,
    ):
        with sdk.get_queue_sender("orders") as sender:
            for key in KEYS.values():
                sender.send_messages(ServiceBusMessage("x", session_id=key))
            for operation in ("names", "open_read", "open_write", "create"):
                disk.fail(operation, times=1_000_000, path_part=VICTIM_FOLDER)
            fail_a_write(disk)
            with pytest.raises(ServiceBusServerBusyError):
                sender.send_messages(ServiceBusMessage("x", session_id=KEYS[VICTIM]))
        every = sorted(KEYS.values())
        assert sorted(sdk.list_queue_sessions("orders")) == [key for key in every if key != KEYS[VICTIM]]
        disk.heal()
        wait_until(lambda: sorted(sdk.list_queue_sessions("orders")) == every, "all are listed")


def test_browsing_is_refused_for_a_retry_only_when_nothing_but_what_is_down_could_be_shown(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(LocalDisk())
    with BrokerThread(tmp_path, [queue("orders")], disk) as broker:
        text = broker.addresses.connection_string()
        with client_of(broker.addresses) as client:
            assert client.send(VICTIM) is None
            for operation in ("names", "open_read", "open_write", "create"):
                disk.fail(operation, times=1_000_000, path_part=VICTIM_FOLDER)
            fail_a_write(disk)
            assert client.send(VICTIM) == SERVER_BUSY
        with pytest.raises(ServiceBusServerBusyError):
            browsed(text, retry_total=0)
        disk.heal()
        wait_until(
            lambda: set(health(broker.addresses)["partitions"]) == {"healthy"},
            "the partition is back",
            BACK_AFTER_LONG_WITHIN_S,
        )
        assert len(browsed(text, retry_total=0)) == 1


def test_a_partition_that_fails_while_others_receive_gives_its_messages_after_it_is_back(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(LocalDisk())
    with BrokerThread(tmp_path, [queue("orders")], disk) as broker, client_of(broker.addresses) as client:
        for number in range(PARTITIONS):
            for _ in range(5):
                assert client.send(number) is None
        disk.fail("sync", path_part=VICTIM_FOLDER)
        with RawConnection(broker.addresses.amqp_port) as receiver:
            receiver.open()
            receiver.begin()
            receiver.attach_receiver(1, "orders")
            receiver.send_frame(raw.FLOW, raw.flow_fields(1, 0, 1_000))
            settled = refused = 0
            while settled + refused < 5 * PARTITIONS:
                found = receiver.read_until(raw.TRANSFER, raw.DISPOSITION)
                if found.code == raw.TRANSFER:
                    number = found.field(1)
                    receiver.send_frame(
                        raw.DISPOSITION,
                        raw.disposition_fields(
                            raw.RECEIVER, number, number, False, raw.outcome(raw.ACCEPTED)
                        ),
                    )
                else:
                    answered = (found.field(2) or found.field(1)) - found.field(1) + 1
                    accepted = found.field(4).descriptor == raw.ACCEPTED
                    settled, refused = settled + answered * accepted, refused + answered * (not accepted)
                if refused and found.code == raw.DISPOSITION and found.field(4).descriptor == raw.REJECTED:
                    assert found.field(4).value[0].value[0] in (
                        Symbol(SERVER_BUSY),
                        Symbol("com.microsoft:message-lock-lost"),
                    )
            assert 1 <= refused <= 5
        wait_until(lambda: client.send(VICTIM) is None, "the partition is back")
        place, rest = Place(broker.addresses.amqp_port), QueueLedger(attempted=client.ledger.attempted)
        assert drain(place, "orders", rest) >= refused + 1
        assert rest.errors == []


def test_a_full_disk_refuses_sends_and_lets_receivers_drain_until_there_is_room(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "data")
    with (
        BrokerThread(tmp_path, [queue("orders")], disk) as broker,
        client_of(broker.addresses, body_bytes=30_000) as client,
    ):
        for number in range(PARTITIONS):
            assert client.send(number) is None
        disk.capacity_bytes = disk.used_bytes + 1_000_000
        outcomes = [client.send() for _ in range(100)]
        assert None in outcomes and RESOURCE_LIMIT in outcomes
        assert client.send() == client.send(VICTIM) == RESOURCE_LIMIT
        assert set(health(broker.addresses)["partitions"]) == {"healthy"}

        check_nothing_lost(broker.addresses, client.ledger)
        disk.capacity_bytes = disk.used_bytes + 50_000_000
        wait_until(lambda: client.send() is None, "sends are taken again")
        assert [client.send(number) for number in range(PARTITIONS)] == [None] * PARTITIONS
        check_nothing_lost(broker.addresses, client.ledger)


def test_damage_in_the_middle_of_a_log_stops_its_partition_and_no_other(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, [queue("orders")])
    try:
        with client_of(broker.start()) as client:
            for number in range(PARTITIONS):
                for _ in range(5):
                    assert client.send(number) is None
        broker.kill()
        (segment,) = broker.data_dir.glob(f"logs/*/{VICTIM:04x}/*.segment")
        content = bytearray(segment.read_bytes())
        damaged = content.index(name_of("sender", "", VICTIM * 5 + 2).encode() + b"|")
        content[damaged] ^= 0x01
        segment.write_bytes(content)

        addresses = broker.start()
        with client_of(addresses) as client:
            for number in range(PARTITIONS):
                assert client.send(number) == (SERVER_BUSY if number == VICTIM else None)
            for _ in range(3 * PARTITIONS):
                assert client.send() is None
            assert health(addresses)["partitions"] == [
                "damaged" if number == VICTIM else "healthy" for number in range(PARTITIONS)
            ]
            assert health(addresses)["availability"] == availability(addresses) == "Limited"
        for _ in range(3):
            shown = browsed(addresses.connection_string(), page=100)
            assert len(shown) == (PARTITIONS - 1) * 6 + 3 * PARTITIONS
        (unseen,) = [json.loads(line) for line in broker.log.splitlines() if "peek.partition_unseen" in line]
        assert (unseen["level"], unseen["entity"], unseen["partition"]) == ("warning", "orders", VICTIM)
        (line,) = [line for line in broker.log.splitlines() if "partition.failed" in line]
        entry = json.loads(line)
        assert entry["level"] == "error" and entry["partition"] == VICTIM and entry["entity"] == "orders"
        assert str(segment) in entry["error"] and "damaged at byte" in entry["error"]
        assert segment.read_bytes() == bytes(content), (
            "the damaged file is left as it is, for whoever repairs it"
        )
        with RawConnection(addresses.amqp_port) as receiver:
            receiver.open()
            receiver.begin()
            receiver.attach_receiver(1, "orders")
            receiver.send_frame(raw.FLOW, raw.flow_fields(1, 0, 1_000))
            for _ in range((PARTITIONS - 1) * 6 + 3 * PARTITIONS):
                receiver.read_until(raw.TRANSFER)
    finally:
        broker.kill()


def test_a_failing_disk_never_costs_an_acknowledged_message_over_many_faults(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    with BrokerThread(tmp_path, [queue("orders")], disk) as broker, client_of(broker.addresses) as client:
        for round_number in range(20):
            operation = ("write", "sync")[round_number % 2]
            disk.fail(operation, errno.EIO, nth=1 + round_number % 3, path_part="/00")
            for number in range(2 * PARTITIONS):
                client.send(number % PARTITIONS if round_number % 4 else None)
        disk.heal()
        wait_until(
            lambda: set(health(broker.addresses)["partitions"]) == {"healthy"}, "all partitions are back"
        )
        check_nothing_lost(broker.addresses, client.ledger)
