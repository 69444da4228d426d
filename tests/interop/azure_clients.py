"""The official Python client, sync and aio, behind one interface, so that one list of scenarios serves both.

Each call of the sync client runs unchanged in a thread; nothing here adds to or repairs what a client does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from azure.servicebus import ServiceBusClient as SyncServiceBusClient
from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus import ServiceBusReceiver as InnerReceiver
from azure.servicebus import ServiceBusSender as InnerSender
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient

P = ParamSpec("P")
T = TypeVar("T")
CLOSES_WITHIN_S = 15


class Sender(Protocol):
    """The methods of a sender that the scenarios use."""

    async def send_messages(self, message: Any) -> None: ...
    async def create_message_batch(self) -> ServiceBusMessageBatch: ...
    async def schedule_messages(self, messages: Any, schedule_time_utc: datetime) -> list[int]: ...
    async def cancel_scheduled_messages(self, sequence_numbers: Any) -> None: ...


class Receiver(Protocol):
    """The methods of a receiver that the scenarios use. Times are in seconds."""

    async def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]: ...
    async def receive_deferred_messages(
        self, sequence_numbers: list[int]
    ) -> list[ServiceBusReceivedMessage]: ...
    async def peek_messages(
        self, max_message_count: int = 1, *, sequence_number: int = 0
    ) -> list[ServiceBusReceivedMessage]: ...
    async def complete_message(self, message: ServiceBusReceivedMessage) -> None: ...
    async def abandon_message(self, message: ServiceBusReceivedMessage) -> None: ...
    async def defer_message(self, message: ServiceBusReceivedMessage) -> None: ...
    async def dead_letter_message(
        self,
        message: ServiceBusReceivedMessage,
        reason: str | None = None,
        error_description: str | None = None,
    ) -> None: ...
    async def renew_message_lock(self, message: ServiceBusReceivedMessage) -> Any: ...


class Client(Protocol):
    """A client whose senders and receivers live until it is closed."""

    async def __aenter__(self) -> Client: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    async def sender(self, queue: str) -> Sender: ...
    async def receiver(self, queue: str, **options: Any) -> Receiver: ...
    async def close_receivers(self) -> None: ...


class AioClient:
    """`azure.servicebus.aio`."""

    def __init__(self, connection_string: str, **options: Any) -> None:
        self._client = AioServiceBusClient.from_connection_string(connection_string, **options)
        self._senders, self._receivers = AsyncExitStack(), AsyncExitStack()

    async def sender(self, queue: str) -> Sender:
        return await self._senders.enter_async_context(self._client.get_queue_sender(queue))

    async def receiver(self, queue: str, **options: Any) -> Receiver:
        return await self._receivers.enter_async_context(self._client.get_queue_receiver(queue, **options))

    async def close_receivers(self) -> None:
        await self._receivers.aclose()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with asyncio.timeout(CLOSES_WITHIN_S):
            await self._receivers.aclose()
            await self._senders.aclose()
            await self._client.close()


class SyncClient:
    """`azure.servicebus`, each call in a thread."""

    def __init__(self, connection_string: str, **options: Any) -> None:
        self._client = SyncServiceBusClient.from_connection_string(connection_string, **options)
        self._senders: list[InnerSender] = []
        self._receivers: list[InnerReceiver] = []

    async def sender(self, queue: str) -> Sender:
        inner = self._client.get_queue_sender(queue)
        self._senders.append(inner)
        await call(inner.__enter__)
        return SyncSender(inner)

    async def receiver(self, queue: str, **options: Any) -> Receiver:
        inner = self._client.get_queue_receiver(queue, **options)
        self._receivers.append(inner)
        await call(inner.__enter__)
        return SyncReceiver(inner)

    async def close_receivers(self) -> None:
        while self._receivers:
            await call(self._receivers.pop().close)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with asyncio.timeout(CLOSES_WITHIN_S):
            await self.close_receivers()
            while self._senders:
                await call(self._senders.pop().close)
            await call(self._client.close)


class SyncSender:
    """A sync sender with the interface of an aio one."""

    def __init__(self, inner: InnerSender) -> None:
        self._inner = inner

    async def send_messages(self, message: Any) -> None:
        await call(self._inner.send_messages, message)

    async def create_message_batch(self) -> ServiceBusMessageBatch:
        return await call(self._inner.create_message_batch)

    async def schedule_messages(self, messages: Any, schedule_time_utc: datetime) -> list[int]:
        return await call(self._inner.schedule_messages, messages, schedule_time_utc)

    async def cancel_scheduled_messages(self, sequence_numbers: Any) -> None:
        await call(self._inner.cancel_scheduled_messages, sequence_numbers)


class SyncReceiver:
    """A sync receiver with the interface of an aio one."""

    def __init__(self, inner: InnerReceiver) -> None:
        self._inner = inner

    async def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        return await call(self._inner.receive_messages, max_message_count, max_wait_time)

    async def receive_deferred_messages(self, sequence_numbers: list[int]) -> list[ServiceBusReceivedMessage]:
        return await call(self._inner.receive_deferred_messages, sequence_numbers)

    async def peek_messages(
        self, max_message_count: int = 1, *, sequence_number: int = 0
    ) -> list[ServiceBusReceivedMessage]:
        return await call(self._inner.peek_messages, max_message_count, sequence_number=sequence_number)

    async def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        await call(self._inner.complete_message, message)

    async def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        await call(self._inner.abandon_message, message)

    async def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        await call(self._inner.defer_message, message)

    async def dead_letter_message(
        self,
        message: ServiceBusReceivedMessage,
        reason: str | None = None,
        error_description: str | None = None,
    ) -> None:
        await call(self._inner.dead_letter_message, message, reason, error_description)

    async def renew_message_lock(self, message: ServiceBusReceivedMessage) -> Any:
        return await call(self._inner.renew_message_lock, message)


async def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking client call in a daemon thread, so that a call that never returns does not keep the
    tests from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(deliver: Callable[[Any], None], outcome: Any) -> None:
        if not done.done():
            deliver(outcome)

    def work() -> None:
        try:
            deliver, outcome = done.set_result, function(*args, **kwargs)
        except Exception as error:
            deliver, outcome = done.set_exception, error  # type: ignore[assignment]
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, deliver, outcome)

    threading.Thread(target=work, name=f"client-{function.__name__}", daemon=True).start()
    return await done


def connect(client: str, connection_string: str, **options: Any) -> Client:
    """The client of that name: the aio client for "python-aio", otherwise the sync one. `options` are passed
    to the client.
    """
    return (
        AioClient(connection_string, **options)
        if client == "python-aio"
        else SyncClient(connection_string, **options)
    )


async def receive_exactly(
    receiver: Receiver, count: int, within_s: float = 10.0
) -> list[ServiceBusReceivedMessage]:
    """Receive until there are `count` messages. Fails if they do not arrive in time, or if more arrive than
    requested.
    """
    found: list[ServiceBusReceivedMessage] = []
    deadline = asyncio.get_running_loop().time() + within_s
    while len(found) < count and asyncio.get_running_loop().time() < deadline:
        found += await receiver.receive_messages(max_message_count=count - len(found), max_wait_time=1)
    assert len(found) == count, (
        f"received {len(found)} of {count} messages within {within_s} s: {bodies(found)}"
    )
    return found


async def assert_empty(receiver: Receiver) -> None:
    """Assert that nothing arrives within half a second."""
    left = await receiver.receive_messages(max_message_count=10, max_wait_time=0.5)
    assert left == [], f"unexpected messages: {bodies(left)}"


def body(message: ServiceBusReceivedMessage) -> bytes:
    """All data sections of a message, joined."""
    return b"".join(message.body)


def bodies(messages: Sequence[ServiceBusReceivedMessage]) -> list[bytes]:
    return [body(message) for message in messages]
