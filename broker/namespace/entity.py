"""An entity at work: its description, its partitions, its router, and who has to hear when it changes.

Each kind of entity is a subclass (`queue.py`) that says what clients may do with it.

Partitions come to life when they are first used: a queue that nobody touches is its description and little
more.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import ClassVar, Protocol

from broker.base.errors import Refused
from broker.entities.descriptions import EntityDescription
from broker.namespace.closed_partitions import Resting, add_counts
from broker.namespace.meter import EntityMeter
from broker.namespace.router import PartitionHandle, Router
from broker.operations import (
    Answer,
    ClientId,
    Detach,
    Failed,
    Locked,
    Operation,
    Recalled,
    Release,
    Sink,
    SubqueueCounts,
    Update,
    refusal_of,
)
from storage.spread_store import place


class Partition(PartitionHandle, Protocol):
    """What a queue needs of a partition's task beyond its mailbox."""

    @property
    def health(self) -> str:
        """Its state, as people read it."""

    def counts(self) -> dict[str, SubqueueCounts]:
        """What it holds, by subqueue, or held when it was last open."""

    async def opened(self) -> None:
        """Return once the log was opened, or could not be."""

    async def stop(self, *, is_deleted: bool = False) -> None:
        """Finish the commit under way, close the log; save nothing more if it is about to be deleted. Safe to
        call twice."""


class Watcher(Protocol):
    """A link, or whoever else serves clients of the queue."""

    def queue_changed(self) -> None:
        """The description is another one: check whether what is under way is still permitted."""

    def queue_ended(self, why: Refused) -> None:
        """The queue is gone."""


class _Sleeping:
    """A partition that nobody has used yet."""

    __slots__ = ("_number", "_queue")
    available = True

    def __init__(self, queue: Entity, number: int) -> None:
        self._queue, self._number = queue, number

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        if isinstance(operation, Detach | Release | Recalled):
            return  # nobody holds anything in it, so there is nothing to end
        gone = self._queue.gone
        if gone is None:
            self._queue.partition(self._number).post(operation, client, sink)
        elif (answer := refusal_of(operation, self._number, gone.reason, gone.description)) is not None:
            asyncio.get_running_loop().call_soon(sink, answer)


