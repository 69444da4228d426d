"""Partitions in another process: the broker's side.

The broker starts the process with one end of a socket pair, and everything passes through it (`messages.py`,
`schema.py`). For each partition the broker keeps the last report: whether it is available, its health, its
counts. A cookie never leaves the broker: a number is sent instead, and replaced by the cookie when the answer
comes back. The number also leads to the sink, so that a client without demand, a watch or a session needs no
entry of its own, and need not say that it is gone.

If the process ends, the broker stops, because no other process may open the logs until they are known to be
free. If the broker ends, the process ends too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from itertools import count

import structlog

from broker.base.errors import Reason
from broker.entities.descriptions import EntityDescription
from broker.entities.roles import SubqueueTable
from broker.hosting import messages
from broker.hosting.channel import Channel
from broker.hosting.errors import error_of
from broker.hosting.host import HostSettings
from broker.hosting.schema import decode_to_broker, encode
from broker.identifiers import ClientId
from broker.operations.browsing import Watch
from broker.operations.general import Failed, Unavailable, Update
from broker.operations.interface import Answer, Operation, Sink, refusal_of
from broker.operations.message_states import SubqueueCounts
from broker.operations.needed_locks import refusal_while_down
from broker.operations.receiving import Demand, Withdraw
from broker.operations.selecting import WatchReturned
from broker.operations.sending import Send
from broker.operations.sessions import AcceptSession, WatchSessions
from broker.partition.meter import PartitionMeter
from broker.partition.rest import Register
from broker.partition.summary import decode as decode_summary
from broker.partition.summary import named
from broker.settings.settings import LogFormat, LogLevel
from storage.errors import StorageError
from storage.file_store import FolderState
from storage.threads import OwnerFailed
from storage.workers import Workers

log = structlog.get_logger("partitions")

ENDS_WITHIN_S = 10.0
"""How long the process may take to end once all its logs are closed."""
ROOM_CHANGE_BYTES = 4 * 1024 * 1024
TOLD_AFTER_LOOKS = 8
"""How much the room for memory changes before the process is told, or how often it is looked at. The process
deducts what it opens, and only learns from the broker what of that has become free again."""
_ANSWERED_WITHOUT_COOKIE = (Demand, Withdraw, Watch, AcceptSession, WatchSessions, WatchReturned)
"""Operations after which a client may get answers without a cookie, until it detaches."""


class ProcessEnded(Exception):
    """The process that runs the partitions ended without being asked to."""


class RemotePartition:
    """One partition in the other process. See `broker.hosting.host.HostedPartition`."""

    awaits_more = False

    def __init__(
        self,
        host: RemoteHost,
        partition: int,
        number: int,
        subqueues: SubqueueTable,
        register: Register,
    ) -> None:
        """`subqueues` are the entity's."""
        self.available = True
        self.number = number
        self.register = register
        self.subqueues = subqueues
        self._host, self._partition = host, partition
        self._health = "closed"
        summary = register.summary()
        self._counts = named(summary.counts, subqueues) if summary is not None else {}
        self._size = sum([each.bytes for each in self._counts.values()])
        self._sinks: dict[ClientId, Sink] = {}
        self._stopped: asyncio.Task[None] | None = None

    @property
    def health(self) -> str:
        return self._health

    def counts(self, only: str | None = None) -> dict[str, SubqueueCounts]:
        return self._counts

    def size(self) -> int:
        return self._size

    def join(self, more: Send, client: ClientId, cookie: object) -> bool:
        return False

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        if self._host.has_ended or self._health == "gone":
            reason, _ = refusal_while_down(operation)
            answer = refusal_of(operation, self.number, reason, "The partition has stopped.")
            if answer is not None:
                asyncio.get_running_loop().call_soon(sink, answer)
            return
        if isinstance(operation, _ANSWERED_WITHOUT_COOKIE):
            self._sinks[client] = sink
        elif isinstance(operation, Update):
            self.subqueues = operation.description.subqueues
        self._host.send(messages.Post(self._partition, client, self._host.keep_cookie(operation, sink)))

    async def opened(self) -> None:
        if self._host.has_ended or self._health == "gone":  # the process may have forgotten the partition
            return
        with contextlib.suppress(StorageError):
            await self._host.ask(lambda request: messages.OpenPartition(request, self._partition))

    async def stop(self, *, is_deleted: bool = False) -> None:
        if self._stopped is None or is_deleted:
            self._stopped = asyncio.ensure_future(self._stop(is_deleted))
        await asyncio.shield(self._stopped)

    async def _stop(self, is_deleted: bool) -> None:
        if self._health == "gone":
            return
        await self._host.ask(lambda request: messages.StopPartition(request, self._partition, is_deleted))
        self.available, self._health = False, "gone"
        self._host.forget(self._partition)

    # --- from the partition ---------------------------------------------------------------------------------

    def answered(self, client: ClientId, answer: Answer) -> None:
        """An answer without a cookie has arrived for a client."""
        sink = self._sinks.get(client)
        if sink is not None:
            sink(answer)

    def detached(self, client: ClientId) -> None:
        """The client gets no more answers."""
        self._sinks.pop(client, None)

    def ended(self) -> None:
        """The process has ended: tell every client that may still be waiting."""
        self.available = False
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink(Unavailable(self.number, for_good=True))

    def heard(self, status: messages.Status) -> None:
        """The partition has reported a change."""
        self._health, self.available, self._size = status.health, status.available, status.size
        if status.is_whole:
            self._counts = status.counts
        else:
            self._counts |= status.counts


