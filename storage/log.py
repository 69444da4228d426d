"""Log: append a commit, replay, trim. All that broker/ sees of storage.

A log is a sequence of *frames*. A frame is one commit: it becomes durable as a whole or not at all, and holds
one or more *records*, each a kind (one byte, the caller's) and a body (opaque bytes).

Positions are logical byte positions in the log. Frame headers count, segment headers do not. So the position
of every record of a commit is known before it is written (`Commit.add`), and it does not depend on how the
log is divided into files. Nothing here says that the log is a local file: a replicated log can implement the
same interface.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from typing import NamedTuple, NewType, Protocol

Position = NewType("Position", int)
"""A logical byte position in one log. Once a frame is durable, its position never means anything else, even
after a restart. The position of a failed commit may be used again; the epoch and the digest chain tell the
two frames apart."""

FRAME_HEADER_BYTES = 64
"""Bytes in front of the first record of a frame (`storage/record.py` draws them)."""

RECORD_HEADER_BYTES = 8
"""Bytes in front of a record's body: body length (u32), kind (u8), version (u8), reserved (u16)."""

RECORD_HEADER = struct.Struct("<IBBH")

PIECE_BYTES_MIN = 8 * 1024
"""Smaller parts of a commit are joined: copying them costs less than writing each by itself."""


class Commit:
    """Collects the records of one commit. Made by `Log.begin`, passed to `Log.append`, used once."""

    __slots__ = ("bytes", "grows_by", "parts", "start")

    def __init__(self, start: Position) -> None:
        self.start = start
        """The position at which the frame will begin."""
        self.parts: list[bytes] = []
        """Record headers and bodies, in order. The log adds the frame header."""
        self.bytes = 0
        """The total size of all parts."""
        self.grows_by = 0
        """How many bytes that stay it adds to what must be kept, apart from new messages and from what
        `Log.take_growth` has allowed. It may not use the whole reserve for settlements."""

    def add(self, kind: int, body: Sequence[bytes], version: int = 1) -> int:
        """Append one record whose body is the concatenation of `body`; gives the body's offset from the
        start of the frame."""
        length = sum(map(len, body))
        self.parts.append(RECORD_HEADER.pack(length, kind, version, 0))
        self.parts.extend(body)
        offset = FRAME_HEADER_BYTES + self.bytes + RECORD_HEADER_BYTES
        self.bytes += RECORD_HEADER_BYTES + length
        return offset

    def pieces(self) -> list[bytes]:
        """All parts in order, in few pieces: large parts as they are, the others joined."""
        if self.bytes < PIECE_BYTES_MIN // 4 * len(self.parts):  # not worth a look at each of them
            return [b"".join(self.parts)]
        pieces: list[bytes] = []
        small: list[bytes] = []
        for part in self.parts:
            if len(part) < PIECE_BYTES_MIN:
                small.append(part)
                continue
            if small:
                pieces.append(b"".join(small))
                small = []
            pieces.append(part)
        return [*pieces, b"".join(small)] if small else pieces

    def __bool__(self) -> bool:
        return bool(self.parts)


class Record(NamedTuple):
    """One replayed or fetched record. A tuple, because a replay makes one for each record of the log."""

    kind: int
    version: int
    offset: int
    """Where the body begins, in bytes from the start of the frame."""
    body: memoryview


@dataclass(slots=True, frozen=True)
class Frame:
    """One replayed or fetched commit; its checksums have been verified."""

    position: Position
    data: bytes
    """The frame from its byte `start` on."""
    start: int = 0
    """0 if `data` is the whole frame, FRAME_HEADER_BYTES if it is the frame without its header."""

    @property
    def size(self) -> int:
        """The size of the whole frame."""
        return self.start + len(self.data)

    def part(self, offset: int, size: int) -> bytes:
        """Some bytes of the frame. Like `Commit.add` and `Record.offset`, `offset` counts from its first
        byte."""
        begin = offset - self.start
        return self.data[begin : begin + size]

    def records(self) -> list[Record]:
        """The records of the commit, in order."""
        view, start = memoryview(self.data), self.start
        records: list[Record] = []
        offset, end = FRAME_HEADER_BYTES, self.size
        while offset < end:
            length, kind, version, _ = RECORD_HEADER.unpack_from(view, offset - start)
            offset += RECORD_HEADER_BYTES
            records.append(Record(kind, version, offset, view[offset - start : offset - start + length]))
            offset += length
        assert offset == end, "the records of a verified frame fill it"
        return records


