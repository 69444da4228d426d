"""Clients that receive from very many empty queues, at a broker above its memory mark: each partition that is
open takes memory, and nobody needs these."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusServerBusyError

from broker.hosting.local import PARTITION_BYTES
from storage.disk import LocalDisk
from tests.crash.test_broker_disk_faults import wait_until
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message
from tests.support.amqp_sessions import session_attach
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.http_entries import value
from tests.support.rest_client import RestClient

WITHIN_S = 60.0
QUEUES = [queue(f"q{number}", PartitionCount=4) for number in range(20)]
FULL = "q0"
MESSAGES = 12


def open_partitions(broker: BrokerThread) -> int:
    """How many partitions have their log and their state in memory."""
    return [task.health for task in list(broker.broker.host._tasks)].count("healthy")  # type: ignore[attr-defined]


def scarce(broker: BrokerThread) -> bool:
    """Whether the broker has noticed that it is above its mark."""
    return broker.broker._resting.is_memory_scarce


def fill(broker: BrokerThread, name: str = FULL) -> None:
    """Send the messages to a queue."""
    with raw.opened(broker.addresses.amqp_port) as client:
        client.attach_sender(0, name)
        for number in range(MESSAGES):
            client.send_frame(raw.TRANSFER, raw.transfer_fields(0, number), message())
        client.read_dispositions(MESSAGES, WITHIN_S)


def test_above_the_memory_mark_receivers_open_no_empty_partitions_and_get_what_there_is(
    tmp_path: Path,
) -> None:
    with BrokerThread(tmp_path, QUEUES, LocalDisk()) as broker:
        fill(broker)
    with (
        BrokerThread(tmp_path, QUEUES, LocalDisk(), memory_bytes_max=1 << 20) as broker,
        raw.opened(broker.addresses.amqp_port) as waiting,
        raw.opened(broker.addresses.amqp_port) as draining,
    ):
        wait_until(lambda: scarce(broker), "memory is scarce", WITHIN_S)
        for handle, each in enumerate(QUEUES[1:]):
            waiting.attach_receiver(handle, str(each["Name"]))
            waiting.send_frame(raw.FLOW, raw.flow_fields(handle, 0, 10))
            draining.attach_receiver(handle, str(each["Name"]))
            draining.send_frame(raw.FLOW, raw.flow_fields(handle, 0, 10, drain=True))
            draining.read_until(raw.FLOW, within_s=WITHIN_S)
        assert open_partitions(broker) == 0
        draining.attach_receiver(99, FULL, settled=True)
        draining.send_frame(raw.FLOW, raw.flow_fields(99, 0, 2 * MESSAGES))
        for _ in range(MESSAGES):
            draining.read_until(raw.TRANSFER, within_s=WITHIN_S)
        assert 0 < open_partitions(broker) <= 4

        broker.loop.call_soon_threadsafe(setattr, broker.broker.memory, "mark", 1 << 40)
        wait_until(lambda: open_partitions(broker) == 4 * len(QUEUES), "those who wait are served", WITHIN_S)


def test_above_the_memory_mark_a_receiver_opens_one_partition_with_messages_after_the_other(
    tmp_path: Path,
) -> None:
    """Symptom: after a restart, receivers of queues that held more than fits into memory had all partitions
    opened at once, and the kernel ended the broker."""
    with BrokerThread(tmp_path, QUEUES, LocalDisk()) as broker:
        fill(broker)
    with (
        BrokerThread(tmp_path, QUEUES, LocalDisk(), memory_bytes_max=1 << 20) as broker,
        raw.opened(broker.addresses.amqp_port) as client,
    ):
        wait_until(lambda: scarce(broker), "memory is scarce", WITHIN_S)
        client.attach_receiver(0, FULL, settled=True)
        client.send_frame(raw.FLOW, raw.flow_fields(0, 0, 1))
        client.read_until(raw.TRANSFER, within_s=WITHIN_S)
        assert open_partitions(broker) == 1
        client.send_frame(raw.FLOW, raw.flow_fields(0, 1, MESSAGES))
        for _ in range(MESSAGES - 1):
            client.read_until(raw.TRANSFER, within_s=WITHIN_S)


def test_above_the_memory_mark_sessions_and_counts_open_no_partitions(tmp_path: Path) -> None:
    queues = [*QUEUES, queue("sessions", PartitionCount=4, RequiresSession=True)]
    with BrokerThread(tmp_path, queues, LocalDisk()) as broker:
        fill(broker)
    with (
        BrokerThread(tmp_path, queues, LocalDisk(), memory_bytes_max=1 << 20) as broker,
        RestClient(broker.addresses.http_port) as rest,
        raw.opened(broker.addresses.amqp_port) as client,
    ):
        wait_until(lambda: scarce(broker), "memory is scarce", WITHIN_S)
        counted = rest.ask("GET", f"/{FULL}?api-version=2021-05")
        assert counted.status == 200 and value(counted.body.decode(), "MessageCount") == str(MESSAGES)
        for handle in (0, 1):
            refused = client.attach(session_attach(handle, "sessions", f"session-{handle}"))
            assert raw.condition_of(refused) == "com.microsoft:server-busy"
        assert open_partitions(broker) == 0

        broker.loop.call_soon_threadsafe(setattr, broker.broker.memory, "mark", 1 << 40)
        wait_until(lambda: not scarce(broker), "memory is there again", WITHIN_S)
        assert client.attach(session_attach(2, "sessions", "session-2")).code == raw.ATTACH
        assert open_partitions(broker) == 1


def test_above_the_memory_mark_peeks_bring_back_few_partitions_at_a_time(tmp_path: Path) -> None:
    """Symptom: after a restart, peeks at queues that held more than fits into memory had all partitions
    opened at once, and the kernel could end the broker."""
    names = [str(each["Name"]) for each in QUEUES]
    with BrokerThread(tmp_path, QUEUES, LocalDisk()) as broker:
        for name in names:
            fill(broker, name)
    with (
        BrokerThread(tmp_path, QUEUES, LocalDisk()) as broker,
        ServiceBusClient.from_connection_string(
            broker.addresses.connection_string(), retry_total=1
        ) as client,
        ThreadPoolExecutor(len(names)) as threads,
    ):
        memory = broker.broker.memory
        broker.loop.call_soon_threadsafe(setattr, memory, "mark", memory.used - (8 << 20))
        wait_until(lambda: scarce(broker), "memory is scarce", WITHIN_S)
        most = 0

        def peek(name: str) -> int:
            nonlocal most
            try:
                with client.get_queue_receiver(name) as receiver:
                    return len(receiver.peek_messages(max_message_count=MESSAGES, timeout=WITHIN_S))
            except ServiceBusServerBusyError:  # the client has tried several times
                return 0
            finally:
                most = max(most, open_partitions(broker))

        peeked = list(threads.map(peek, names))
        assert most <= len(names), f"{most} of {4 * len(names)} partitions were open"
        assert sum(peeked) > 0, peeked

        broker.loop.call_soon_threadsafe(setattr, memory, "mark", 1 << 40)
        wait_until(lambda: not scarce(broker), "memory is there again", WITHIN_S)
        wait_until(lambda: {*map(peek, names)} == {MESSAGES}, "everything is shown", WITHIN_S)


def test_above_the_memory_mark_unused_partitions_are_closed_within_seconds(tmp_path: Path) -> None:
    with (
        BrokerThread(tmp_path, QUEUES, LocalDisk()) as broker,
        raw.opened(broker.addresses.amqp_port) as client,
    ):
        for each in QUEUES:
            client.attach_receiver(0, str(each["Name"]))
            client.send_frame(raw.FLOW, raw.flow_fields(0, 0, 1, drain=True))
            client.read_until(raw.FLOW, within_s=WITHIN_S)
            client.send_frame(raw.DETACH, raw.detach_fields(0))
            client.read_until(raw.DETACH, within_s=WITHIN_S)
        client.attach_receiver(0, FULL)
        client.send_frame(raw.FLOW, raw.flow_fields(0, 0, 1))
        assert open_partitions(broker) == 4 * len(QUEUES)
        before = broker.broker.host.waiting_bytes
        broker.loop.call_soon_threadsafe(setattr, broker.broker.memory, "mark", 1 << 20)
        wait_until(lambda: open_partitions(broker) == 4, "only those with a client are open", WITHIN_S)
        closed = 4 * len(QUEUES) - 4
        assert before - broker.broker.host.waiting_bytes >= closed * PARTITION_BYTES, "what is free again"


def test_above_the_memory_mark_partitions_with_messages_are_closed_that_somebody_has_only_looked_at(
    tmp_path: Path,
) -> None:
    with BrokerThread(tmp_path, QUEUES, LocalDisk()) as broker:
        fill(broker)
    with BrokerThread(tmp_path, QUEUES, LocalDisk()) as broker:
        for number in range(4):
            opening = broker.queue(FULL).wake(number)
            asyncio.run_coroutine_threadsafe(opening, broker.loop).result(WITHIN_S)
        assert open_partitions(broker) == 4
        broker.loop.call_soon_threadsafe(setattr, broker.broker.memory, "mark", 1 << 20)
        wait_until(lambda: open_partitions(broker) == 0, "nobody uses them", WITHIN_S)
        assert broker.messages_of(FULL) == MESSAGES
        with raw.opened(broker.addresses.amqp_port) as client:
            client.attach_receiver(0, FULL, settled=True)
            client.send_frame(raw.FLOW, raw.flow_fields(0, 0, MESSAGES))
            for _ in range(MESSAGES):
                client.read_until(raw.TRANSFER, within_s=WITHIN_S)


def test_above_the_memory_mark_a_crashed_broker_finds_out_what_each_partition_holds(tmp_path: Path) -> None:
    """Symptom: 96 of 128 partitions that were in use at a crash stayed unknown while memory was scarce."""
    with BrokerThread(tmp_path / "crashed", QUEUES, LocalDisk()) as broker:
        fill(broker)
        shutil.copytree(tmp_path / "crashed", tmp_path / "copy")  # as a crash would leave it
    with BrokerThread(tmp_path / "copy", QUEUES, LocalDisk(), memory_bytes_max=1 << 20) as broker:
        resting = broker.broker._resting
        wait_until(lambda: not resting.unknown_count, "all are known", WITHIN_S)
        assert scarce(broker) and broker.messages_of(FULL) == MESSAGES
        wait_until(lambda: open_partitions(broker) == 0, "nobody uses them", WITHIN_S)
