"""The official Python client with one receiver that several threads, or tasks, use at once.

The threads share the counter of the receiver's delivery-ids without a lock, so ids repeat or arrive out of
order (AMQP contract 4.3). The broker still answers every request, on the one connection that the receiver
opened.

The client itself occasionally loses a response: it records a request only after sending it, and drops the
response if another thread has read it by then (azure-servicebus 7.15.0, `ManagementLink.execute_operation`;
about one in 5,000 on a busy machine). For the client such a request never ends. The tests detect and count
these cases without failing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.servicebus import AutoLockRenewer, ServiceBusClient, ServiceBusMessage
from azure.servicebus._pyamqp.aio._management_link_async import ManagementLink as AioManagementLink
from azure.servicebus._pyamqp.management_link import ManagementLink
from azure.servicebus.aio import AutoLockRenewer as AioAutoLockRenewer
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient
from azure.servicebus.exceptions import OperationTimeoutError

from tests.interop.scenarios import CONCURRENT, LOCK_RENEWED_S
from tests.support.broker_process import BrokerProcess

THREADS, ROUNDS = 8, 50
MESSAGES = 12
ANSWERED_WITHIN_S = 10
WITHIN_S = 60


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(
        broker.addresses.connection_string(), retry_total=0
    ) as connected:
        yield connected


@pytest.fixture(autouse=True)
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Responses that the client has read and dropped. The test only observes this."""
    found: list[object] = []

    def unknown(link: Any, message: Any) -> bool:
        return all(
            pending.message.properties.message_id != message.properties[5]
            for pending in list(link._pending_operations)
        )

    def watch(link: Any, frame: Any, message: Any) -> None:
        if unknown(link, message):
            found.append(message)
        of_threads(link, frame, message)

    async def watch_aio(link: Any, frame: Any, message: Any) -> None:
        if unknown(link, message):
            found.append(message)
        await of_tasks(link, frame, message)

    of_threads: Any = ManagementLink._on_message_received
    of_tasks: Any = AioManagementLink._on_message_received
    monkeypatch.setattr(ManagementLink, "_on_message_received", watch)
    monkeypatch.setattr(AioManagementLink, "_on_message_received", watch_aio)
    return found


@pytest.fixture(autouse=True)
def no_connection_is_broken(broker: BrokerProcess) -> Iterator[None]:
    """Check that the broker closed none of the client's connections with an error, and logged no error about
    how they were closed.
    """
    before = len(broker.log.splitlines())
    yield
    assert [
        line
        for line in broker.log.splitlines()[before:]
        if "connection.closed" in line or '"level": "error"' in line
    ] == []


def send(client: ServiceBusClient, queue: str, count: int) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(f"message {number}") for number in range(count)])


def ask(request: Callable[..., Any]) -> Any:
    """Make a request, and repeat it after a time-out. Raises OperationTimeoutError after three time-outs."""
    for _ in range(2):
        try:
            return request(timeout=ANSWERED_WITHIN_S)
        except OperationTimeoutError:
            continue
    return request(timeout=ANSWERED_WITHIN_S)


def together(work: Callable[[int], Any]) -> list[Any]:
    """Do the work in all threads, which start at the same time; raises any exception of theirs."""
    start = threading.Barrier(THREADS)

    def run(number: int) -> Any:
        start.wait(WITHIN_S)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return [each.result(WITHIN_S) for each in [pool.submit(run, number) for number in range(THREADS)]]