@dataclass(slots=True, frozen=True)
class Parts:
    """Bytes wanted of some frames, as parallel lists."""

    positions: Sequence[Position]
    """Of the frames."""
    offsets: Sequence[int]
    """As `Commit.add` gives them."""
    sizes: Sequence[int]


Block = bytes | tuple[bytes, ...] | deque[mmap]
"""The content of a block of a checkpoint. A tuple stands for its parts one after the other: large ones need
not be copied to write them. A deque is a large block that was read from the disk: its reader takes the parts
out, so that the block need not be in memory together with what is made of it. Each part is a mapping of its
own, which goes back to the system at once; memory from `malloc` would stay until the last part is free."""


def whole(block: Block) -> bytes:
    """A block's content in one piece."""
    return block if isinstance(block, bytes) else b"".join(block)


def bytes_in(block: Block) -> int:
    """The size of a block's content."""
    return len(block) if isinstance(block, bytes) else sum(map(len, block))


@dataclass(slots=True, frozen=True)
class Section:
    """One part of an owner's state, divided into blocks that are written separately."""

    name: str
    """At most 24 bytes of ASCII; empty for the whole state in a checkpoint of format version 1."""
    version: int
    """The version of the blocks' format, which belongs to the owner."""
    blocks: Mapping[int, Block]
    """Each block's content by its number. For `save_checkpoint`: the blocks that changed, with empty content
    for a block that no longer exists. From `load_checkpoint`: if they are large, each is read from the disk
    when it is asked for. In a part that `checkpoint_parts` gives, a large block can be read only once."""
    taken: Mapping[int, Position] = field(default_factory=dict, compare=False)
    """From `load_checkpoint`: the position of the checkpoint that last wrote each block. The block has not
    changed since that position."""


@dataclass(slots=True, frozen=True)
class Checkpoint:
    """The owner's state as of a position, from which replay continues."""

    position: Position
    sections: tuple[Section, ...]
    block_sizes: Sequence[int] = field(default=(), compare=False)
    """From `load_checkpoint`: how many bytes each block of any section has."""


class RoomLock(asyncio.Lock):
    """A lock over all logs that share a disk: its holder makes room on the full disk.

    The others retry at different times, so that only a few ask at once, however many there are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._free_from_ms = 0

    def next_ms(self, earliest_ms: int, apart_ms: int) -> int:
        """When to retry, in monotonic ms: not before `earliest_ms`, and `apart_ms` after the previous
        caller's time."""
        time_ms = max(earliest_ms, self._free_from_ms)
        self._free_from_ms = time_ms + apart_ms
        return time_ms


class Lulls(Protocol):
    """When a disk is busy with commits, and when it is not. All logs on the disk share it.

    For commits that are small and can gather more while they wait: what a commit costs depends little on its
    size. What is called here does little, and raises nothing.
    """

    def at_lull(self, begin: Callable[[], None]) -> bool:
        """If the disk is busy with commits, call `begin` when it is done with them, after a few milliseconds
        at most; otherwise return False."""

    def begin_together(self, begins: Sequence[Callable[[], None]]) -> None:
        """Call all of these now. The commits that they begin are synced together, or in portions."""


Ended = Callable[[Exception | None], bool]
"""Called at the end of a commit, with its error or None. Returns whether more messages wait for a commit; if
so, the log puts off beginning its next segment."""


