"""What the broker needs of the place where its partitions run.

Everything that passes between the broker and a partition is plain data: operations and answers
(`broker/operations.py`), what the partition says of itself (its health, its counts), and its entries in the
index of partitions. So a partition may run beside the broker (`local.py`) or in another process
(`remote.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from broker.entities.descriptions import QueueDescription
from broker.operations import ClientId, Operation, Sink, SubqueueCounts
from broker.partition.idle import Register
from broker.partition.task import PartitionMeter
from storage.file_log import Fsync
from storage.log import EntityLogs


@dataclass(slots=True, frozen=True)
class HostFolder:
    """One data folder; its place in `HostSettings.folders` is its number."""

    path: str
    id: str
    """Empty for the only folder of a broker."""
    is_missing: bool


@dataclass(slots=True, frozen=True)
class HostSettings:
    """What the logs and partitions of a broker need of its settings."""

    folders: tuple[HostFolder, ...]
    unknown: str
    """A path that stands for folders that nobody knows any more."""
    open_files_max: int
    """Log files open for reading at a time, over all folders."""
    open_segments_max: int
    """Log files open for writing at a time, over all folders."""
    log_idle_ms: int
    fsync: Fsync
    fsync_interval_ms: int
    segment_bytes: int
    committer_threads: int
    checkpoint_bytes: int
    disk_timeout_ms: int
    payload_memory_bytes: int


class HostedPartition(Protocol):
    """One partition as the broker sees it."""

    available: bool
    """It takes operations now, or will as soon as it is open. An attribute: routers ask often."""

    @property
    def health(self) -> str:
        """Its state, as people read it."""

    def counts(self) -> dict[str, SubqueueCounts]:
        """What it holds, by subqueue, as of the last answer that it gave."""

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        """Put an operation into its mailbox. Never blocks, never drops."""

    async def opened(self) -> None:
        """Return once the log was opened, or could not be."""

    async def stop(self, *, is_deleted: bool = False) -> None:
        """Finish the commit under way, close the log; save nothing more if it is about to be deleted. Safe to
        call twice."""


class PartitionHost(EntityLogs, Protocol):
    """Runs partitions, and owns their logs."""

    catalogue_lane: Executor
    """A thread for the catalogue, which the broker's own process writes …"""
    index_lanes: Sequence[Executor]
    """… and one for the index in each folder."""

    async def open(self) -> None:
        """Begin to work; comes before everything else. Raises OSError where another process cannot be
        started."""

    def start(
        self, description: QueueDescription, number: int, meter: PartitionMeter, register: Register
    ) -> HostedPartition:
        """Bring a partition to life. Its log is opened when it is first used."""

    def wake(self) -> None:
        """Have all partitions look at the clock again after a suspend."""

    def folder_states(self) -> Sequence[str]:
        """How each data folder is, by number: one of `storage.file_store.FolderState`."""

    @property
    def waiting_bytes(self) -> int:
        """What waiting messages take of the memory, by the partitions' own count."""

    @property
    def resident_bytes(self) -> int:
        """The resident memory of another process that the partitions run in; 0 if they run in this one."""

    def set_scarce(self, is_scarce: bool) -> None:
        """Memory is scarce from now on, or is not any more."""
