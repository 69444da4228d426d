"""Bytes written to checkpoints while messages pass through a partition in which many others wait.

Uses a partition of the broker on real files, without clients; the disk counts the bytes written to
checkpoints. Knows no figures.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from broker.base.clock import SystemClock
from broker.entities.descriptions import MAIN, QueueDescription
from broker.identifiers import ClientId
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete
from broker.partition.payloads import PayloadBudget
from broker.partition.task import PartitionTask
from storage.disk import LocalDisk
from storage.file_store import FileLogStore

MIB = 1 << 20
WAITING_BODY = b"abc"
"""Body of the waiting messages: checkpoints contain no bodies, so a small one gives the same figure in less
time.
"""
PASSING_BODY_BYTES = 1_024
BATCH = 1_000
INTERVAL_BYTES = 64 * MIB
"""Traffic between two checkpoints, by default."""
_CLIENT = ClientId(1)
_WAIT_S = 60


class CountingDisk(LocalDisk):
    """Counts the bytes written to checkpoints."""

    def __init__(self) -> None:
        self.checkpoint_bytes = 0
        self._fds: set[int] = set()

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self._fds.discard(fd)
        if ".checkpoint" in path.name:
            self._fds.add(fd)
        return fd

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        written = super().write(fd, buffers, offset)
        if fd in self._fds:
            self.checkpoint_bytes += written
        return written

    def close(self, fd: int) -> None:
        self._fds.discard(fd)
        super().close(fd)


def checkpoint_mib(folder: Path, waiting: int, intervals: int) -> float:
    """MiB written to checkpoints for each 64 MiB of log, with `waiting` messages waiting, averaged over
    `intervals` intervals.
    """
    root = Path(tempfile.mkdtemp(prefix="checkpoints-", dir=folder))
    try:
        return asyncio.run(_measure(root, waiting, intervals))
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def _measure(root: Path, waiting: int, intervals: int) -> float:
    disk, description = CountingDisk(), QueueDescription("bench", "b" * 32, 1)
    store = FileLogStore(root, disk, fsync="never")
    log = store.log(description.generation, 0)
    task = PartitionTask(
        0, log=log, clock=SystemClock(), description=description, payloads=PayloadBudget(64 * MIB, 0)
    )
    run = asyncio.create_task(task.run())
    for _ in range(waiting // BATCH):
        await _ask(task, Send([WAITING_BODY] * BATCH, None))
    for _ in range(3):  # both checkpoints contain the waiting messages before counting begins
        await _pass(task, INTERVAL_BYTES)
    counted, began = disk.checkpoint_bytes, log.end
    await _pass(task, intervals * INTERVAL_BYTES)
    found = (disk.checkpoint_bytes - counted) / (log.end - began) * INTERVAL_BYTES / MIB
    await task.stop()
    await run
    await store.close()
    return found


async def _pass(task: PartitionTask, size: int) -> None:
    """Send `size` bytes, and complete as many messages, oldest first."""
    for _ in range(size // (BATCH * PASSING_BODY_BYTES)):
        await _ask(task, Send([bytes(PASSING_BODY_BYTES)] * BATCH, None))
        locked = await _ask(task, Demand(MAIN, BATCH))
        assert isinstance(locked, Locked)
        await _ask(task, Complete(locked.tokens))


async def _ask(task: PartitionTask, operation: Operation) -> Answer:
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    task.post(operation, _CLIENT, lambda answer: None if answered.done() else answered.set_result(answer))
    answer = await asyncio.wait_for(answered, _WAIT_S)
    assert not isinstance(operation, Send) or isinstance(answer, Sent)
    return answer