class RemoteHost:
    """See `broker.hosting.host.PartitionHost`. Owned by the event loop."""

    def __init__(
        self,
        settings: HostSettings,
        *,
        log_format: LogFormat | None,
        log_level: LogLevel,
        failed: OwnerFailed,
    ) -> None:
        """`failed` is called if the process ends unasked or one of its background tasks dies."""
        self._configure = messages.Configure(settings, log_format, log_level)
        self._failed = failed
        self.catalogue_pool: Executor = Workers(1, "storage-catalogue")
        self.index_pools: Sequence[Executor] = [Workers(1, "storage-index") for _ in settings.folders]
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None
        self._ready: asyncio.Future[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self.has_ended = False
        self._is_closing = False
        self._numbers = count(1)
        self._partitions: dict[int, tuple[RemotePartition, PartitionMeter]] = {}
        self._cookies: dict[int, tuple[Sink, object]] = {}
        """The sink and the cookie behind each number that was sent and has not come back."""
        self._requests: dict[int, asyncio.Future[messages.Done]] = {}
        self._entering: set[asyncio.Task[None]] = set()
        self._memory = messages.MemoryUsed(0, 0, 0)
        self._room_told: messages.MemoryRoom | None = None
        self._looks = 0
        """How often the room was looked at since it was told."""
        self._folder_states: list[str] = [FolderState.OK for _ in settings.folders]

    async def open(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "broker.hosting.process",
                str(theirs.fileno()),
                str(os.getpid()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
            )
        self._channel = await Channel.of(ours)
        self._ready = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())
        self.send(self._configure)
        await self._ready
        log.info("partitions.process", pid=self._process.pid)

    # --- to the process -------------------------------------------------------------------------------------

    def send(self, message: messages.ToPartitions) -> None:
        """Send a message, unless the process has ended."""
        if self._channel is not None and not self.has_ended:
            self._channel.send(encode(message))

    async def ask(self, make: Callable[[int], messages.ToPartitions]) -> messages.Done:
        """Send a request and wait for its answer. Raises StorageError."""
        request = next(self._numbers)
        future: asyncio.Future[messages.Done] = asyncio.get_running_loop().create_future()
        if self.has_ended:
            raise StorageError("The process that runs the partitions has ended.")
        self._requests[request] = future
        self.send(make(request))
        try:
            done = await future
        finally:
            self._requests.pop(request, None)
        if done.error is not None:
            raise error_of(done.error, done.message)
        return done

    def keep_cookie(self, operation: Operation, sink: Sink) -> Operation:
        """The operation with a number in place of its cookie; `sink` gets the answer with it. An operation
        without a cookie is returned as it is; one with a cookie is answered exactly once."""
        if not hasattr(operation, "cookie"):
            return operation
        number = next(self._numbers)
        self._cookies[number] = sink, operation.cookie
        sent = copy(operation)
        sent.cookie = number
        return sent

    def _answered(self, message: messages.Answered) -> None:
        answer = message.answer
        number = getattr(answer, "cookie", None)
        if isinstance(number, int):
            sink, answer.cookie = self._cookies.pop(number)  # type: ignore[union-attr]
            sink(answer)
        elif (found := self._partitions.get(message.partition)) is not None:
            found[0].answered(message.client, answer)

    def start(
        self, description: EntityDescription, number: int, meter: PartitionMeter, register: Register
    ) -> RemotePartition:
        partition = next(self._numbers)
        made = RemotePartition(self, partition, number, description.subqueues, register)
        self._partitions[partition] = made, meter
        summary = register.summary()
        note = None if summary is None else summary.encode()
        self.send(messages.Start(partition, number, description, note, register.expected_bytes()))
        return made

    def forget(self, partition: int) -> None:
        """The partition has stopped; nothing more is posted to it."""
        self._partitions.pop(partition, None)
        self.send(messages.Forget(partition))

    async def entities(self) -> list[str]:
        return sorted((await self.ask(messages.ListEntities)).found)

    async def partitions(self, entity: str) -> list[int]:
        done = await self.ask(lambda request: messages.ListPartitions(request, entity))
        return done.found[entity]

    async def missing(self) -> dict[str, list[int]]:
        return (await self.ask(messages.ListMissing)).found

    async def is_without_logs(self, entity: str) -> bool:
        return not (await self.ask(lambda request: messages.FindLogs(request, entity))).found

    def keep_room(self, entity: str, needs: Mapping[int, tuple[int, int]], folder: int = 0) -> None:
        self.send(messages.KeepRoom(entity, dict(needs), folder))

    async def delete(self, entity: str) -> None:
        await self.ask(lambda request: messages.DeleteLogs(request, entity))

    def wake(self) -> None:
        self.send(messages.LookAtClock())

    def set_scarce(self, is_scarce: bool) -> None:
        self.send(messages.MemoryScarce(is_scarce))

    def set_memory_room(self, size: int, used: int, mark: int) -> None:
        told, self._looks = self._room_told, self._looks + 1
        if (
            told is None
            or self._looks >= TOLD_AFTER_LOOKS
            or max(abs(size - told.size), abs(used - told.used)) >= ROOM_CHANGE_BYTES
        ):
            self._room_told, self._looks = messages.MemoryRoom(size, used, mark), 0
            self.send(self._room_told)

    def folder_states(self) -> Sequence[str]:
        return self._folder_states

    @property
    def waiting_bytes(self) -> int:
        return self._memory.waiting

    @property
    def opening_bytes(self) -> int:
        return self._memory.opening

    @property
    def resident_bytes(self) -> int:
        return self._memory.resident

    async def close(self) -> None:
        self._is_closing = True
        if self._channel is not None and self._process is not None:
            with contextlib.suppress(StorageError):
                await self.ask(messages.Close)
            await self._channel.close()
            try:
                await asyncio.wait_for(self._process.wait(), ENDS_WITHIN_S)
            except TimeoutError:
                log.error("partitions.process_stays", pid=self._process.pid)
                self._process.kill()
                await self._process.wait()
            if self._reading is not None:
                await self._reading
        for executor in (self.catalogue_pool, *self.index_pools):
            executor.shutdown(wait=False)

    # --- from the process -----------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Handle the process's messages until it ends."""
        assert self._channel is not None and self._ready is not None
        error: BaseException = ProcessEnded("The process that runs the partitions has ended.")
        try:
            async for body in self._channel.bodies():
                self._hear(decode_to_broker(body))
        except Exception as found:  # an unreadable message or a bug: the broker cannot go on
            error = found
        self.has_ended = True
        if not self._ready.done():
            self._ready.set_exception(error)
        for future in self._requests.values():
            if not future.done():
                future.set_exception(StorageError(str(error)))
        cookies, self._cookies = self._cookies, {}
        for sink, cookie in cookies.values():
            sink(Failed(Reason.PARTITION_UNAVAILABLE, "The broker is stopping.", cookie))
        for partition, _ in self._partitions.values():
            partition.ended()
        if not self._is_closing:
            self._failed("partitions", error)

    def _hear(self, message: messages.ToBroker) -> None:
        match message:
            case messages.Answered():
                self._answered(message)
            case messages.Status():
                if (found := self._partitions.get(message.partition)) is not None:
                    found[0].heard(message)
            case messages.Counted():
                if (found := self._partitions.get(message.partition)) is not None:
                    _count(found[1], message)
            case messages.Detached():
                if (found := self._partitions.get(message.partition)) is not None:
                    found[0].detached(message.client)
            case messages.Done():
                if (future := self._requests.get(message.request)) is not None and not future.done():
                    future.set_result(message)
            case messages.IndexOpening():
                self._enter(message)
            case messages.IndexClosed():
                if (found := self._partitions.get(message.partition)) is not None:
                    summary = decode_summary(message.summary, found[0].subqueues.end)
                    assert summary is not None, "both ends are of one release"
                    found[0].register.closed(summary)
            case messages.MemoryUsed():
                self._memory = message
            case messages.FolderStates():
                self._folder_states = message.states
            case messages.PartFailed():
                self._failed(message.name, ProcessEnded(message.error))
            case messages.Ready():
                assert self._ready is not None
                self._ready.set_result(None)

    def _enter(self, message: messages.IndexOpening) -> None:
        task = asyncio.create_task(self._enter_opening(message))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _enter_opening(self, message: messages.IndexOpening) -> None:
        found = self._partitions.get(message.partition)
        try:
            if found is not None:
                await found[0].register.opening()
        except StorageError as error:
            self.send(messages.Done(message.request, error=type(error).__name__, message=str(error)))
        else:
            self.send(messages.Done(message.request))


def _count(meter: PartitionMeter, counted: messages.Counted) -> None:
    for commit in counted.commits:
        meter.committed(*commit)
    for _ in range(counted.commit_failures):
        meter.commit_failed()
    for _ in range(counted.restarts):
        meter.restarted()
    if counted.dead_lettered or counted.expired_messages or counted.expired_locks:
        meter.lapsed(counted.dead_lettered, counted.expired_messages, counted.expired_locks)
