"""A forwarded message is never lost or stored twice: the disk fails at every record of a forward, at the
target and at the source, or the process dies there."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from broker.base.errors import Refused
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.entities.rules import RuleDescription
from broker.entities.topics import SubscriptionSettings, TopicDescription
from broker.messaging import forward_retry
from broker.namespace.entity import Entity
from broker.partition.health import Health
from storage.disk import Disk
from storage.file_store import FileLogStore
from storage.log import FRAME_HEADER_BYTES, Log, Position
from storage.shared import Fsync
from tests.support.dying_process import Everything
from tests.support.faulty_disk import FaultyDisk
from tests.support.forwarding_world import World, held_now, is_troubled
from tests.support.logs import small_store
from tests.support.recording_disk import RecordingDisk
from tests.support.waiting import until

ROOT = Path("/data")
SENT = ["x", "y", "z"]
CHANGES_THE_DISK = ("write", "sync", "truncate", "rename", "create", "remove")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_retry, "RETRY_S", 0.001)
    monkeypatch.setattr(forward_retry, "RETRY_S_MAX", 0.01)


class FileWorld(World):
    """Two queues whose logs are files: "a" forwards to "b"."""

    source = MAIN
    """The subqueue of "a" from which messages are forwarded."""

    def __init__(self, disk: Disk, fsync: Fsync) -> None:
        super().__init__(a=(1, QueueSettings()), b=(1, QueueSettings()))
        self.store: FileLogStore = small_store(ROOT, disk, fsync=fsync)
        self.files: dict[str, Log] = {}

    def _make_log(self, entity: Entity, number: int) -> Log:
        log = self.files[entity.name] = self.store.log(entity.description.generation, number)
        return log

    async def wake(self) -> None:
        for entity in self.entities.values():
            await entity.wake(0)

    async def forward(self) -> None:
        """Begin to forward from "a" to "b"."""
        await self.update("a", QueueSettings(forward_to="b"))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to be forwarded."""
        return held_now(self.entities["a"], self.source) == 0

    def is_troubled(self) -> bool:
        """Whether the lane has met a failure."""
        lanes = [lane for each in self.forwarding._forwarded.values() for lane in each._lanes.values()]
        return any(map(is_troubled, lanes))

    def is_recovering(self, name: str) -> bool:
        """Whether the partition of a queue is down."""
        return self.partitions[name, 0].health is Health.RECOVERING

    async def recover(self) -> None:
        """Let failed partitions look at their disk again, and wait until everything has arrived."""

        def arrived() -> bool:
            self.clock.advance(100)
            for partition in self.partitions.values():
                partition.wake()
            is_up = not any(
                map(self.is_recovering, self.entities)
            )  # its counts may be those of a failed commit
            return is_up and held_now(self.entities["b"]) >= len(SENT) and self.is_empty

        for _ in range(5):
            await until(arrived)
            with contextlib.suppress(Refused):  # the fault has come only now: the partition is down again
                assert sorted(await self.texts("b")) == SENT
                dead_letters = self.source + "/" * bool(self.source) + DEAD_LETTER
                assert await self.texts("a", self.source) == await self.texts("a", dead_letters) == []
                return
        raise AssertionError("a partition goes down again and again")


class SubscriptionWorld(FileWorld):
    """As FileWorld, but "a" is a topic: one of its subscriptions forwards, and another one keeps what it
    gets."""

    source = "subscriptions/s"

    def __init__(self, disk: Disk, fsync: Fsync) -> None:
        super().__init__(disk, fsync)
        topic = TopicDescription("a", "a".rjust(32, "0"), 1)
        for name in ("s", "kept"):
            topic = topic.with_new(name, SubscriptionSettings(), [RuleDescription("all")], 0)
        self.descriptions["a"] = topic

    async def forward(self) -> None:
        """Begin to forward from the subscription to "b"."""
        topic = self.descriptions["a"]
        assert isinstance(topic, TopicDescription)
        subscription = topic.subscription("s")
        assert subscription is not None
        settings = SubscriptionSettings(forward_to="b")
        await self.describe("a", topic.with_changed(replace(subscription, settings=settings)))

    async def recover(self) -> None:
        """As for a queue; the other subscription still has everything."""
        await super().recover()
        assert await self.texts("a", "subscriptions/kept") == SENT


Kind = type[FileWorld]
kinds = pytest.mark.parametrize("kind", [FileWorld, SubscriptionWorld], ids=["queue", "subscription"])


