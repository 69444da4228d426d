"""What the broker needs from the host that runs its partitions.

Everything that passes between the broker and a partition is plain data: operations and answers
(`broker/operations/`), what the partition reports about itself (its health, its counts), and its entries in
the index of partitions. So a partition may run beside the broker (`local.py`) or in another process
(`remote.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from broker.entities.descriptions import EntityDescription
from broker.identifiers import ClientId
from broker.operations.interface import Operation, Sink
from broker.operations.message_states import SubqueueCounts
from broker.operations.sending import Send
from broker.partition.meter import PartitionMeter
from broker.partition.rest import Register
from storage.log import EntityLogs
from storage.shared import Fsync


@dataclass(slots=True, frozen=True)
class HostFolder:
    """One data folder; its position in `HostSettings.folders` is its number."""

    path: str
    id: str
    """Empty if the broker has only one folder."""
    is_missing: bool


@dataclass(slots=True, frozen=True)
class HostSettings:
    """The settings that a broker's logs and partitions need."""

    folders: tuple[HostFolder, ...]
    unknown: str
    """A path that stands in for folders that are no longer known."""
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
    message_ids_max: int


class HostedPartition(Protocol):
    """One partition as the broker sees it."""

    available: bool
    """Whether it takes operations now, or will as soon as it is open. A plain attribute, because routers read
    it often."""

    @property
    def awaits_more(self) -> bool:
        """Whether it has nothing to do, or messages wait there for others to go with them. False if that is
        not known."""

    def join(self, more: Send, client: ClientId, cookie: object) -> bool:
        """As in `RoutedPartition`. False if it is in another process, where nothing tells what waits."""

    @property
    def health(self) -> str:
        """The partition's state, as people read it."""

    def counts(self, only: str | None = None) -> dict[str, SubqueueCounts]:
        """Message counts by subqueue, or at least of one of them, as of the last answer that it gave."""

    def size(self) -> int:
        """What all subqueues hold together, in bytes, as of the same answer."""

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        """Put an operation into the partition's mailbox. Never blocks, never drops."""

    async def opened(self) -> None:
        """Return once the log is open or opening it has failed."""

    async def stop(self, *, is_deleted: bool = False) -> None:
        """Finish the commit under way and close the log. If the queue is about to be deleted, save nothing
        more. Safe to call twice."""


class PartitionHost(EntityLogs, Protocol):
    """Runs partitions and owns their logs."""

    catalogue_pool: Executor
    """A thread for the catalogue, which the broker's own process writes."""
    index_pools: Sequence[Executor]
    """A thread for the index of partitions in each folder, by the folder's number."""

    async def open(self) -> None:
        """Start the host. Call this before anything else. Raises OSError if another process cannot be
        started."""

    def start(
        self, description: EntityDescription, number: int, meter: PartitionMeter, register: Register
    ) -> HostedPartition:
        """Start a partition. Its log is opened on first use."""

    def wake(self) -> None:
        """Make all partitions check the clock again after a suspend."""

    def folder_states(self) -> Sequence[str]:
        """The state of each data folder, by number: one of `storage.file_store.FolderState`."""

    @property
    def waiting_bytes(self) -> int:
        """Memory that waiting messages and open partitions take, by the partitions' own count."""

    @property
    def opening_bytes(self) -> int:
        """Memory that partitions will take soon, because they are being opened."""

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the process that runs the partitions; 0 if that is this process."""

    def set_scarce(self, is_scarce: bool) -> None:
        """Tell the partitions whether memory is scarce."""

    def set_memory_room(self, size: int, used: int, mark: int) -> None:
        """Tell the partitions the memory in use, the mark, and how far it is to the mark with what has been
        admitted and is expected (`size`), in bytes."""
