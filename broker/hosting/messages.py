"""Messages between the broker and a process that runs its partitions, besides operations and answers.

The broker sends `Configure` first, and the partitions' process sends `Ready` first. A request carries a
number, and its `Done` carries the same number; each side numbers its own requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.entities.descriptions import EntityDescription
from broker.hosting.host import HostSettings
from broker.identifiers import ClientId
from broker.operations.interface import Answer, Operation
from broker.operations.message_states import SubqueueCounts
from broker.settings.settings import LogFormat, LogLevel


@dataclass(slots=True)
class Request:
    """A message that the other side answers with `Done`, under the same number."""

    request: int


@dataclass(slots=True)
class EntityRequest(Request):
    """A request about the logs of one entity."""

    entity: str


@dataclass(slots=True)
class PartitionRequest(Request):
    """A request about one partition."""

    partition: int


# --- to the partitions --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Configure:
    """The first message: open the data folders with these settings. Answered with `Ready`."""

    settings: HostSettings
    log_format: LogFormat | None
    log_level: LogLevel


@dataclass(slots=True)
class Start:
    """Start a partition."""

    partition: int
    """The number by which the two processes know the partition; the broker gives it to one partition only."""
    number: int
    """The partition's number within the queue."""
    description: EntityDescription
    summary: bytes | None
    """What the index says the partition holds (`broker/partition/summary.py`); None if unknown."""
    expected_bytes: int
    """What its messages are expected to take in memory once it is open, in bytes."""


@dataclass(slots=True)
class Post:
    """A client's operation. Its cookie is a number that comes back with the answer."""

    partition: int
    client: ClientId
    operation: Operation


@dataclass(slots=True)
class OpenPartition(PartitionRequest):
    """Open the partition's log if it is not open. Done once it is open or opening has failed."""


@dataclass(slots=True)
class StopPartition(PartitionRequest):
    """Finish the commit under way and close the log."""

    is_deleted: bool


@dataclass(slots=True)
class Forget:
    """The partition has stopped; nothing more is posted to it."""

    partition: int


@dataclass(slots=True)
class ListEntities(Request):
    """See `storage.log.EntityLogs.entities`. Done with the entities."""


@dataclass(slots=True)
class ListPartitions(EntityRequest):
    """See `EntityLogs.partitions`. Done with the numbers under the entity's name."""


@dataclass(slots=True)
class ListMissing(Request):
    """See `EntityLogs.missing`. Done with the numbers by entity."""


@dataclass(slots=True)
class FindLogs(EntityRequest):
    """See `EntityLogs.is_without_logs`. Done with the entity if it has logs, else with nothing."""


@dataclass(slots=True)
class DeleteLogs(EntityRequest):
    """See `EntityLogs.delete`."""


@dataclass(slots=True)
class Close(Request):
    """All partitions have stopped: close the data folders, then end."""


@dataclass(slots=True)
class KeepRoom:
    """See `EntityLogs.keep_room`."""

    entity: str
    needs: dict[int, tuple[int, int]]
    """Lasting and passing, by partition."""
    folder: int


@dataclass(slots=True)
class LookAtClock:
    """The machine was suspended: all partitions check the clock again."""


@dataclass(slots=True)
class MemoryScarce:
    """Memory has become scarce, or is no longer scarce."""

    is_scarce: bool


@dataclass(slots=True)
class MemoryRoom:
    """How far the memory in use is from the mark, in bytes (`PartitionHost.set_memory_room`)."""

    size: int
    used: int
    mark: int


# --- to the broker ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ready:
    """The settings have been applied."""


@dataclass(slots=True)
class Answered:
    """An answer for a client."""

    partition: int
    client: ClientId
    answer: Answer


@dataclass(slots=True)
class Detached:
    """The client's `Detach` was carried out; it gets no more answers."""

    partition: int
    client: ClientId


@dataclass(slots=True)
class Status:
    """A partition's report about itself, sent when it changes and before the answers of the same commit.

    It does not grow with the subscriptions of a topic that nothing has happened to.
    """

    partition: int
    health: str
    available: bool
    size: int
    """What all subqueues hold together, in bytes."""
    counts: dict[str, SubqueueCounts]
    """By subqueue: those that may have changed since the last report."""
    is_whole: bool
    """Whether `counts` has all subqueues; earlier reports say nothing any more. So it is at first, when the
    partition is opened, goes down or is closed, and when subqueues were deleted."""


@dataclass(slots=True)
class IndexOpening(PartitionRequest):
    """The partition is about to be opened or changed: enter that in the index. Answered with `Done`."""


@dataclass(slots=True)
class IndexClosed:
    """The partition was closed cleanly or came to rest: enter what it holds."""

    partition: int
    summary: bytes


@dataclass(slots=True)
class Counted:
    """What a partition has done since the last such message, for the metrics."""

    partition: int
    commits: list[tuple[int, int, float]] = field(default_factory=list)
    """Records, bytes and seconds of each commit."""
    commit_failures: int = 0
    restarts: int = 0
    dead_lettered: int = 0
    expired_messages: int = 0
    expired_locks: int = 0


@dataclass(slots=True)
class MemoryUsed:
    """What waiting messages take by the partitions' count, what partitions that are being opened will take,
    and the memory of their process without the program itself, in bytes."""

    waiting: int
    opening: int
    resident: int


@dataclass(slots=True)
class FolderStates:
    """The state of each data folder, by number (`storage.file_store.FolderState`)."""

    states: list[str]


@dataclass(slots=True)
class PartFailed:
    """A background task of the storage has died: the broker must stop."""

    name: str
    error: str


# --- both ways ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Done:
    """The answer to a request."""

    request: int
    found: dict[str, list[int]] = field(default_factory=dict)
    """The result, by entity."""
    error: str | None = None
    """The name of the error; None unless the request failed."""
    message: str = ""
    """The text of the error."""


ToPartitions = (
    Configure | Start | Post | OpenPartition | StopPartition | Forget | ListEntities | ListPartitions
    | ListMissing | FindLogs | DeleteLogs | Close | LookAtClock | MemoryScarce | MemoryRoom | KeepRoom | Done
)  # fmt: skip
ToBroker = (
    Ready | Answered | Detached | Status | IndexOpening | IndexClosed | Counted | MemoryUsed | FolderStates
    | PartFailed | Done
)  # fmt: skip