@asynccontextmanager
async def world_on(disk: Disk, fsync: Fsync = "always", kind: Kind = FileWorld) -> AsyncIterator[FileWorld]:
    """A world that ends as in a crash."""
    here = kind(disk, fsync)
    here.start()
    try:
        await here.wake()
        yield here
    finally:
        await here.crash()
        for log in here.files.values():
            await log.close()
        await here.store.close()


async def places(kind: Kind) -> list[tuple[str, int]]:
    """Where a record of a forward begins, ends or is torn: the queue whose log holds it, and the offset in
    its frame."""
    found: list[tuple[str, int]] = []
    async with world_on(RecordingDisk(), kind=kind) as here:
        await here.send("a", *SENT)
        starts = {name: log.end for name, log in here.files.items()}
        await here.forward()
        await here.recover()
        for name, records in (("b", 2), ("a", 1)):
            (frame,) = await here.files[name].fetch([Position(starts[name])])
            assert len(frame.records()) == records
            offsets = {1, FRAME_HEADER_BYTES}
            for record in frame.records():
                offsets |= {record.offset - 8, record.offset, record.offset + len(record.body) // 2}
            found += [(name, offset) for offset in sorted(offsets)]
    return found


def path_of(here: FileWorld, name: str) -> str:
    return here.descriptions[name].generation


@kinds
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["fails", "is full"])
async def test_a_disk_that_fails_at_any_record_neither_loses_nor_doubles_a_message(
    error: int, kind: Kind
) -> None:
    for name, place in await places(kind):
        inner = RecordingDisk()
        disk = FaultyDisk(inner)
        async with world_on(disk, kind=kind) as here:
            await here.send("a", *SENT)
            disk.shorten(place, path_part=path_of(here, name))
            times = 1 if error == errno.EIO else -1
            disk.fail("write", error, times=times, path_part=path_of(here, name))
            await here.forward()
            await until(here.is_troubled)
            disk.heal()
            await here.recover()
        async with world_on(inner.after_power_cut(), kind=kind) as again:
            await again.recover()


@kinds
@pytest.mark.parametrize("name", ["b", "a"], ids=["at the target", "at the source"])
async def test_a_sync_that_fails_neither_loses_nor_doubles_a_message(name: str, kind: Kind) -> None:
    for nth in count(1):
        inner = RecordingDisk()
        disk = FaultyDisk(inner)
        async with world_on(disk, kind=kind) as here:
            await here.send("a", *SENT)
            disk.fail("sync", nth=nth, path_part=path_of(here, name))
            await here.forward()
            await here.recover()
            has_failed = disk.has_failed
        async with world_on(inner.after_power_cut(), kind=kind) as again:
            await again.recover()
        if not has_failed:
            assert nth > 1
            break


@kinds
async def test_a_process_that_dies_at_any_record_neither_loses_nor_doubles_a_message(kind: Kind) -> None:
    for name, place in await places(kind):
        inner = RecordingDisk()
        disk = FaultyDisk(inner)
        async with world_on(disk, kind=kind) as here:
            await here.send("a", *SENT)
            disk.shorten(place, path_part=path_of(here, name))
            for operation in CHANGES_THE_DISK:
                disk.fail(operation, times=-1, path_part=path_of(here, name))
            await here.forward()
            await until(partial(here.is_recovering, name))
        left = inner.after_power_cut(Everything())
        async with world_on(left, kind=kind) as again:
            await again.forward()
            await again.recover()


@pytest.mark.parametrize("seed", range(8))
async def test_after_a_power_cut_new_messages_are_not_taken_for_known_ones_although_commits_are_not_synced(
    seed: int,
) -> None:
    """The source has forgotten some of its messages, and gives their numbers again."""
    rng = random.Random(seed)
    disk = RecordingDisk()
    left: list[RecordingDisk] = []
    async with world_on(disk, "never") as here:
        await here.forward()
        disk.before_sync = lambda: left.append(disk.after_power_cut(rng))
        for number, text in enumerate(SENT, 1):
            await here.send("a", text)
            await here.until_at("b", number)
            await here.until_empty("a")
            left.append(disk.after_power_cut(rng))
        disk.before_sync = None
    for each in left:
        async with world_on(each, "never") as again:
            await again.forward()
            for text in ("new 1", "new 2", "new 3", "new 4"):
                await again.send("a", text)
            await again.until_empty("a")
            texts = await again.texts("b")
            assert len(set(texts)) == len(texts), "stored twice"
            assert texts[-4:] == ["new 1", "new 2", "new 3", "new 4"]
