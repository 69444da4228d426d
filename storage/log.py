"""Log: append a batch, replay, trim. All that broker/ sees of storage.

A log is a sequence of *frames*. A frame is one commit: it becomes durable as a whole or not at all, and holds
one or more *records*, each a kind (one byte, the caller's) and a body (opaque bytes).

Positions are logical byte positions in the log: frame headers count, segment headers do not, so the position
of every record of a commit is known before it is written (`Commit.add`), and stays the same however the log
is cut into files. Nothing here says that the log is a local file: a replicated log can stand behind the same
interface.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NewType, Protocol

Position = NewType("Position", int)
"""A logical byte position in one log. Once a frame is durable, its position never means anything else, also
not after a restart; a position whose commit failed may be given to another, which its epoch and the digest
chain tell apart."""

FRAME_HEADER_BYTES = 64
"""Bytes in front of the first record of a frame (`storage/record.py` draws them)."""

RECORD_HEADER_BYTES = 8
"""Bytes in front of a record's body: body length (u32), kind (u8), version (u8), reserved (u16)."""

RECORD_HEADER = struct.Struct("<IBBH")


class Commit:
    """The records of one commit while they are gathered. Made by `Log.begin`, given to `Log.append`, used
    once."""

    __slots__ = ("bytes", "parts", "start")

    def __init__(self, start: Position) -> None:
        self.start = start
        """Where the frame will stand."""
        self.parts: list[bytes] = []
        """Record headers and bodies, in order; the frame header is put in front by the log."""
        self.bytes = 0
        """The size of all parts."""

    def add(self, kind: int, body: Sequence[bytes], version: int = 1) -> int:
        """Append one record whose body is the concatenation of `body`; gives the body's offset from the
        frame's start."""
        length = 0
        for part in body:
            length += len(part)
        self.parts.append(RECORD_HEADER.pack(length, kind, version, 0))
        self.parts.extend(body)
        offset = FRAME_HEADER_BYTES + self.bytes + RECORD_HEADER_BYTES
        self.bytes += RECORD_HEADER_BYTES + length
        return offset

    def __bool__(self) -> bool:
        return bool(self.parts)


class Record(NamedTuple):
    """One record as it is replayed or fetched. A tuple, for a replay makes one for each record of the log."""

    kind: int
    version: int
    offset: int
    """Where the body begins, counted from the start of the frame."""
    body: memoryview


@dataclass(slots=True, frozen=True)
class Frame:
    """One commit as it is replayed or fetched; its checksum was verified."""

    position: Position
    data: bytes
    """The whole frame, header included: `data[offset:offset + size]` is what `Commit.add` and `Record.offset`
    speak of."""

    def records(self) -> list[Record]:
        """The records of the commit, in order."""
        view = memoryview(self.data)
        records: list[Record] = []
        offset, end = FRAME_HEADER_BYTES, len(view)
        while offset < end:
            length, kind, version, _ = RECORD_HEADER.unpack_from(view, offset)
            offset += RECORD_HEADER_BYTES
            records.append(Record(kind, version, offset, view[offset : offset + length]))
            offset += length
        assert offset == end, "the records of a verified frame fill it"
        return records


@dataclass(slots=True, frozen=True)
class Section:
    """One part of an owner's state, in blocks that are written apart from each other."""

    name: str
    """At most 24 bytes of ASCII; empty for the whole state in a checkpoint of format version 1."""
    version: int
    """Of the blocks' format, the owner's."""
    blocks: Mapping[int, bytes]
    """Each block's content by its number. To `save_checkpoint`: those that have changed, empty if there is no
    such block any more."""
    taken: Mapping[int, Position] = field(default_factory=dict, compare=False)
    """From `load_checkpoint`: the position of the checkpoint for which each block was written. It did not
    change between then and now."""


@dataclass(slots=True, frozen=True)
class Checkpoint:
    """The owner's state as of a position: replay goes on from there."""

    position: Position
    sections: tuple[Section, ...]


