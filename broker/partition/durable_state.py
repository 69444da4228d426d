"""What a partition keeps durably beside its messages. Each kind of state is one module. Pure.

Duplicate history, session state, cursors, transactions in doubt and settlement ledgers all follow the same
pattern. A kind of state implements `DurableState` and gets an entry in `KINDS` (`state_kinds.py`); nothing
else in this package needs to know about it. The rules are:

- *Records.* A state has record kinds of its own. `Workspace.record` adds a record to the commit and applies
  it. Replay applies it with the same method.
- *Checkpoints.* A state is a section, divided into blocks. Each block is marked with the position of the
  frame that changes it (`blocks.ChangedBlocks`), so a checkpoint writes only changed blocks.
- *Trimming.* The log is trimmed up to the older of two checkpoints, even if that removes records of the
  state. So the blocks hold everything, and the records hold only what changed since. A state that refers to
  places in the log gives the lowest position it needs (`needed_from`).
- *Compaction* moves only messages. Records of states become garbage once two checkpoints follow them.
- *Salvage.* The effect of a record must not depend on an earlier record: it says what is true from then on.
  So a record lost to damage in the log costs only its own change. A rebuilt log begins with records of the
  complete state (`as_records`).
- *Memory.* The memory of a state counts towards the partition's quota and the broker's memory
  (`state_bytes`).
- *A full disk.* Sends are undone and everything else is committed. A record that belongs to a send is undone
  with it (`undo`).
- *Time.* What ends at a certain time is forgotten without a record, by time alone, so a replay reaches the
  same result (`expire`). If something must happen on time even while the partition is closed, add a member to
  `summary.Wake`.

Record kinds below 16 belong to messages (`records.py`). Kinds and names are never reused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from broker.partition.block_content import Content, content_of
from storage.log import Block, Position, Record

FIRST_KIND = 16
"""The lowest record kind that a state may have."""


class NewRecord(NamedTuple):
    """A record to write."""

    kind: int
    body: bytes
    version: int = 1


def read_back(record: NewRecord) -> Record:
    """The record as replay reads it. Its place in the frame does not matter, because a state never refers to
    its own records."""
    return Record(record.kind, record.version, 0, memoryview(record.body))


class Section(Protocol):
    """One kind of durable state, as stored in checkpoints."""

    name: str
    """At most 24 bytes of ASCII."""
    version: int
    """The version of the blocks' format."""

    def changed_since(self, base: Position | None) -> Sequence[int]:
        """The blocks that frames from `base` on changed or emptied; all blocks if it is None."""

    def encode(self, block: int) -> Block:
        """Encode the current content of a block; empty if the block is empty."""

    def decode(self, block: int, data: bytes) -> None:
        """Decode a block into the state. Raises UnreadableRecord."""

    def decoded(self, taken: Mapping[int, Position]) -> Iterator[None]:
        """Finish loading, once all blocks have been decoded. `taken`: the position of the checkpoint that
        each was written for.

        Works in steps of at most a millisecond.
        """

    def saved(self, gone: Sequence[int]) -> None:
        """A checkpoint without these emptied blocks is durable."""

    def cost(self, base: Position | None) -> int:
        """A close upper bound, in bytes, on what a checkpoint that builds on `base` writes."""

    def needed_from(self) -> Position | None:
        """The lowest log position that the section needs, whatever the checkpoints hold; None if none."""


class DurableState(Section, Protocol):
    """One kind of durable state beside the messages."""

    record_kinds: Collection[int]

    def apply(self, record: Record, position: Position) -> None:
        """Apply a record in the frame at `position`, which may not be written yet. Marks the blocks that
        change. Raises UnreadableRecord."""

    def undo(self, record: Record, position: Position) -> None:
        """Undo what `apply` did. The record belongs to a send that a full disk has refused. Called in reverse
        order."""

    def as_records(self) -> Iterator[NewRecord]:
        """The complete state, as records for a rebuilt log."""

    @property
    def state_bytes(self) -> int:
        """Memory used, in bytes. Read once per cycle and send, so keep a running total."""

    def drop(self) -> Iterator[None]:
        """Free the memory in steps of at most a millisecond. The object is no longer in use."""

    def check(self) -> None:
        """Assert that all invariants hold."""


class InLargeBlocks(ABC):
    """A section whose blocks may take megabytes."""

    @abstractmethod
    def decode_steps(self, block: int, content: Content) -> Iterator[None]:
        """Decode a block into the state. A step takes about a millisecond. Raises UnreadableRecord; part of
        the block is in the state then."""

    def decode(self, block: int, data: bytes) -> None:
        """See `Section`."""
        deque(self.decode_steps(block, content_of(data)), maxlen=0)


class Ending(ABC):
    """A kind of durable state whose entries end by themselves."""

    ends: list[tuple[int, Any]]
    """A heap of the times at which entries end, in wall time, each with what ends then. Some of that may have
    been replaced since."""

    @abstractmethod
    def expire(self, wall_ms: int, position: Position) -> None:
        """Forget what has ended, some at a time. Marks the changed blocks with `position`, the end of the
        log."""

    def clock_set(self, by_ms: int) -> None:  # noqa: B027 - a kind whose entries are dates has nothing to do
        """The wall clock was set by so much, negative if back. Move the ends of entries that last for a
        duration along with it."""
