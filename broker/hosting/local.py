"""Partitions in this host's own process: their logs, their tasks, and what they share."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice
from pathlib import Path
from typing import Any

from broker.base.clock import Clock
from broker.base.slices import LONG_SLICE_S, STEPS_SLICE_S, Slices
from broker.entities.descriptions import EntityDescription
from broker.hosting.host import HostFolder, HostSettings
from broker.partition.cycle_bounds import Bounds
from broker.partition.meter import PartitionMeter
from broker.partition.opening_room import OpeningRoom
from broker.partition.openings import Openings
from broker.partition.payloads import PayloadBudget
from broker.partition.rest import Register
from broker.partition.rounds import Rounds
from broker.partition.task import PartitionTask
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from storage.disk import Disk
from storage.file_store import FileLogStore
from storage.spread_store import SpreadStore, place
from storage.threads import OwnerFailed

TAIL_BYTES_AT_STOP = 16 * 1024
"""To replay this much of a log takes no longer than to read a checkpoint. To write one takes two milliseconds
or more, and a broker may stop with thousands of partitions."""

PARTITION_BYTES = 15 * 1024
"""The least that an open partition takes besides its messages, and gives back when it is closed."""
LOOKED_AT_ONCE = 64
CLOSED_AT_ONCE = 4
"""While memory is scarce, one turn of the event loop looks at so many partitions, and has so many unused ones
close: each takes up to a millisecond."""
LOOK_S = 0.01
"""The time between two such turns: 10,000 partitions are closed within half a minute."""
LOOK_AGAIN_S = 0.5
"""The time until all partitions are looked at again."""

Spawn = Callable[[Coroutine[Any, Any, None], str], object]
"""Runs a coroutine as a task of this name."""


class LocalHost(SpreadStore):
    """See `broker.hosting.host.PartitionHost`. Owned by the event loop."""

    resident_bytes = 0

    def __init__(
        self, settings: HostSettings, disk: Disk, clock: Clock, *, spawn: Spawn, failed: OwnerFailed
    ) -> None:
        """`failed` is called if a background task of the storage dies."""
        self._clock, self._spawn, self._failed = clock, spawn, failed
        stores = [self._make_store(settings, folder, disk) for folder in settings.folders]
        unknown = HostFolder(settings.unknown, "unknown", is_missing=True)
        super().__init__(
            stores,
            self._make_store(settings, unknown, disk),
            missing=[number for number, folder in enumerate(settings.folders) if folder.is_missing],
            timeout_ms=settings.disk_timeout_ms,
        )
        self.catalogue_pool: Executor = stores[0].pools.catalogue
        self.index_pools: Sequence[Executor] = [store.pools.index for store in stores]
        self.payloads = PayloadBudget(settings.payload_memory_bytes)
        opening = Slices(LONG_SLICE_S)
        self._opening = [opening.for_another_disk() for _ in stores]
        """Time slices for opening, recovering and forgetting partitions, by the number of their folder."""
        self._opening_room = OpeningRoom(in_partitions=lambda: self.payloads.state_bytes)
        self._openings = [Openings(room=self._opening_room) for _ in stores]
        """Their turns to be opened, by the number of their folder as well."""
        self._turns = Slices(STEPS_SLICE_S)
        """Time slices for operations of partitions that take several steps."""
        self._rounds: weakref.WeakValueDictionary[str, Rounds] = weakref.WeakValueDictionary()
        """The rounds of each entity with started partitions, by its generation."""
        self._limits = TaskLimits(
            disk_timeout_ms=settings.disk_timeout_ms,
            rest_ms=settings.log_idle_ms if settings.fsync == "always" else None,
            upkeep=UpkeepLimits(
                checkpoint_bytes=settings.checkpoint_bytes, tail_bytes_at_stop=TAIL_BYTES_AT_STOP
            ),
            bounds=Bounds(message_ids_max=settings.message_ids_max),
        )
        self._tasks: weakref.WeakSet[PartitionTask] = weakref.WeakSet()
        """All started partitions that are still referenced."""
        self._closing: asyncio.TimerHandle | None = None
        """Set while memory is scarce: when to look next for partitions to close."""

    def _make_store(self, settings: HostSettings, folder: HostFolder, disk: Disk) -> FileLogStore:
        folders = len(settings.folders)
        return FileLogStore(
            Path(folder.path),
            disk,
            open_files_max=max(1, settings.open_files_max // folders),
            open_segments_max=max(1, settings.open_segments_max // folders),
            segment_idle_ms=settings.log_idle_ms,
            fsync=settings.fsync,
            fsync_interval_ms=settings.fsync_interval_ms,
            segment_bytes_max=settings.segment_bytes,
            committer_threads=settings.committer_threads,
            identity=folder.id,
            failed=self._failed,
        )

    async def open(self) -> None:
        """Begin to look whether the folders are there. Stores open their folders on first use."""
        self.keep_looking()

    def start(
        self,
        description: EntityDescription,
        number: int,
        meter: PartitionMeter,
        register: Register,
        changed: Callable[[], None] | None = None,
    ) -> PartitionTask:
        """See `PartitionHost.start`. `changed` is called in the event loop whenever the partition's health
        or counts change."""
        folder = place(description.generation, number, description.folders)
        partition = PartitionTask(
            number,
            log=self.log(description.generation, number, description.folders),
            clock=self._clock,
            description=description,
            payloads=self.payloads,
            limits=self._limits,
            on_health=None if changed is None else lambda *_: changed(),
            on_counts=changed,
            meter=meter,
            slices=self._opening[folder % len(self._opening)],
            turns=self._turns,
            register=register,
            rounds=self._rounds.setdefault(description.generation, Rounds()),
            openings=self._openings[folder % len(self._openings)],
        )
        self._tasks.add(partition)
        self._spawn(partition.run(), f"partition {description.name}/{number}")
        return partition

    def wake(self) -> None:
        for partition in list(self._tasks):
            partition.wake()

    @property
    def waiting_bytes(self) -> int:
        payloads = self.payloads
        return payloads.state_bytes + payloads.used + PARTITION_BYTES * payloads.partitions

    @property
    def opening_bytes(self) -> int:
        return self._opening_room.under_way

    def set_scarce(self, is_scarce: bool) -> None:
        self.payloads.set_scarce(is_scarce)
        if is_scarce and self._closing is None and self._limits.rest_ms is not None:
            self._close_unused(iter(()))

    def _close_unused(self, tasks: Iterator[PartitionTask]) -> None:
        """While memory is scarce, close partitions that nobody uses and that hold nothing new, a few at a
        time."""
        self._closing = None
        if not self.payloads.is_scarce:
            return
        looked_at = closed = 0
        for task in islice(tasks, LOOKED_AT_ONCE):
            looked_at += 1
            closed += task.close_if_unused()
            if closed == CLOSED_AT_ONCE:
                break
        delay_s = LOOK_S
        if not looked_at:
            tasks, delay_s = iter(list(self._tasks)), LOOK_AGAIN_S
        self._closing = asyncio.get_running_loop().call_later(delay_s, self._close_unused, tasks)

    def set_memory_room(self, size: int, used: int, mark: int) -> None:
        self.payloads.set_room(size)
        self._opening_room.measured(used, mark)
