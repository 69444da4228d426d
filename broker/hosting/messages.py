"""What passes between the broker and a process that runs its partitions, beside operations and answers.

To the partitions: `Configure` first, then everything else. To the broker: `Ready` first. A request carries a
number, and its `Done` carries the same one; requests of both sides are numbered apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.entities.descriptions import QueueDescription
from broker.hosting.host import HostSettings
from broker.operations import Answer, ClientId, Operation, SubqueueCounts
from broker.settings.settings import LogFormat, LogLevel

# --- to the partitions --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Configure:
    """The first message: open the data folders with these settings. Answered with `Ready`."""

    settings: HostSettings
    log_format: LogFormat | None
    log_level: LogLevel


@dataclass(slots=True)
class Start:
    """Bring a partition to life."""

    partition: int
    """Its number between the two processes, given by the broker and used for one partition only."""
    number: int
    """Its number within the queue."""
    description: QueueDescription
    summary: bytes | None
    """What the index says it holds (`broker/partition/summary.py`); None if that is not known."""


@dataclass(slots=True)
class Post:
    """An operation of a client. Its cookie is a number, and comes back with the answer."""

    partition: int
    client: ClientId
    operation: Operation


@dataclass(slots=True)
class OpenPartition:
    """Open the partition's log if it was not. Done once it is open, or could not be opened."""

    request: int
    partition: int


@dataclass(slots=True)
class StopPartition:
    """Finish the commit under way, and close the log."""

    request: int
    partition: int
    is_deleted: bool


@dataclass(slots=True)
class Forget:
    """A partition that has stopped: nothing more is posted to it."""

    partition: int


@dataclass(slots=True)
class ListEntities:
    """See `storage.log.EntityLogs.entities`. Done with the entities."""

    request: int


@dataclass(slots=True)
class ListPartitions:
    """See `EntityLogs.partitions`. Done with the numbers under the entity's name."""

    request: int
    entity: str


@dataclass(slots=True)
class ListMissing:
    """See `EntityLogs.missing`. Done with the numbers by entity."""

    request: int


@dataclass(slots=True)
class FindLogs:
    """See `EntityLogs.is_without_logs`. Done with the entity if it has logs, else with nothing."""

    request: int
    entity: str


@dataclass(slots=True)
class DeleteLogs:
    """See `EntityLogs.delete`."""

    request: int
    entity: str


@dataclass(slots=True)
class Close:
    """All partitions have stopped: close the data folders, and end once that is done."""

    request: int


@dataclass(slots=True)
class LookAtClock:
    """The machine was suspended: all partitions look at the clock again."""


@dataclass(slots=True)
class MemoryScarce:
    """Memory is scarce from now on, or is not any more."""

    is_scarce: bool


# --- to the broker ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ready:
    """The settings were taken."""


@dataclass(slots=True)
class Answered:
    """An answer for a client."""

    partition: int
    client: ClientId
    answer: Answer


@dataclass(slots=True)
class Detached:
    """The client's `Detach` was served: no answer for it follows."""

    partition: int
    client: ClientId


@dataclass(slots=True)
class Status:
    """What a partition says of itself: sent when it has changed, before the answers of the same commit."""

    partition: int
    health: str
    available: bool
    counts: dict[str, SubqueueCounts]
    """By subqueue."""


@dataclass(slots=True)
class IndexOpening:
    """The partition is about to be opened, or to change: enter that in the index. Answered with `Done`."""

    request: int
    partition: int


@dataclass(slots=True)
class IndexClosed:
    """The partition was closed in good order, or came to rest: enter what it holds."""

    partition: int
    summary: bytes


@dataclass(slots=True)
class Counted:
    """What a partition has done since the last such message, for the metrics."""

    partition: int
    commits: list[tuple[int, int, float]] = field(default_factory=list)
    """For each commit: records, bytes, seconds."""
    commit_failures: int = 0
    restarts: int = 0
    dead_lettered: int = 0
    expired_messages: int = 0
    expired_locks: int = 0


@dataclass(slots=True)
class MemoryUsed:
    """What waiting messages take by the partitions' count, and the memory of their process, in bytes."""

    waiting: int
    resident: int


@dataclass(slots=True)
class FolderStates:
    """How each data folder is, by number (`storage.file_store.FolderState`)."""

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
    """What was asked for, by entity."""
    error: str | None = None
    """The name of the error, where the request failed …"""
    message: str = ""
    """… and what it says."""


ToPartitions = (
    Configure | Start | Post | OpenPartition | StopPartition | Forget | ListEntities | ListPartitions
    | ListMissing | FindLogs | DeleteLogs | Close | LookAtClock | MemoryScarce | Done
)  # fmt: skip
ToBroker = (
    Ready | Answered | Detached | Status | IndexOpening | IndexClosed | Counted | MemoryUsed | FolderStates
    | PartFailed | Done
)  # fmt: skip
