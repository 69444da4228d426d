"""A namespace with real partitions on a disk that fails as a test says, from a start to an end."""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import cast

from broker.base.clock import ManualClock
from broker.base.errors import Reason, Refused
from broker.base.metrics import Metrics
from broker.entities.descriptions import MAIN, NAMESPACE
from broker.namespace.entity import Entity, ask
from broker.namespace.kinds import make_entity
from broker.namespace.meter import EntityMeter
from broker.namespace.namespace import Namespace
from broker.namespace.resting import Resting
from broker.operations.sending import Send, Sent
from broker.partition.payloads import PayloadBudget
from broker.partition.task import PartitionTask
from storage.catalogue import ATTEMPTS, Catalogue
from storage.log import LogStore
from storage.partition_index import PartitionIndex
from tests.support.faulty_disk import OPERATIONS, FaultyDisk
from tests.support.logs import small_store
from tests.support.partition_asking import pages
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")
FOR_EVER = 1_000_000
WAIT_S = 20
VARIETIES = [(1, errno.EIO), (ATTEMPTS, errno.EIO), (FOR_EVER, errno.EIO), (FOR_EVER, errno.ENOSPC)]
"""How often a disk call, and later calls of its kind, fail, and with which error."""


class Life:
    """A namespace with real partitions, from a start to an end."""

    def __init__(self, inner: RecordingDisk, *, lossy: bool = False) -> None:
        self.inner = inner
        self.disk = FaultyDisk(inner, lose=self._lose if lossy else None)
        self.clock, self.metrics, self.payloads = ManualClock(), Metrics(), PayloadBudget(1 << 20)
        self.tasks: list[PartitionTask] = []
        self.runs: list[asyncio.Task[None]] = []
        self.store = small_store(ROOT, self.disk, reserve_bytes=0)
        self.resting = Resting(PartitionIndex(ROOT / "catalogue", self.disk), self.clock)
        self.namespace = Namespace(
            NAMESPACE,
            catalogue=Catalogue(ROOT / "catalogue", self.disk),
            store=cast(LogStore, self.store),
            clock=self.clock,
            make_entity=lambda description: make_entity(
                description, EntityMeter(self.metrics, description.name), self._start, self.resting
            ),
            resting=self.resting,
            partitions_default=2,
            entities_max=10,
            confirm_retry_ms=1,
        )

    def _lose(self, path: Path) -> None:
        if path.name == "catalogue":
            self.inner.lose(path)

    def _start(self, queue: Entity, number: int) -> PartitionTask:
        log = self.store.log(queue.description.generation, number)
        register = self.resting.register(queue.description.generation, number)
        task = PartitionTask(
            number,
            log=log,
            clock=self.clock,
            description=queue.description,
            payloads=self.payloads,
            register=register,
        )
        self.tasks.append(task)
        self.runs.append(asyncio.create_task(task.run()))
        return task

    async def send(self, name: str, body: bytes) -> set[bytes]:
        """Send a message to each partition, distinguished by its number; gives the acknowledged ones."""
        queue = self.namespace.find(name)
        acknowledged = set[bytes]()
        for number, handle in enumerate(queue.router.handles if queue else ()):
            message = b"%s to %d" % (body, number)
            try:
                assert isinstance(await ask(handle, Send([message], None)), Sent)
                acknowledged.add(message)
            except Refused as why:
                assert why.reason in (Reason.PARTITION_UNAVAILABLE, Reason.DISK_FULL)
        return acknowledged

    async def messages(self, name: str, subqueue: str = MAIN) -> Counter[bytes]:
        """The messages in a subqueue of all partitions, and how often each is there."""
        queue = self.namespace.find(name)
        assert queue is not None
        found: Counter[bytes] = Counter()
        for number in range(queue.description.partitions):
            async for page in pages(cast(PartitionTask, queue.partition(number)), subqueue):
                found.update(bytes(message) for message in page.messages)
        return found

    async def confirmed(self) -> None:
        """Wait until the state on disk is known and all partitions are back."""
        async with asyncio.timeout(WAIT_S):
            while self.namespace.unconfirmed or not all(
                queue.available for queue in self.namespace.live_entities()
            ):
                self.clock.advance(1_000)
                for task in self.tasks:
                    task.wake()
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.namespace.close()
            await asyncio.gather(*self.runs)
            await self.store.close()

    async def end(self, restart: str, rng: random.Random) -> RecordingDisk:
        """End in one of four ways; gives the disk that the next life finds."""
        left = self.inner
        if restart == "power cut":
            left = self.inner.after_power_cut()
        elif restart == "power cut, some kept":
            left = self.inner.after_power_cut(rng)
        if restart != "stop":
            for operation in OPERATIONS:  # killed: nothing reaches the disk any more
                self.disk.fail(operation, times=FOR_EVER)
        await self.close()
        return left

    async def calls_of(self, change: Awaitable[bool]) -> list[tuple[str, int]]:
        """Every disk call of a change, as operation and number. Ends this life."""
        before = self.disk.calls.copy()
        assert await change
        calls: Counter[str] = self.disk.calls - before
        await self.close()
        return [(operation, nth) for operation, count in calls.items() for nth in range(1, count + 1)]


async def is_acknowledged(change: Awaitable[object]) -> bool:
    """Make a change; whether it was acknowledged. Any refusal must be one that clients retry."""
    try:
        await change
    except Refused as why:
        assert why.reason in (Reason.PARTITION_UNAVAILABLE, Reason.DISK_FULL)
        return False
    return True