class RoomTurns(asyncio.Lock):
    """Who makes room on a full disk, of all logs that share it: held by the one that does.

    Each of the others comes back at a time of its own, so that few ask at a time, however many there are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._free_from_ms = 0

    def next_ms(self, earliest_ms: int, apart_ms: int) -> int:
        """When to come back, in monotonic time: not before `earliest_ms`, and `apart_ms` after whoever asked
        last."""
        time_ms = max(earliest_ms, self._free_from_ms)
        self._free_from_ms = time_ms + apart_ms
        return time_ms


class Log(Protocol):
    """One partition's log. Owned by one task.

    One `append` or `roll`, any number of `fetch`, and one of `save_checkpoint` and `trim` may be under way at
    the same time.
    """

    @property
    def end(self) -> Position:
        """Where the next frame will stand."""

    @property
    def start(self) -> Position:
        """The lowest position that was not trimmed."""

    @property
    def trim_points(self) -> Sequence[Position]:
        """Ascending, above `start`: the positions at which `trim` gives room back; between them it waits for
        the next.

        What a few live records keep in front of the first one can be appended again, and then trimmed
        (compaction).
        """

    @property
    def checkpoints(self) -> Sequence[Position]:
        """Where the checkpoints that can be used stand, newest first: at most two. The log can be trimmed up
        to the second."""

    @property
    def checkpoint_base(self) -> Position | None:
        """The checkpoint on which the next one builds: it needs the blocks that were changed by frames from
        this position on.

        None if it needs all blocks: there are not two checkpoints, or one of them is damaged or of an earlier
        format.
        """

    async def claim(self, epoch: int | None = None) -> int:
        """Open the log and become its owner; gives the epoch, higher than any before (epoch given: that one).

        Cuts off a torn tail and says so in the log output (durability rule 5). Raises CorruptRecord for
        damage that a crash cannot explain, Fenced if `epoch` is not higher than the last one, StorageError
        where the disk refuses.
        """

    async def load_checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint, with all its blocks, or None. A damaged one is reported, and does not
        count from then on.

        Raises CorruptRecord if the log was trimmed and no whole checkpoint is left, DiskFailed.
        """

    def replay(self, since: Position) -> AsyncIterator[Frame]:
        """Every frame from `since` (a frame's position, or `end`) on, in order, verified. Raises
        CorruptRecord, DiskFailed."""

    def begin(self) -> Commit:
        """A new, empty commit that will stand at `end`."""

    on_full: Callable[[], None]
    """Called in the event loop when the disk was found full: whoever owns the log gives back what it can. Not
    before `claim`."""

    @property
    def is_full(self) -> bool:
        """Whether the disk is short of room, so that only urgent commits are written."""

    @property
    def is_confined(self) -> bool:
        """Whether the disk has so little room that segments are shorter than the log's length asks for."""

    @property
    def making_room(self) -> RoomTurns:
        """Held by whoever makes room on a full disk. It belongs to all logs that share the disk: one makes
        room at a time."""

    async def room(self) -> int:
        """How many bytes a commit that `frees` would find, roughly. Raises DiskFailed."""

    async def append(self, commit: Commit, urgent: bool = False, *, frees: bool = False) -> None:
        """Make the commit durable. Only one at a time; `end` moves when it is.

        `urgent` commits (settlements: what gives room back in the end) may use the room kept in reserve for a
        full disk (durability rule 6). What `frees` room soon, trimming and compaction, may use the last of
        it. A commit that has begun is carried to its end also when the caller is cancelled. Raises
        CommitFailed (the log must be claimed anew, which gives up what this commit may have left on disk),
        DiskFull (nothing happened), Fenced.
        """

    async def fetch(self, positions: Sequence[Position]) -> list[Frame]:
        """The frames that stand at these positions, in the order asked for, verified. Raises CorruptRecord,
        DiskFailed."""

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep the checkpoint durably, in place of the older one of two. It holds what has changed since
        `checkpoint_base`.

        All that is not given is as it was. Raises StorageError; both checkpoints stay then, or the damaged
        one does not count any more.
        """

    async def roll(self) -> None:
        """Make `end` a trim point, unless nothing was appended since the last one. Raises as `append`."""

    async def trim(self, position: Position) -> None:
        """Nothing below `position` will be read again: what lies below the last trim point up to it is given
        back.

        What a replay from the older of two checkpoints would read is kept in any case, and everything while
        there are not two.
        """

    def fence(self) -> None:
        """The disk does not answer: what is under way has failed, however it ends. Its caller is to be
        cancelled next.

        A commit that was under way is never read, unless it had ended already: then `end` has moved. `claim`
        waits until all that was under way has ended. Nothing happens if nothing is.
        """

    async def close(self) -> None:
        """Finish what is under way and release the files. The log may be claimed again. Raises DiskFailed
        where `fence` was called."""


class EntityLogs(Protocol):
    """The logs of whole entities: which there are, and deleting them."""

    async def entities(self) -> list[str]:
        """The identifiers of all entities that have logs."""

    async def partitions(self, entity: str) -> list[int]:
        """The partitions of an entity that have a log, ascending: those ever claimed. Opens none. Raises
        DiskFailed."""

    async def is_without_logs(self, entity: str) -> bool:
        """Whether an entity has no log anywhere, for certain: every folder has answered. Raises DiskFailed
        when one has not."""

    async def missing(self) -> dict[str, list[int]]:
        """The partitions, by entity, that are known to have had a log and have none now. Opens no log. Raises
        DiskFailed."""

    async def delete(self, entity: str) -> None:
        """Delete all logs of an entity, durably. They must be closed."""

    async def close(self) -> None:
        """Stop the threads; every log was closed before."""


class LogStore(EntityLogs, Protocol):
    """All logs of a broker, and what they share: the disk, the committer's threads, the fsync policy."""

    def log(self, entity: str, partition: int) -> Log:
        """The log of one partition of an entity (`entity` is its generation identifier). Touches no file
        until claimed."""