def received(receiver: Any, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + WITHIN_S
    while len(found) < count and time.monotonic() < deadline:
        found += receiver.receive_messages(count - len(found), max_wait_time=5)
    assert len(found) == count
    return found


def test_threads_peek_with_one_receiver(client: ServiceBusClient, dropped: list[object]) -> None:
    """Eight threads peek 50 times each, and each of the 400 requests gets the right answer."""
    queue, waited = CONCURRENT["peek"], []
    send(client, queue, 20)
    with client.get_queue_receiver(queue) as receiver:

        def peek(_: int) -> None:
            for _ in range(ROUNDS):
                try:
                    assert len(receiver.peek_messages(5, sequence_number=1, timeout=ANSWERED_WITHIN_S)) == 5
                except OperationTimeoutError as error:
                    waited.append(error)

        together(peek)
    assert len(waited) <= len(dropped)


def test_threads_renew_and_settle_with_one_receiver(client: ServiceBusClient) -> None:
    """Lock renewals and settlements share one AMQP session, and each finds its own message."""
    queue = CONCURRENT["renew-and-settle"]
    send(client, queue, THREADS)
    with client.get_queue_receiver(queue, prefetch_count=0) as receiver:
        messages = received(receiver, THREADS)

        def work(number: int) -> None:
            for _ in range(10):
                ask(lambda **options: receiver.renew_message_lock(messages[number], **options))
            receiver.complete_message(messages[number])

        together(work)
        assert receiver.peek_messages(10, sequence_number=1) == []


def test_the_lock_renewer_keeps_many_locks_with_one_receiver(
    client: ServiceBusClient, dropped: list[object]
) -> None:
    """Twelve locks are renewed again and again for longer than a lock lasts; none is lost, and each message
    can be completed.
    """
    queue = CONCURRENT["renewer"]
    failures: list[object] = []
    send(client, queue, MESSAGES)
    renewer = AutoLockRenewer(
        max_lock_renewal_duration=WITHIN_S,
        max_workers=MESSAGES,
        on_lock_renew_failure=lambda message, error: failures.append(error),
    )
    with client.get_queue_receiver(queue, prefetch_count=0) as receiver:
        messages = received(receiver, MESSAGES)
        for message in messages:
            renewer.register(receiver, message)
        time.sleep(LOCK_RENEWED_S + 4)
        lost = [message for message in messages if message._lock_expired]
        assert len(failures) <= len(dropped) and len(lost) <= len(dropped)
        for message in messages:
            if message not in lost:
                receiver.complete_message(message)
        assert len(receiver.peek_messages(MESSAGES, sequence_number=1)) == len(lost)
    renewer.close(wait=False)


async def test_tasks_use_one_receiver_of_the_aio_client(broker: BrokerProcess, dropped: list[object]) -> None:
    """Tasks peek while the renewer keeps twelve locks, all on one receiver."""
    queue = CONCURRENT["aio"]
    failures: list[object] = []

    async def failed(message: Any, error: Exception | None) -> None:
        failures.append(error)

    async with (
        asyncio.timeout(2 * WITHIN_S),
        AioServiceBusClient.from_connection_string(
            broker.addresses.connection_string(), retry_total=0
        ) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue, prefetch_count=0) as receiver,
        AioAutoLockRenewer(max_lock_renewal_duration=WITHIN_S, on_lock_renew_failure=failed) as renewer,
    ):
        await sender.send_messages([ServiceBusMessage(f"message {number}") for number in range(MESSAGES)])
        messages: list[Any] = []
        while len(messages) < MESSAGES:
            messages += await receiver.receive_messages(MESSAGES - len(messages), max_wait_time=5)
        for message in messages:
            renewer.register(receiver, message)

        async def peek() -> None:
            for _ in range(ROUNDS):
                try:
                    assert (
                        len(await receiver.peek_messages(5, sequence_number=1, timeout=ANSWERED_WITHIN_S))
                        == 5
                    )
                except OperationTimeoutError as error:
                    failures.append(error)

        await asyncio.gather(*(peek() for _ in range(THREADS)))
        await asyncio.sleep(LOCK_RENEWED_S + 2)
        lost = [message for message in messages if message._lock_expired]
        assert len(failures) <= len(dropped) and len(lost) <= len(dropped)
        for message in messages:
            if message not in lost:
                await receiver.complete_message(message)
