"""Everything stored for an entity carries its namespace; what earlier builds stored without one stays
readable."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import NoReturn, cast

import pytest

from broker.base.clock import ManualClock
from broker.base.metrics import Metrics
from broker.entities.descriptions import EntityDescription, QueueDescription, QueueSettings, new_generation
from broker.entities.documents import encode_description
from broker.identifiers import PARTITION_SHIFT
from broker.maintenance.check import check_folders
from broker.maintenance.repair import Repair
from broker.namespace.entity import Entity
from broker.namespace.meter import EntityMeter
from broker.namespace.namespace import Namespace
from broker.namespace.queue import Queue
from broker.namespace.resting import Resting
from broker.partition.records import add_enqueued
from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.file_store import FileLogStore
from storage.log import LogStore
from storage.partition_index import PartitionIndex
from tests.support.logs import flip


class Folder:
    """A data folder with a namespace at work in it, which opens none of its partitions."""

    def __init__(self, root: Path, name: str = "sbemulatorns") -> None:
        self.store = FileLogStore(root, LocalDisk(), reserve_bytes=0)
        self.index = PartitionIndex(root / "catalogue", LocalDisk())
        metrics, clock = Metrics(), ManualClock()
        self.resting = Resting(self.index, clock)

        def make_queue(description: EntityDescription) -> Queue:
            def start(queue: Entity, number: int) -> NoReturn:
                raise AssertionError("nobody asks for a partition")

            return Queue(description, EntityMeter(metrics, description.name), start, self.resting)

        self.namespace = Namespace(
            name,
            catalogue=Catalogue(root / "catalogue", LocalDisk()),
            store=cast(LogStore, self.store),
            clock=clock,
            make_entity=make_queue,
            resting=self.resting,
            partitions_default=4,
            entities_max=100,
            confirm_retry_ms=60_000,
        )

    async def close(self) -> None:
        await self.namespace.close()
        await self.index.close()
        await self.store.close()


def contents(root: Path, pattern: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob(pattern)}


async def test_whatever_is_stored_for_a_queue_carries_its_namespace(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    await folder.namespace.load()
    generation = (await folder.namespace.create_entity("orders", QueueSettings())).generation
    assert re.fullmatch("sbemulatorns_[0-9a-f]{32}", generation)
    await folder.resting.register(generation, 0).opening()
    log = folder.store.log(generation, 0)
    await log.acquire()
    await log.close()
    await folder.close()
    documents = sorted((tmp_path / "catalogue").glob(f"{generation}-*"))
    assert [each.suffix for each in documents] == [".copy", ".document"]
    assert os.listdir(tmp_path / "logs") == os.listdir(tmp_path / "catalogue" / "logs") == [generation]
    for pattern, count in (("*.segment", 1), ("*.extent", 1), ("partitions.index*", 2)):
        found = contents(tmp_path, pattern)
        assert len(found) == count and all(generation.encode() in each for each in found.values())


@pytest.mark.parametrize("stored", ["by an earlier build", "with its namespace"])
async def test_a_queue_is_checked_repaired_served_and_deleted_whether_or_not_it_names_its_namespace(
    tmp_path: Path, stored: str
) -> None:
    generation = "f" * 32 if stored == "by an earlier build" else new_generation()
    document = json.loads(encode_description(QueueDescription("old", generation, 4)))
    if stored == "by an earlier build":
        del document["namespace"]
    folder = Folder(tmp_path)
    log = folder.store.log(generation, 3)
    await log.acquire()
    for number, message in enumerate((b"lost", b"kept"), (3 << PARTITION_SHIFT) | 1):
        commit = log.begin()
        add_enqueued(commit, number, 1_000, [4], None, [message])
        await log.append(commit)
    await log.close()
    await Catalogue(tmp_path / "catalogue", LocalDisk()).put(generation, json.dumps(document).encode())
    await folder.close()

    [(segment, content)] = contents(tmp_path, "*.segment").items()
    flip(segment, content.index(b"lost"))
    [finding] = check_folders([tmp_path]).findings
    assert (finding.entity, finding.partition) == (generation, 3)
    repair = Repair([tmp_path])
    repair.open()
    await asyncio.to_thread(lambda: repair.carry_out(repair.plan()))
    repair.close()
    report = check_folders([tmp_path])
    assert report.queues == {generation: "old"} and not report.damaged

    folder = Folder(tmp_path, name="renamed")
    await folder.namespace.load()
    assert [each.generation for each in folder.namespace.descriptions()] == [generation]
    log = folder.store.log(generation, 3)
    await log.acquire()
    assert b"kept" in b"".join([frame.data async for frame in log.replay(log.start)])
    await log.close()
    await folder.namespace.delete_entity("old")
    assert await folder.store.entities() == []
    assert list((tmp_path / "catalogue").glob(f"{generation}*")) == []
    await folder.close()
