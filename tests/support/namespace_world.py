"""A namespace over a real catalogue and store, with partitions that answer as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import pytest

from broker.base.clock import ManualClock
from broker.base.errors import Reason, Refused
from broker.base.metrics import Metrics
from broker.entities.descriptions import MAIN, NAMESPACE, EntityDescription
from broker.entities.documents import decode_description
from broker.identifiers import ClientId
from broker.namespace.entity import Entity
from broker.namespace.kinds import make_entity
from broker.namespace.meter import EntityMeter
from broker.namespace.namespace import Namespace
from broker.namespace.resting import Resting
from broker.operations.general import Failed, Update, Updated
from broker.operations.interface import Operation, Sink
from broker.operations.message_states import SubqueueCounts
from broker.operations.sending import Send
from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.file_store import FileLogStore
from storage.log import LogStore
from storage.partition_index import PartitionIndex
from tests.support.faulty_disk import FaultyDisk


class Part:
    """A partition that answers as a test says."""

    awaits_more = False

    def __init__(self) -> None:
        self.available, self.health, self.stopped = True, "healthy", False
        self.held: dict[str, SubqueueCounts] = {}
        self.posted: list[Operation] = []

    def counts(self, only: str | None = None) -> dict[str, SubqueueCounts]:
        return self.held

    def size(self) -> int:
        return sum(each.bytes for each in self.held.values())

    async def opened(self) -> None:
        await asyncio.sleep(0)

    async def stop(self, *, is_deleted: bool = False) -> None:
        self.stopped = True

    def join(self, more: Send, client: ClientId, cookie: object) -> bool:
        return False

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        self.posted.append(operation)
        if isinstance(operation, Update):
            answer = (
                Updated(operation.cookie)
                if self.available
                else Failed(Reason.PARTITION_UNAVAILABLE, "down", operation.cookie)
            )
            asyncio.get_running_loop().call_soon(sink, answer)


class World:
    """A namespace on a folder, and the partitions that it made."""

    def __init__(self, folder: Path, entities_max: int = 100, confirm_retry_ms: int = 60_000) -> None:
        self.disk = FaultyDisk(LocalDisk())
        self.folder, self.clock, self.metrics = folder, ManualClock(), Metrics()
        self.parts: dict[tuple[str, int], Part] = {}
        self.store = FileLogStore(
            folder / "logs",
            self.disk,
            fsync="always",
            fsync_interval_ms=100,
            segment_bytes_max=1 << 20,
            committer_threads=1,
        )
        self.resting = Resting(PartitionIndex(folder / "catalogue", self.disk), self.clock)
        self.namespace = Namespace(
            NAMESPACE,
            catalogue=Catalogue(folder / "catalogue", self.disk),
            store=cast(LogStore, self.store),
            clock=self.clock,
            make_entity=self._make,
            resting=self.resting,
            partitions_default=4,
            entities_max=entities_max,
            confirm_retry_ms=confirm_retry_ms,
        )

    def _make(self, description: EntityDescription) -> Entity:
        meter = EntityMeter(self.metrics, description.name)
        return make_entity(description, meter, self._start, self.resting)

    def _start(self, queue: Entity, number: int) -> Any:
        part = self.parts[queue.name, number] = Part()
        return part

    def queue(self, name: str) -> Entity:
        queue = self.namespace.find(name)
        assert queue is not None
        return queue


class Watcher:
    """Counts changes of an entity and keeps why it ended."""

    def __init__(self, subqueue: str = MAIN) -> None:
        self.changes, self.ended = 0, list[Refused]()
        self.subqueue = subqueue

    def queue_changed(self) -> None:
        self.changes += 1

    def queue_ended(self, why: Refused) -> None:
        self.ended.append(why)


async def again(world: World) -> World:
    """The same folder, opened as after a restart."""
    await world.namespace.close()
    await world.store.close()
    restarted = World(world.folder)
    await restarted.namespace.load()
    return restarted


async def make_logs(world: World, generation: str) -> None:
    """Make the log of an entity's partition 0."""
    log = world.store.log(generation, 0)
    await log.acquire()
    await log.close()


async def entries(world: World) -> list[EntityDescription]:
    """What a restart would find."""
    return [
        decode_description(content)
        for content in (await Catalogue(world.folder / "catalogue", LocalDisk()).load_all()).values()
    ]


async def refused_change(change: Awaitable[object]) -> Refused:
    """The refusal that this change raises."""
    with pytest.raises(Refused) as refused:
        await change
    return refused.value
