"""Partitions on a disk, whose process dies: what it leaves, and what a new process finds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from broker.base.clock import ManualClock
from broker.entities.descriptions import EntityDescription
from broker.partition.payloads import PayloadBudget
from broker.partition.task import PartitionTask
from storage.disk import Disk
from storage.log import Log
from tests.support.logs import small_store
from tests.support.partition_asking import WAIT_S
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")


class Everything(random.Random):
    """Keeps whatever was written, synced or not: the process died, and not the machine."""

    def random(self) -> float:
        return 0.0


class Snapshots(RecordingDisk):
    """Keeps what a process would find that starts after the first write from `after_write = None` on."""

    after_write: RecordingDisk | None = None

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        written = super().write(fd, buffers, offset)
        if self.after_write is None:
            self.after_write = self.after_power_cut(Everything())
        return written


@asynccontextmanager
async def partition_on(
    disk: Disk,
    description: EntityDescription,
    clock: ManualClock | None = None,
    segment_bytes_max: int | None = None,
) -> AsyncIterator[tuple[PartitionTask, Log]]:
    """A running partition that ends as in a crash, without a checkpoint."""
    sizes = {} if segment_bytes_max is None else {"segment_bytes_max": segment_bytes_max}
    store = small_store(ROOT, disk, **sizes)
    log = store.log(description.generation, 0)
    payloads = PayloadBudget(1 << 20, 0)
    task = PartitionTask(0, log=log, clock=clock or ManualClock(), description=description, payloads=payloads)
    run = asyncio.create_task(task.run())
    try:
        yield task, log
    finally:
        run.cancel()
        await asyncio.wait([run], timeout=WAIT_S)
        await log.close()
        await store.close()
