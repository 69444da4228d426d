"""`python -m broker.hosting.process`: the process that runs partitions for a broker. See `remote.py`.

It ends when the broker tells it to or is gone. It ignores signals, because a signal to the broker's process
group must not end the partitions before the broker has closed them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from typing import Any, assert_never

import uvloop

from broker.base.clock import SystemClock
from broker.base.collector import collect_rarely
from broker.base.thread_switches import shorten_switch_interval
from broker.entities.descriptions import MAIN
from broker.hosting import messages
from broker.hosting.channel import Channel
from broker.hosting.errors import error_of
from broker.hosting.local import LocalHost
from broker.hosting.schema import decode_to_partitions, encode
from broker.identifiers import ClientId
from broker.operations.general import Detach
from broker.operations.interface import Answer, Sink
from broker.operations.receiving import Withdraw, Withdrawn
from broker.partition.summary import Summary, decode
from broker.partition.task import PartitionTask
from broker.settings.logs import configure_logging
from broker.throttle.memory_mark import RETURN_S, file_backed_bytes, resident_bytes, return_free_pages
from storage.disk import LocalDisk
from storage.errors import StorageError

RESOURCES_EVERY_S = 0.25
"""How often, in seconds, to report the partitions' memory and the state of the data folders to the broker."""
_PR_SET_PDEATHSIG = 1


class _Hosted:
    """One partition in this process: its register and its meter."""

    def __init__(self, process: PartitionProcess, start: messages.Start) -> None:
        self._process, self._partition = process, start.partition
        end = start.description.subqueues.end
        self._summary = None if start.summary is None else decode(start.summary, end)
        self._expected_bytes = start.expected_bytes
        self.task: PartitionTask
        self.counted: messages.Counted | None = None

    def post(self, message: messages.Post) -> None:
        """Pass a client's operation to the partition."""
        client = message.client
        sink = self._sink_of(client)  # the partition keeps it for as long as the client may be answered
        self.task.post(message.operation, client, sink)
        if isinstance(message.operation, Detach):  # the answer to this Withdraw is the client's last
            self.task.post(Withdraw(MAIN), client, self._last_sink_of(client, sink))

    def _sink_of(self, client: ClientId) -> Sink:
        def sink(answer: Answer) -> None:
            self._process.changed(self)
            self._process.answers.append(messages.Answered(self._partition, client, answer))

        return sink

    def _last_sink_of(self, client: ClientId, sink: Sink) -> Sink:
        """Takes the answer to the last Withdraw. Answers to operations that were carried out in the same
        commit come here too, before it."""

        def last_sink(answer: Answer) -> None:
            if isinstance(answer, Withdrawn):
                self._detached(client)
            else:
                sink(answer)

        return last_sink

    def _detached(self, client: ClientId) -> None:
        self._process.changed(self)
        self._process.answers.append(messages.Detached(self._partition, client))

    def changed(self) -> None:
        """The partition's health or its counts have changed."""
        self._process.changed(self)

    def status(self) -> messages.Status:
        """The partition's report about itself."""
        task = self.task
        counts, is_whole = task.report_counts()
        return messages.Status(self._partition, task.health, task.available, task.size(), counts, is_whole)

    # --- the register (`broker.partition.rest.Register`) ----------------------------------------------------

    def summary(self) -> Summary | None:
        return self._summary

    async def opening(self) -> None:
        await self._process.ask(lambda request: messages.IndexOpening(request, self._partition))

    def expected_bytes(self) -> int:
        return self._expected_bytes

    def closed(self, summary: Summary) -> None:
        self._summary, self._expected_bytes = summary, summary.state_bytes
        self._process.send(messages.IndexClosed(self._partition, summary.encode()))

    # --- the meter (`broker.partition.meter.PartitionMeter`) ------------------------------------------------

    def _counting(self) -> messages.Counted:
        if self.counted is None:
            self.counted = messages.Counted(self._partition)
        self._process.changed(self)
        return self.counted

    def committed(self, records: int, size: int, seconds: float) -> None:
        self._counting().commits.append((records, size, seconds))

    def commit_failed(self) -> None:
        self._counting().commit_failures += 1

    def restarted(self) -> None:
        self._counting().restarts += 1

    def lapsed(self, dead_lettered: int, expired_messages: int, expired_locks: int) -> None:
        counted = self._counting()
        counted.dead_lettered += dead_lettered
        counted.expired_messages += expired_messages
        counted.expired_locks += expired_locks


