"""What clients see of a hanging disk: one partition counts as failed, every client is answered, and nothing
is lost or delivered twice.
"""

from __future__ import annotations

import errno
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError, SessionLockLostError

from broker.hosting.local import LocalHost
from broker.identifiers import PARTITION_SHIFT
from broker.messaging import receiver as receiving
from broker.messaging.peeking import LATE_S
from storage.disk import LocalDisk
from tests.crash.test_broker_disk_faults import (
    KEYS,
    PARTITIONS,
    SERVER_BUSY,
    VICTIM,
    VICTIM_FOLDER,
    Client,
    check_nothing_lost,
    client_of,
    commit_failures,
    health,
    wait_until,
)
from tests.support import scrapes
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.faulty_disk import FaultyDisk
from tests.support.rest_client import RestClient
from tests.support.sas import sas_token

TIMEOUT_MS = 3_000
LOST_WITHIN_S = 5.0
"""Well below the 11 s for which the Python client retries."""
ANSWERED_WITHIN_S = 15.0
"""The time that clients of the service are told to allow."""
BACK_WITHIN_S = 30.0


def broker_on(disk: FaultyDisk, folder: Path, **settings: Any) -> BrokerThread:
    return BrokerThread(folder, [queue("orders")], disk, disk_timeout_ms=TIMEOUT_MS, **settings)


def send_to_each(client: Client) -> None:
    """Send one message to every partition; each is accepted."""
    for number in range(PARTITIONS):
        assert client.send(number) is None


@contextmanager
def hanging_syncs(folder: Path) -> Iterator[tuple[FaultyDisk, BrokerThread, Client]]:
    """Put a message into every partition, then make the victim's syncs hang."""
    disk = FaultyDisk(LocalDisk())
    with broker_on(disk, folder) as broker, client_of(broker.addresses) as client:
        send_to_each(client)
        disk.hang("sync", VICTIM_FOLDER)
        yield disk, broker, client


def connection_string(broker: BrokerThread) -> str:
    return (
        f"Endpoint=sb://127.0.0.1:{broker.addresses.amqp_port};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
        "UseDevelopmentEmulator=true;"
    )


def test_a_partition_whose_commit_hangs_is_down_until_the_disk_answers_and_nothing_comes_twice(
    tmp_path: Path,
) -> None:
    with hanging_syncs(tmp_path) as (disk, broker, client):
        began = time.monotonic()
        assert client.send(VICTIM) == SERVER_BUSY, (
            "the client is told to try again, and does not know what became of the message"
        )
        assert time.monotonic() - began < ANSWERED_WITHIN_S
        assert health(broker.addresses)["partitions"][VICTIM] == "recovering"
        assert health(broker.addresses)["availability"] == "Limited"
        began = time.monotonic()
        for number in range(PARTITIONS):
            assert client.send(number) == (SERVER_BUSY if number == VICTIM else None)
        for _ in range(3 * PARTITIONS):
            assert client.send() is None, "without a key there is always another partition"
        assert time.monotonic() - began < ANSWERED_WITHIN_S
        assert commit_failures(broker.addresses) == 1

        disk.release()
        wait_until(lambda: client.send(VICTIM) is None, "the partition is back", BACK_WITHIN_S)
        assert set(health(broker.addresses)["partitions"]) == {"healthy"}
        check_nothing_lost(broker.addresses, client.ledger)


def test_unkeyed_messages_whose_own_commit_hangs_are_taken_by_another_partition_exactly_once(
    tmp_path: Path,
) -> None:
    with hanging_syncs(tmp_path) as (disk, broker, client):
        began = time.monotonic()
        for _ in range(PARTITIONS):
            assert client.send() is None
        assert time.monotonic() - began < ANSWERED_WITHIN_S
        assert commit_failures(broker.addresses) == 1
        disk.release()
        wait_until(
            lambda: set(health(broker.addresses)["partitions"]) == {"healthy"},
            "all partitions are back",
            BACK_WITHIN_S,
        )
        check_nothing_lost(broker.addresses, client.ledger)