class Log(Protocol):
    """One partition's log. Owned by one task.

    One `append` or `roll`, any number of `fetch` and `fetch_parts`, and one of `save_checkpoint` and `trim`
    may be under way at the same time.
    """

    @property
    def lulls(self) -> Lulls:
        """When its disk is busy."""

    @property
    def end(self) -> Position:
        """The position of the next frame."""

    @property
    def start(self) -> Position:
        """The lowest position that has not been trimmed."""

    @property
    def trim_points(self) -> Sequence[Position]:
        """The positions above `start` at which `trim` frees space, ascending. A trim to a position between
        two of them frees space up to the lower one.

        If only a few live records lie below the first one, compaction can append them again and then trim.
        """

    @property
    def checkpoints(self) -> Sequence[Position]:
        """The positions of the usable checkpoints, newest first: at most two. The log can be trimmed up to
        the second."""

    @property
    def has_damaged_checkpoint(self) -> bool:
        """Whether one of the two checkpoints was found damaged or missing, and was not replaced since."""

    @property
    def checkpoint_base(self) -> Position | None:
        """The position on which the next checkpoint builds: it needs the blocks changed by frames from here
        on.

        None if it needs all blocks, because there are not two usable checkpoints or one has an earlier
        format.
        """

    @property
    def checkpoint_bytes(self) -> int:
        """What the blocks in the files of the usable checkpoints take, those that newer blocks have replaced
        included."""

    async def acquire(self, epoch: int | None = None) -> int:
        """Open the log and become its owner; gives the new epoch, which is `epoch` if given.

        The epoch is higher than any before. A torn tail is cut off and logged (durability rule 5). Raises
        CorruptRecord for damage that a crash cannot explain, Fenced if `epoch` is not higher than the last
        one, StorageError if the disk refuses.
        """

    async def load_checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint, or None. A damaged checkpoint is logged and no longer counts. All
        blocks are whole, but not all in memory: `checkpoint_parts` reads them.

        Raises CorruptRecord if the log was trimmed and no whole checkpoint is left; DiskFailed.
        """

    def checkpoint_parts(self, checkpoint: Checkpoint) -> AsyncIterator[Checkpoint]:
        """The blocks of a checkpoint from `load_checkpoint`, in parts that are in memory, each with some of
        them, by ascending numbers in each section.

        Raises DiskFailed, also if a block has been damaged or lost since `load_checkpoint` has checked it:
        when the log is acquired again, that checkpoint no longer counts.
        """

    def replay(self, since: Position) -> AsyncIterator[Frame]:
        """Every frame from `since` on, in order and verified. `since` is the position of a frame, or `end`.
        Raises CorruptRecord, DiskFailed."""

    @property
    def is_busy(self) -> bool:
        """Whether a commit would wait for another one, or for a segment that begins."""

    def begin(self) -> Commit:
        """A new, empty commit that begins at `end`."""

    on_full: Callable[[], None]
    """Called in the event loop when the disk was found full, so that the log's owner can free space. Not
    called before `acquire`."""

    @property
    def is_full(self) -> bool:
        """Whether the disk is so short of space that only urgent commits are written. If so, asking has that
        looked at soon, so it does not stay true when others have freed space."""

    def take_growth(self, each: int, count: int = 1) -> int:
        """How many of `count` additions of `each` bytes may be made to what must be kept, apart from new
        messages. All of them, unless the disk is full; then few, and those allowed are counted. Does not
        block."""

    @property
    def is_confined(self) -> bool:
        """Whether segments are shorter than usual for a log of this length, because the disk has little
        free space."""

    def keep_room(self, lasting: int, passing: int) -> None:
        """Set how many bytes draining this log still needs: commits that are not urgent are refused while the
        disk has no more room than all logs need (`storage/drain_room.py`). `passing` is only needed by the
        log that makes room."""

    need: Callable[[], tuple[int, int] | None]
    """The owner's function that returns what `keep_room` is to be called with, as if the commit about to be
    appended were durable; None if it does not know. Called before each commit while room is short, so it does
    little, and raises nothing."""

    @property
    def is_scarce(self) -> bool:
        """Whether the disk has so little left, because more was written than the needs foresaw, that garbage
        must be freed before more is written."""

    @property
    def making_room(self) -> RoomLock:
        """The lock for making room on a full disk. All logs on the disk share it, so one makes room at a
        time."""

    async def room(self) -> int:
        """Roughly how many bytes a commit with `frees` could write. Raises DiskFailed."""

    async def append(self, commit: Commit, urgent: bool = False, *, frees: bool = False) -> None:
        """Make the commit durable, then move `end` behind it. One at a time.

        `urgent` commits (settlements, which free space in the end) may use the space kept in reserve for a
        full disk (durability rule 6). Commits that `frees` marks (trimming and compaction, which free space
        soon) may use the last of it. A commit that has begun runs to its end even if the caller is cancelled.
        Raises CommitFailed (the log must then be acquired anew, which voids what the commit may have left on
        the disk), DiskFull (nothing happened), Fenced.
        """

    def append_at_once(self, commit: Commit, ended: Ended, *, urgent: bool = False) -> bool:
        """As `append`, if the commit need not wait for anything but the disk; else returns False, and nothing
        has happened. `ended` is called with what `append` would raise, or None: possibly before this returns,
        and never after `fence`. It raises nothing, and the next commit is taken once it has returned."""

    async def sync(self) -> None:
        """Sync what `append` has acknowledged before it was synced (`fsync: interval` or `never`), so that a
        power cut loses nothing before `end`. Raises CommitFailed, as `append` does."""

    async def fetch(self, positions: Sequence[Position]) -> list[Frame]:
        """The frames at these positions, in the order asked for, verified. Raises CorruptRecord,
        DiskFailed."""

    async def fetch_parts(self, parts: Parts) -> list[bytes]:
        """These parts of frames, in the order asked for; the whole frames are verified. Raises CorruptRecord,
        DiskFailed."""

    async def save_checkpoint(self, checkpoint: Checkpoint, *, is_complete: bool = False) -> None:
        """Save the checkpoint durably, in place of the older of the two.

        It holds the blocks that changed since `checkpoint_base`; all others stay as they were. If it
        `is_complete`, it holds all blocks, and shares no file with an earlier one. Raises
        StorageError: then both checkpoints remain, except that a damaged one no longer counts.
        """

    async def roll(self) -> None:
        """Make `end` a trim point, unless nothing was appended since the last one. Raises what `append`
        raises."""

    async def trim(self, position: Position) -> None:
        """Free the space up to the last trim point at or below `position`. Nothing below `position` may be
        read again.

        Keeps what a replay from the older of two checkpoints would read, and everything unless there are two
        checkpoints.
        """

    def fence(self) -> None:
        """Count everything under way as failed, however it ends, because the disk does not answer. The
        caller then cancels whoever waits for it.

        A commit under way is never read, unless it had already ended and moved `end`. `acquire` waits until
        everything under way has ended. Does nothing if nothing is under way.
        """

    async def close(self) -> None:
        """Finish what is under way and release the files. The log may be acquired again. Raises DiskFailed
        after `fence`."""


class EntityLogs(Protocol):
    """The logs of whole entities: list them and delete them."""

    async def entities(self) -> list[str]:
        """The identifiers of all entities that have logs."""

    async def partitions(self, entity: str) -> list[int]:
        """The partitions of an entity that have a log, ascending. Opens no log. Raises DiskFailed."""

    async def is_without_logs(self, entity: str) -> bool:
        """Whether every folder confirms that an entity has no log. Raises DiskFailed if a folder does not
        answer."""

    async def missing(self) -> dict[str, list[int]]:
        """The partitions, by entity, whose log is known to have existed and is missing. Opens no log. Raises
        DiskFailed."""

    def keep_room(self, entity: str, needs: Mapping[int, tuple[int, int]], folder: int = 0) -> None:
        """Keep room for draining partitions that have not been opened: by number, what `Log.keep_room` is
        given. Those that are open keep what they need themselves. Deleting the entity gives the room back.

        `folder`: the number of the data folder that holds them all."""

    async def delete(self, entity: str) -> None:
        """Delete all logs of an entity, durably. The caller has closed them."""

    async def close(self) -> None:
        """Stop the threads. The caller has closed every log."""


class LogStore(EntityLogs, Protocol):
    """All logs of a broker, and what they share: the disk, the committer's threads and the fsync policy."""

    def log(self, entity: str, partition: int) -> Log:
        """The log of one partition. `entity` is the entity's generation identifier. No file is touched
        before `acquire`."""
