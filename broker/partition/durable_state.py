"""What a partition keeps durably beside its messages: one kind of state is one module. Pure.

Duplicate history, session state, cursors, transactions in doubt and ledgers of settlements all live in the
same way. A kind of state implements `DurableState` and adds itself to `KINDS`; nothing else in this package
has to know of it. Then

- *Records.* It has record kinds of its own. `Workspace.record` puts one into the commit and applies it; a
  replay applies it again, by the same method.
- *Checkpoints.* It is a section, in blocks. A block is marked with the position of the frame that changes it
  (`blocks.ChangedBlocks`), so a checkpoint writes only what has changed.
- *Trimming.* The log is trimmed up to the older of two checkpoints, wherever the state's records are. So the
  blocks hold everything, and the records only what has changed since. A state that refers to places in the
  log says from where on it needs them (`needed_from`).
- *Compaction* moves messages alone: records of states are garbage once two checkpoints stand behind them.
- *Salvage.* What a record does must not depend on an earlier one: it says what is true from then on. So a
  record lost in a damaged part of the log costs its own change, and no other. A log that is rebuilt begins
  with records that say everything (`as_records`).
- *Memory.* What it takes counts towards the partition's quota and the broker's memory (`state_bytes`).
- *A full disk.* Sends are undone and everything else is committed. A record that belongs to a send is undone
  with it (`undo`).
- *Time.* What ends at a time is forgotten without a record: time alone decides, and a replay reaches the same
  conclusion (`expire`). If something must happen on time although the partition is closed, `summary.Wake`
  needs a member for it.

Record kinds below 16 belong to messages (`records.py`). Kinds and names stay taken for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from broker.partition.records import UnreadableRecord
from storage.log import Position, Record

FIRST_KIND = 16
"""The lowest record kind that a state may have."""


class NewRecord(NamedTuple):
    """A record that is to be written."""

    kind: int
    body: bytes
    version: int = 1


def read_back(record: NewRecord) -> Record:
    """As a replay reads it. Its place in the frame means nothing: a state never refers to its own records."""
    return Record(record.kind, record.version, 0, memoryview(record.body))


class Section(Protocol):
    """One kind of durable state, as checkpoints hold it."""

    name: str
    """At most 24 bytes of ASCII."""
    version: int
    """The version of the blocks' format."""

    def changed_since(self, base: Position | None) -> Sequence[int]:
        """The blocks that frames from `base` on have changed or emptied; all blocks for None."""

    def encode(self, block: int) -> bytes:
        """A block as it is now; empty if nothing is left in it."""

    def decode(self, block: int, data: bytes) -> None:
        """Read a block into the state. Raises UnreadableRecord."""

    def decoded(self, taken: Mapping[int, Position]) -> Iterator[None]:
        """All blocks have been read. `taken`: the position of the checkpoint for which each was written.

        Works in steps of at most a millisecond.
        """

    def saved(self, gone: Sequence[int]) -> None:
        """A checkpoint in which these blocks no longer exist is durable."""

    def cost(self, base: Position | None) -> int:
        """An upper bound, in bytes and not far off, of what a checkpoint that builds on `base` writes."""

    def needed_from(self) -> Position | None:
        """The lowest position in the log that the section needs whatever the checkpoints hold; None if it
        needs none."""


class DurableState(Section, Protocol):
    """One kind of durable state beside the messages."""

    record_kinds: Collection[int]

    def apply(self, record: Record, position: Position) -> None:
        """Do what a record says; it stands in the frame at `position`, or will. Marks the blocks that it
        changes. Raises UnreadableRecord."""

    def undo(self, record: Record, position: Position) -> None:
        """The record was to be written with a send, which a full disk has refused: undo what `apply` did.
        Called in reverse order."""

    def as_records(self) -> Iterator[NewRecord]:
        """Everything, as records for a log that is written anew."""

    @property
    def state_bytes(self) -> int:
        """How much memory it takes. Asked once per batch and send, so it must be known, not counted."""

    def next_expiry_ms(self) -> int | None:
        """When `expire` has something to do, in wall time."""

    def expire(self, wall_ms: int, position: Position) -> None:
        """Forget what has ended. Marks the blocks that it changes with `position`, where the log ends."""

    def drop(self) -> Iterator[None]:
        """Free the memory in steps of at most a millisecond. Nobody uses the object any more."""

    def check(self) -> None:
        """Assert that everything adds up."""


KINDS: tuple[Callable[[], DurableState], ...] = ()
"""Every kind of state that a partition has. They are made, empty, with each `Messages`."""

T = TypeVar("T")


class DurableStates:
    """The states of one partition. Owned by its state machine."""

    __slots__ = ("_by_kind", "all")

    def __init__(self) -> None:
        self.all: tuple[DurableState, ...] = tuple(make() for make in KINDS)
        self._by_kind: dict[int, DurableState] = {}
        for state in self.all:
            assert not self._by_kind.keys() & set(state.record_kinds), "each record kind has one owner"
            assert min(state.record_kinds) >= FIRST_KIND
            self._by_kind |= dict.fromkeys(state.record_kinds, state)

    def of(self, kind: type[T]) -> T:
        """The state of this kind."""
        return next(state for state in self.all if isinstance(state, kind))

    def apply(self, record: Record, position: Position) -> None:
        """Have its owner do what a record says. Raises UnreadableRecord."""
        self._owner(record).apply(record, position)

    def undo(self, record: Record, position: Position) -> None:
        """Have its owner undo it."""
        self._owner(record).undo(record, position)

    def _owner(self, record: Record) -> DurableState:
        owner = self._by_kind.get(record.kind)
        if owner is None:
            raise UnreadableRecord(f"record kind {record.kind} is unknown to this release")
        return owner

    def as_records(self) -> Iterator[NewRecord]:
        """Everything, as records."""
        for state in self.all:
            yield from state.as_records()

    @property
    def bytes(self) -> int:
        """How much memory they take together."""
        total = 0
        for state in self.all:
            total += state.state_bytes
        return total

    def next_expiry_ms(self) -> int | None:
        """When `expire` has something to do, in wall time."""
        return min(
            (due_ms for state in self.all if (due_ms := state.next_expiry_ms()) is not None), default=None
        )

    def expire(self, wall_ms: int, position: Position) -> None:
        """Forget what has ended."""
        for state in self.all:
            state.expire(wall_ms, position)

    def drop(self) -> Iterator[None]:
        """Free the memory, in steps."""
        for state in self.all:
            yield from state.drop()

    def check(self) -> None:
        """Assert that everything adds up."""
        for state in self.all:
            state.check()