@pytest.mark.parametrize("operation", ["open_read", "create"])
def test_what_hangs_while_a_partition_opens_holds_up_no_client(operation: str, tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    with broker_on(disk, tmp_path) as broker, client_of(broker.addresses) as client:
        send_to_each(client)
    with broker_on(disk, tmp_path) as broker, client_of(broker.addresses) as other:
        other.ledger.sent(list(client.ledger.acknowledged))
        disk.hang(operation, VICTIM_FOLDER)
        began = time.monotonic()
        for number in range(PARTITIONS):
            assert other.send(number) == (SERVER_BUSY if number == VICTIM else None)
        assert other.send(VICTIM) == SERVER_BUSY
        assert time.monotonic() - began < ANSWERED_WITHIN_S
        disk.release()
        wait_until(lambda: other.send(VICTIM) is None, "the partition is back", BACK_WITHIN_S)


def test_the_broker_stops_while_a_disk_hangs(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    try:
        with broker_on(disk, tmp_path) as broker, client_of(broker.addresses) as client:
            assert client.send(VICTIM) is None
            disk.hang("sync", VICTIM_FOLDER)
            assert client.send(VICTIM) == SERVER_BUSY
    finally:
        disk.release()


def test_a_peek_waits_for_no_partition_that_has_something_undecided(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    with (
        BrokerThread(tmp_path, [queue("orders")], disk, disk_timeout_ms=60_000) as broker,
        ServiceBusClient.from_connection_string(connection_string(broker), retry_total=0) as client,
        client.get_queue_receiver("orders") as receiver,
        client_of(broker.addresses) as sender,
        client_of(broker.addresses) as other,
    ):
        send_to_each(sender)
        disk.hang("sync", VICTIM_FOLDER)
        undecided = threading.Thread(target=other.send, args=(VICTIM,))
        undecided.start()
        wait_until(lambda: disk.held == 1, "the commit hangs")
        began = time.monotonic()
        seen = [message.sequence_number or 0 for message in receiver.peek_messages(max_message_count=100)]
        assert len(seen) == PARTITIONS - 1
        assert time.monotonic() - began < ANSWERED_WITHIN_S
        disk.release()
        undecided.join(BACK_WITHIN_S)
        seen += [message.sequence_number or 0 for message in receiver.peek_messages(max_message_count=100)]
        assert sorted(number >> PARTITION_SHIFT for number in seen) == sorted([*range(PARTITIONS), VICTIM])


def test_while_the_first_partition_hangs_all_others_are_paged_through(tmp_path: Path) -> None:
    """Of 75 pages, only the first waits for the partition. A wait of 250 ms for each would take 19 s."""
    disk = FaultyDisk(LocalDisk())
    rounds = 5
    with (
        BrokerThread(tmp_path, [queue("orders")], disk, disk_timeout_ms=60_000) as broker,
        ServiceBusClient.from_connection_string(connection_string(broker), retry_total=0) as client,
        client.get_queue_receiver("orders") as receiver,
        client_of(broker.addresses) as sender,
        client_of(broker.addresses) as other,
    ):
        for _ in range(rounds):
            send_to_each(sender)
        disk.hang("sync", "/0000/")
        undecided = threading.Thread(target=other.send, args=(0,))
        undecided.start()
        wait_until(lambda: disk.held == 1, "the commit hangs")
        began = time.monotonic()
        seen: list[int] = []
        while len(seen) < rounds * (PARTITIONS - 1):
            (message,) = receiver.peek_messages(1)
            seen.append(message.sequence_number or 0)
        assert time.monotonic() - began < ANSWERED_WITHIN_S
        disk.release()
        undecided.join(BACK_WITHIN_S)
        while page := receiver.peek_messages(1):
            seen.append(page[0].sequence_number or 0)
        assert len(set(seen)) == len(seen) == rounds * PARTITIONS + 1


def test_half_of_the_partitions_hang_and_a_peek_waits_for_them_once_and_all_at_once(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    hanging = range(0, PARTITIONS, 2)
    with (
        BrokerThread(tmp_path, [queue("orders")], disk, disk_timeout_ms=60_000) as broker,
        ServiceBusClient.from_connection_string(connection_string(broker), retry_total=0) as client,
        client.get_queue_receiver("orders") as receiver,
        client_of(broker.addresses) as sender,
        ExitStack() as others,
    ):
        send_to_each(sender)
        send_to_each(sender)
        (first,) = receiver.peek_messages(1)  # the link is open
        undecided = []
        for number in hanging:
            disk.hang("sync", f"/{number:04x}/")
            other = others.enter_context(client_of(broker.addresses))
            undecided.append(threading.Thread(target=other.send, args=(number,)))
            undecided[-1].start()
        wait_until(lambda: disk.held == len(hanging), "the commits hang")
        began = time.monotonic()
        seen = [message.sequence_number or 0 for message in receiver.peek_messages(max_message_count=6)]
        first_took_s = time.monotonic() - began
        seen += [message.sequence_number or 0 for message in receiver.peek_messages(max_message_count=250)]
        assert [number >> PARTITION_SHIFT for number in seen] == [
            number for number in range(PARTITIONS) if number not in hanging for _ in range(2)
        ]
        assert first_took_s < len(hanging) * LATE_S, "it has not waited for one after the other"
        disk.release()
        for thread in undecided:
            thread.join(BACK_WITHIN_S)
        seen.append(first.sequence_number or 0)
        while page := receiver.peek_messages(max_message_count=5):
            seen += [message.sequence_number or 0 for message in page]
        assert len(set(seen)) == len(seen) == 2 * PARTITIONS + len(hanging)


def test_a_peek_right_after_a_start_shows_what_partitions_hold_that_open_slowly(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    with broker_on(disk, tmp_path) as broker, client_of(broker.addresses) as client:
        send_to_each(client)
    with (
        BrokerThread(tmp_path, [queue("orders")], disk, disk_timeout_ms=60_000) as broker,
        ServiceBusClient.from_connection_string(connection_string(broker), retry_total=0) as sdk,
        sdk.get_queue_receiver("orders") as receiver,
    ):
        disk.hang("open_read", VICTIM_FOLDER)
        slow = threading.Timer(4 * LATE_S, disk.release)
        slow.start()
        seen = [message.sequence_number or 0 for message in receiver.peek_messages(max_message_count=250)]
        slow.join()
        assert [number >> PARTITION_SHIFT for number in seen] == list(range(PARTITIONS))


def test_a_read_that_hangs_holds_up_its_own_partition_alone(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    with (
        broker_on(disk, tmp_path, payload_memory_bytes=0) as broker,
        ServiceBusClient.from_connection_string(connection_string(broker)) as client,
        client.get_queue_receiver("orders") as receiver,
        client_of(broker.addresses) as sender,
    ):
        assert isinstance(broker.broker.host, LocalHost)
        broker.broker.host.payloads.reserve_bytes = 0
        send_to_each(sender)
        disk.fail("read_cached", errno.EAGAIN, times=1 << 30)  # not in the system's page cache either
        disk.hang("read", VICTIM_FOLDER)
        seen: set[int] = set()
        deadline = time.monotonic() + BACK_WITHIN_S
        while len(seen) < PARTITIONS - 1:
            assert time.monotonic() < deadline, "the other partitions give what they have"
            for message in receiver.receive_messages(max_message_count=100, max_wait_time=2):
                seen.add(message.sequence_number or 0)
                receiver.complete_message(message)
        wait_until(
            lambda: health(broker.addresses)["partitions"][VICTIM] == "recovering",
            "it counts as failed",
            BACK_WITHIN_S,
        )
        wait_until(
            lambda: scrapes.health(broker.addresses, within_s=5)["data_folders"] == ["stalls"],
            "so is the folder",
            BACK_WITHIN_S,
        )
        assert sender.send(VICTIM) == SERVER_BUSY
        assert sender.send() is None
        disk.release()
        while len(seen) < PARTITIONS + 1:
            assert time.monotonic() < deadline, "the partition is back"
            for message in receiver.receive_messages(max_message_count=100, max_wait_time=2):
                seen.add(message.sequence_number or 0)
                receiver.complete_message(message)


def test_a_request_to_remove_a_message_does_not_try_one_hanging_partition_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "DRAIN_ON_S", 0.0)
    disk = FaultyDisk(LocalDisk())
    with broker_on(disk, tmp_path) as broker, client_of(broker.addresses) as client:
        send_to_each(client)
        disk.hang("sync", "/logs/")
        url = f"{broker.addresses.http_url}/orders/messages/head?timeout=0"
        headers = {"Authorization": sas_token(broker.addresses.http_url)}
        request = urllib.request.Request(url, headers=headers, method="DELETE")
        # Symptom: it took the time-out of each partition in turn, 48 s in all.
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 204
        assert health(broker.addresses)["partitions"].count("recovering") == 1
        disk.release()
        wait_until(
            lambda: set(health(broker.addresses)["partitions"]) == {"healthy"},
            "the partition is back",
            BACK_WITHIN_S,
        )
        check_nothing_lost(broker.addresses, client.ledger)


def test_the_official_client_hears_at_once_that_the_lock_has_ended_if_the_partition_is_down(
    tmp_path: Path,
) -> None:
    """Symptom: it tried again for 11 s for each message, in vain, while the locks of others ran out."""
    disk = FaultyDisk(LocalDisk())
    with (
        broker_on(disk, tmp_path) as broker,
        ServiceBusClient.from_connection_string(connection_string(broker)) as client,
        client.get_queue_receiver("orders", max_wait_time=3) as receiver,
        client_of(broker.addresses) as raw,
    ):
        assert raw.send(VICTIM) is None
        (first,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
        disk.hang("sync", VICTIM_FOLDER)
        assert raw.send(VICTIM) == SERVER_BUSY
        for act in (receiver.complete_message, receiver.renew_message_lock):
            began = time.monotonic()
            with pytest.raises(MessageLockLostError):
                act(first)
            assert time.monotonic() - began < LOST_WITHIN_S
        disk.release()
        (again,) = receiver.receive_messages(max_message_count=1, max_wait_time=BACK_WITHIN_S)
        assert again.sequence_number == first.sequence_number
        receiver.complete_message(again)


def test_over_http_the_lock_is_lost_and_counts_as_an_error_of_the_broker_if_the_partition_is_down(
    tmp_path: Path,
) -> None:
    """Symptom: it counted as an error of the client."""
    disk = FaultyDisk(LocalDisk())
    with (
        broker_on(disk, tmp_path) as broker,
        RestClient(broker.addresses.http_port) as rest,
        client_of(broker.addresses) as raw,
    ):
        assert raw.send(VICTIM) is None
        locked = rest.receive("/orders", timeout=10)
        disk.hang("sync", VICTIM_FOLDER)
        assert raw.send(VICTIM) == SERVER_BUSY
        before = errors_of(broker)
        for method in ("DELETE", "PUT", "POST"):
            answer = rest.ask(method, locked.lock)
            assert answer.status == 404 and "retry-after" not in answer.headers
            assert b"please receive the messages again" in answer.body
        assert errors_of(broker) == (before[0], before[1] + 3)
        tokens = {"lockTokens": [locked.broker_properties["LockToken"]]}
        answer = rest.ask("POST", "/$partibus/abandon-messages/orders", json.dumps(tokens))
        assert answer.json == {"abandoned": [], "lost": tokens["lockTokens"]}
        disk.release()


def errors_of(broker: BrokerThread) -> tuple[int, int]:
    """Operations that were refused because of the client, and because of the broker."""
    text = scrapes.metrics(broker.addresses, within_s=5)
    names = ("user_errors_total", "server_errors_total")
    user, server = (scrapes.by_entity(text, name).get("orders", 0) for name in names)
    return user, server


def test_the_official_client_hears_at_once_that_the_lock_of_a_session_has_ended_with_its_partition(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(LocalDisk())
    with (
        BrokerThread(
            tmp_path, [queue("orders", RequiresSession=True)], disk, disk_timeout_ms=TIMEOUT_MS
        ) as broker,
        ServiceBusClient.from_connection_string(connection_string(broker)) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages([ServiceBusMessage(f"{number}", session_id="a") for number in range(2)])
        with client.get_queue_receiver("orders", session_id="a") as receiver:
            first, second = receiver.receive_messages(max_message_count=2, max_wait_time=10)
            receiver.defer_message(first)
            disk.hang("sync", "/logs/")
            with pytest.raises(ServiceBusError):
                sender.send_messages(ServiceBusMessage("late", session_id="a"), timeout=4)
            for act in (
                lambda: receiver.receive_deferred_messages([first.sequence_number or 0]),
                lambda: receiver.complete_message(second),
                receiver.session.renew_lock,
                receiver.session.get_state,
            ):
                began = time.monotonic()
                with pytest.raises(SessionLockLostError):
                    act()
                assert time.monotonic() - began < LOST_WITHIN_S
            disk.release()


def test_the_official_client_sends_peeks_receives_and_settles_while_a_disk_hangs(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    with (
        broker_on(disk, tmp_path, payload_memory_bytes=0) as broker,
        ServiceBusClient.from_connection_string(connection_string(broker), retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
        client.get_queue_receiver("orders", max_wait_time=3) as receiver,
        client_of(broker.addresses) as raw,
    ):
        send_to_each(raw)
        disk.hang("sync", VICTIM_FOLDER)
        assert raw.send(VICTIM) == SERVER_BUSY
        began = time.monotonic()
        sender.send_messages([ServiceBusMessage(f"{number}") for number in range(5)])
        sender.send_messages(ServiceBusMessage("alone"))
        peeked = receiver.peek_messages(max_message_count=100)
        assert len(peeked) == PARTITIONS - 1 + 6
        received = receiver.receive_messages(max_message_count=100, max_wait_time=3)
        assert received
        for each in received:
            receiver.complete_message(each)
        assert time.monotonic() - began < ANSWERED_WITHIN_S
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("keyed", partition_key=KEYS[VICTIM]))
        assert time.monotonic() - began < ANSWERED_WITHIN_S
        disk.release()