class Entity(ABC):
    """An entity at work. Owned by the event loop.

    Subclasses say what the kind of entity is. Links, nodes and the namespace treat all kinds alike.
    """

    FOREIGN_CAPABILITIES: ClassVar[frozenset[str]] = frozenset()
    """Capabilities (§3.5.3) of nodes that behave in another way than this kind. A link that asks for one is
    refused."""

    def __init__(
        self,
        description: EntityDescription,
        meter: EntityMeter,
        start_partition: Callable[[Entity, int], Partition],
        resting: Resting,
    ) -> None:
        """`resting` knows what the partitions hold that have not come to life, and wakes them on time."""
        self.description = description
        self.meter = meter
        self.accessed_at_ms: int | None = None
        """When a client last sent, received or peeked; set by the links."""
        self.watchers: set[Watcher] = set()
        self.gone: Refused | None = None
        """Why it is no more, or out of service: no partition comes to life after that, for its log would
        outlive the queue."""
        self._start_partition, self._resting = start_partition, resting
        self._partitions: dict[int, Partition] = {}
        self._at_rest: dict[str, SubqueueCounts] | None = None
        """What those partitions hold together that have not come to life; None while it is not added up."""
        self._handles: list[PartitionHandle] = [
            _Sleeping(self, number) for number in range(description.partitions)
        ]
        self.router = Router(self._handles)
        resting.serve(description.generation, self)

    @abstractmethod
    def check_can_send(self, subqueue: str) -> None:
        """Raises Refused if clients cannot send to this subqueue, or not for now."""

    @abstractmethod
    def check_can_receive(self, subqueue: str) -> None:
        """Raises Refused if clients cannot receive from this subqueue, or not for now."""

    @abstractmethod
    def requires_session(self, subqueue: str) -> bool:
        """Messages here belong to message sessions: each must name one, and is received with its session."""

    @property
    def message_bytes_max(self) -> int:
        """The largest message that it takes; a batch counts as one."""
        return self.description.settings.max_message_size_kb * 1024

    @property
    def name(self) -> str:
        return self.description.name

    def partition(self, number: int) -> Partition:
        """A partition, brought to life if it was not."""
        partition = self._partitions.get(number)
        if partition is None:
            assert self.gone is None, "a queue that was deleted wakes no partition"
            partition = self._partitions[number] = self._start_partition(self, number)
            self._handles[number] = partition
            self._at_rest = None
        return partition

    def folder_of(self, number: int) -> int:
        """The number of the data folder that a partition is in."""
        return place(self.description.generation, number, self.description.folders)

    async def wake(self, number: int) -> None:
        """Something is due in a partition, or nobody knows what it holds: return once it is open, or cannot
        be."""
        if self.gone is None and number < self.description.partitions:
            await self.partition(number).opened()

    async def opened(self, numbers: Collection[int], turns: asyncio.Semaphore) -> None:
        """Return once these partitions, and those that live, were opened, or could not be; `turns` bounds how
        many open at a time.

        Raises Refused once the queue is gone.
        """

        async def open_one(number: int) -> None:
            async with turns:
                if self.gone is None:
                    await self.partition(number).opened()

        await asyncio.gather(*(open_one(number) for number in sorted({*numbers, *self._partitions})))
        if self.gone is not None:
            raise self.gone

    @property
    def available(self) -> bool:
        """All partitions are, as far as anybody knows."""
        return self.gone is None and (
            not self._partitions or all(partition.available for partition in self._partitions.values())
        )

    def health(self) -> list[str]:
        """Each partition's state, by number."""
        if not self._partitions:
            return ["closed"] * self.description.partitions
        return [
            self._partitions[number].health if number in self._partitions else "closed"
            for number in range(self.description.partitions)
        ]

    def count_health(self, into: dict[str, int]) -> None:
        """Add how many partitions are in which state. Does little for a queue that nobody has used."""
        into["closed"] = into.get("closed", 0) + self.description.partitions - len(self._partitions)
        for partition in self._partitions.values():
            into[partition.health] = into.get(partition.health, 0) + 1

    def counts(self) -> dict[str, SubqueueCounts]:
        """What all partitions together hold, by subqueue: exact, but for those that are `unknown`."""
        if self._at_rest is None:
            self._at_rest = self._resting.counts(self.description.generation, self._partitions)
        if not self._partitions:
            return self._at_rest
        total: dict[str, SubqueueCounts] = {}
        add_counts(total, self._at_rest)
        for partition in self._partitions.values():
            add_counts(total, partition.counts())
        return total

    @property
    def unknown(self) -> Collection[int]:
        """The partitions that may hold something, and nobody knows what until they were opened."""
        return self._resting.unknown(self.description.generation)

    async def update(self, description: EntityDescription) -> None:
        """Work with another description from now on; returns when every open partition does."""
        self.description = description
        await asyncio.gather(*(self._tell(partition) for partition in self._partitions.values()))
        for watcher in list(self.watchers):
            watcher.queue_changed()

    async def _tell(self, partition: Partition) -> None:
        with contextlib.suppress(Refused):  # it is down, and has taken note
            await ask(partition, Update(self.description))

    async def stop(self) -> None:
        """Stop the partitions that were used."""
        await asyncio.gather(*(partition.stop() for partition in self._partitions.values()))

    async def end(self, why: Refused, *, is_deleted: bool = False) -> None:
        """The queue is deleted, or out of service: tell who is attached, stop, and be counted no more."""
        self.gone = why
        self.meter.end()
        self._resting.leave(self.description.generation, self)
        for watcher in list(self.watchers):
            watcher.queue_ended(why)
        await asyncio.gather(
            *(partition.stop(is_deleted=is_deleted) for partition in self._partitions.values())
        )


_clients = iter(range(1, 1 << 62))


def next_client() -> ClientId:
    """A number for one more client of partitions, unique in this process."""
    return ClientId(next(_clients))


async def ask(handle: PartitionHandle, operation: Operation) -> Answer:
    """Post one operation and wait for its answer. For the rare ways: the hot one registers a sink and never
    waits.

    If the caller is cancelled, messages that were locked for it are released at once. Raises Refused where
    the answer is `Failed`.
    """
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def sink(answer: Answer) -> None:
        if not future.done():
            future.set_result(answer)
        elif isinstance(answer, Locked):
            handle.post(Release(answer.tokens), client, sink)

    client = next_client()
    handle.post(operation, client, sink)
    try:
        answer = await future
    except asyncio.CancelledError:
        if not future.cancelled():  # the answer came, and the cancellation before it could be taken
            sink(future.result())
        raise
    finally:
        handle.post(Detach(), client, sink)
    if isinstance(answer, Failed):
        raise Refused(answer.reason, answer.description)
    return answer