class PartitionProcess:
    """Serves the broker at the other end of the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._host: LocalHost | None = None
        self._partitions: dict[int, _Hosted] = {}
        self._changed: dict[_Hosted, None] = {}
        self.answers: list[messages.Answered | messages.Detached] = []
        """Answers of this turn of the event loop."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: dict[int, asyncio.Future[messages.Done]] = {}
        self._numbers = count(1)
        self._is_closed = False
        self._is_scarce = False
        """Whether the broker has reached its memory mark."""
        self._folders_told: list[str] | None = None
        """The last states of the data folders that the broker was told; None until it has asked for the logs
        in them."""

    async def run(self) -> None:
        """Serve until the broker says `Close`. If the broker is gone, end at once, as in a crash."""
        async for body in self._channel.bodies():
            self._hear(decode_to_partitions(body))
            if self._is_closed:
                break
        else:
            os._exit(1)
        await asyncio.gather(*self._tasks)
        await self._channel.close()

    def send(self, message: messages.ToBroker) -> None:
        """Send a message to the broker."""
        self._channel.send(encode(message))

    async def ask(self, make: Callable[[int], messages.ToBroker]) -> None:
        """Send a request and wait until it is done. Raises StorageError."""
        request = next(self._numbers)
        self._requests[request] = future = asyncio.get_running_loop().create_future()
        self.send(make(request))
        try:
            done = await future
        finally:
            del self._requests[request]
        if done.error is not None:
            raise error_of(done.error, done.message)

    def changed(self, hosted: _Hosted) -> None:
        """Report this partition at the end of this turn of the event loop: its status first, then the
        answers."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._tell)
        self._changed[hosted] = None

    def _tell(self) -> None:
        changed, self._changed = self._changed, {}
        answers, self.answers = self.answers, []
        for hosted in changed:
            self.send(hosted.status())
            if hosted.counted is not None:
                self.send(hosted.counted)
                hosted.counted = None
        for answer in answers:
            self.send(answer)

    # --- from the broker ------------------------------------------------------------------------------------

    def _hear(self, message: messages.ToPartitions) -> None:
        if isinstance(message, messages.Configure):
            self._set_up(message)
            return
        host = self._host
        assert host is not None, "the first message is Configure"
        match message:
            case messages.Post():
                if (hosted := self._partitions.get(message.partition)) is not None:
                    hosted.post(message)
            case messages.Start():
                hosted = self._partitions[message.partition] = _Hosted(self, message)
                hosted.task = host.start(message.description, message.number, hosted, hosted, hosted.changed)
            case messages.OpenPartition():
                self._do(message.request, self._partitions[message.partition].task.opened())
            case messages.StopPartition():
                task = self._partitions[message.partition].task
                self._do(message.request, task.stop(is_deleted=message.is_deleted))
            case messages.Forget():
                self._partitions.pop(message.partition, None)
            case messages.ListEntities():
                self._do(message.request, _entities(host))
            case messages.ListPartitions():
                self._do(message.request, _partitions(host, message.entity))
            case messages.ListMissing():
                self._do(message.request, host.missing())
            case messages.FindLogs():
                self._do(message.request, _with_logs(host, message.entity))
            case messages.KeepRoom():
                host.keep_room(message.entity, message.needs, message.folder)
            case messages.DeleteLogs():
                self._do(message.request, host.delete(message.entity))
            case messages.Close():
                self._is_closed = True
                self._do(message.request, host.close())
            case messages.LookAtClock():
                host.wake()
            case messages.MemoryScarce():
                self._is_scarce = message.is_scarce
                host.set_scarce(message.is_scarce)
            case messages.MemoryRoom():
                host.set_memory_room(message.size, message.used, message.mark)
            case messages.Done():
                if (future := self._requests.get(message.request)) is not None and not future.done():
                    future.set_result(message)
            case _:
                assert_never(message)

    def _set_up(self, message: messages.Configure) -> None:
        configure_logging(message.log_format, message.log_level)
        self._host = LocalHost(
            message.settings,
            LocalDisk(),
            SystemClock(),
            spawn=self._spawn,
            failed=lambda name, error: self.send(messages.PartFailed(name, repr(error))),
        )
        self._host.keep_looking()
        reporting = asyncio.create_task(self._report_resources(self._host))
        reporting.add_done_callback(lambda task: task.cancelled() or task.result())
        self._reporting = reporting
        self.send(messages.Ready())

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _do(self, request: int, work: Awaitable[dict[str, list[int]] | None]) -> None:
        self._spawn(self._done(request, work), f"request {request}")

    async def _done(self, request: int, work: Awaitable[dict[str, list[int]] | None]) -> None:
        try:
            found = await work
        except StorageError as error:
            done = messages.Done(request, error=type(error).__name__, message=str(error))
        except Exception as error:
            self.send(messages.PartFailed("partitions", repr(error)))
            raise
        else:
            done = messages.Done(request, found or {})
        self._tell()  # send earlier answers first
        self._tell_folders()
        self.send(done)

    def _tell_folders(self) -> None:
        """Tell the broker if a data folder has been lost or is back."""
        assert self._host is not None
        states = [str(state) for state in self._host.folder_states()]
        if states != self._folders_told:
            self._folders_told = states
            self.send(messages.FolderStates(states))

    async def _report_resources(self, host: LocalHost) -> None:
        told: messages.MemoryUsed | None = None
        program = file_backed_bytes()  # counted by the broker already, which runs the same one
        loop = asyncio.get_running_loop()
        returned_at = -RETURN_S
        while not self._is_closed:
            if self._is_scarce and loop.time() - returned_at >= RETURN_S:
                await asyncio.to_thread(return_free_pages)
                returned_at = loop.time()
            resident = max(0, resident_bytes() - program)
            now = messages.MemoryUsed(host.waiting_bytes, host.opening_bytes, resident)
            if now != told:
                self.send(now)
                told = now
            if self._folders_told is not None:
                self._tell_folders()
            await asyncio.sleep(RESOURCES_EVERY_S)


async def _entities(host: LocalHost) -> dict[str, list[int]]:
    return {entity: [] for entity in await host.entities()}


async def _partitions(host: LocalHost, entity: str) -> dict[str, list[int]]:
    return {entity: await host.partitions(entity)}


async def _with_logs(host: LocalHost, entity: str) -> dict[str, list[int]]:
    return {} if await host.is_without_logs(entity) else {entity: []}


def _end_with(broker: int) -> None:
    """Have the kernel end this process together with the broker. Other systems than Linux rely on the
    channel's end alone."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != broker:
        os._exit(1)


async def _main(descriptor: int) -> None:
    collect_rarely()
    shorten_switch_interval()
    await PartitionProcess(await Channel.of(socket.socket(fileno=descriptor))).run()


if __name__ == "__main__":
    _end_with(int(sys.argv[2]))
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_main(int(sys.argv[1])))
