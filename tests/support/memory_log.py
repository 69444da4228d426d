"""An in-memory log behind the `storage.log.Log` interface, with faults on demand. To restart, make another
object on the same `Disk`.

It keeps the promises of the real log: a commit is present as a whole or not at all, a failed commit never
reappears once the log is acquired again, positions count frame headers, and trimming frees whole segments,
but nothing that a replay from the older of two checkpoints would read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

from storage.errors import CommitFailed, CorruptRecord, DiskFailed, DiskFull
from storage.log import (
    FRAME_HEADER_BYTES,
    Block,
    Checkpoint,
    Commit,
    Ended,
    Frame,
    Lulls,
    Parts,
    Position,
    RoomLock,
    Section,
    whole,
)


@dataclass
class Disk:
    """What survives a restart."""

    frames: dict[int, bytes] = field(default_factory=dict)
    """Whole frames by position, in ascending order."""
    segments: list[int] = field(default_factory=lambda: [0])
    """Start of each segment; the last segment is the active one."""
    end: int = 0
    epoch: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    has_damaged_checkpoint: bool = False
    """Newest first, each with all its blocks."""

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint. Setting it to None loses all of them."""
        return self.checkpoints[0] if self.checkpoints else None

    @checkpoint.setter
    def checkpoint(self, checkpoint: Checkpoint | None) -> None:
        self.checkpoints = [] if checkpoint is None else [checkpoint]


class MemoryLog:
    """One partition's log, in memory."""

    def __init__(self, disk: Disk | None = None, segment_bytes: int = 1 << 30) -> None:
        self.disk = disk or Disk()
        self.segment_bytes = segment_bytes
        self.gate: asyncio.Event | None = None
        """If set, every append waits for this event."""
        self.at_next_lull: list[Callable[[], None]] | None = None
        """If set, the disk is busy, and these wait for a lull."""
        self.on_append: Callable[[Commit, bool], Exception | None] = lambda commit, urgent: None
        """Called before each append with the commit and whether it is urgent; an exception it returns is
        raised.
        """
        self.on_sync: Callable[[], Exception | None] = lambda: None
        self.on_acquire: Callable[[], Exception | None] = lambda: None
        self.on_fetch: Callable[[], Exception | None] = lambda: None
        self.on_checkpoint: Callable[[], Exception | None] = lambda: None
        self.appends = 0
        self.fetches = 0
        self.usable = False
        self.takes_at_once = True
        """Whether appends may be made at once."""
        self._at_once: asyncio.Task[None] | None = None
        self._appending = False
        self._abandoned = False
        """An append was fenced and still waits at the gate."""
        self.on_full: Callable[[], None] = lambda: None
        self.full = False
        self.growth_left = 0
        """While `full`: how many bytes may be added to what must be kept."""
        self.confined = False
        self.scarce = False
        self.needs = 0, 0
        """What `keep_room` was called with."""
        self.need: Callable[[], tuple[int, int] | None] = lambda: None
        self.room_bytes = 1 << 40
        self._making_room = RoomLock()

    def share_turns(self, turns: RoomLock) -> None:
        """Share a disk with other logs; only one of them makes room at a time."""
        self._making_room = turns

    def fail_append(self, error: Exception, after: int = 0) -> None:
        """Raise `error` once, from the append that follows `after` others."""
        left = after

        def fault(commit: Commit, urgent: bool) -> Exception | None:
            nonlocal left
            left -= 1
            if left >= 0:
                return None
            self.on_append = lambda commit, urgent: None
            return error

        self.on_append = fault

    def fill_disk(self, *, reserve: bool = True) -> None:
        """From now on the disk is full; `reserve` says whether urgent commits still find room."""
        self.on_append = lambda commit, urgent: None if urgent and reserve else DiskFull("no room")

    def empty_disk(self) -> None:
        """Make room again."""
        self.on_append = lambda commit, urgent: None

    def damage(self, position: int) -> None:
        """Damage the frame at this position."""
        self.disk.frames[position] = b""

    @property
    def end(self) -> Position:
        return Position(self.disk.end)

    @property
    def start(self) -> Position:
        return Position(self.disk.segments[0])

    @property
    def trim_points(self) -> Sequence[Position]:
        return [Position(each) for each in self.disk.segments[1:]]

    @property
    def checkpoints(self) -> Sequence[Position]:
        return [each.position for each in self.disk.checkpoints]

    @property
    def has_damaged_checkpoint(self) -> bool:
        return self.disk.has_damaged_checkpoint

    @property
    def checkpoint_base(self) -> Position | None:
        return self.disk.checkpoints[1].position if len(self.disk.checkpoints) == 2 else None

    @property
    def checkpoint_bytes(self) -> int:
        sections = [section for each in self.disk.checkpoints for section in each.sections]
        return sum(len(data) for section in sections for data in section.blocks.values())

    async def acquire(self, epoch: int | None = None) -> int:
        if self._abandoned and self.gate is not None:
            await self.gate.wait()
        self._abandoned = False
        error = self.on_acquire()
        if error is not None:
            raise error
        self.disk.epoch = self.disk.epoch + 1 if epoch is None else epoch
        self.usable = True
        self._write(Commit(self.end))
        return self.disk.epoch

    async def load_checkpoint(self) -> Checkpoint | None:
        return self.disk.checkpoint

    async def checkpoint_parts(self, checkpoint: Checkpoint) -> AsyncIterator[Checkpoint]:
        yield checkpoint

    async def replay(self, since: Position) -> AsyncIterator[Frame]:
        assert since >= self.start
        for position in [each for each in self.disk.frames if each >= since]:
            yield self._read(position)

    def begin(self) -> Commit:
        return Commit(self.end)

    @property
    def is_full(self) -> bool:
        return self.full

    def take_growth(self, each: int, count: int = 1) -> int:
        if not self.full:
            return count
        fitting = min(count, self.growth_left // each)
        self.growth_left -= each * fitting
        return fitting

    @property
    def is_confined(self) -> bool:
        return self.confined

    def keep_room(self, lasting: int, passing: int) -> None:
        self.needs = lasting, passing

    @property
    def is_scarce(self) -> bool:
        return self.scarce

    @property
    def making_room(self) -> RoomLock:
        return self._making_room

    async def room(self) -> int:
        return self.room_bytes

    @property
    def is_busy(self) -> bool:
        return self._appending

    @property
    def lulls(self) -> Lulls:
        return self

    def begin_together(self, begins: Sequence[Callable[[], None]]) -> None:
        for begin in begins:
            begin()

    def at_lull(self, begin: Callable[[], None]) -> bool:
        if self.at_next_lull is None:
            return False
        self.at_next_lull.append(begin)
        return True

    async def append(self, commit: Commit, urgent: bool = False, *, frees: bool = False) -> None:
        assert self.usable and commit and commit.start == self.end and not self._appending
        self._appending = True
        try:
            if self.gate is not None:
                await self.gate.wait()
            error = self.on_append(commit, urgent or frees)
            if error is not None:
                if isinstance(error, CommitFailed):
                    self.usable = False
                raise error
            self.appends += 1
            self._write(commit)
        finally:
            self._appending = False

    def append_at_once(self, commit: Commit, ended: Ended, *, urgent: bool = False) -> bool:
        if not (self.takes_at_once and self.usable and not self._appending):
            return False

        async def append() -> None:
            error: Exception | None = None
            try:
                await self.append(commit, urgent)
            except Exception as failed:  # also what a test raises in place of the disk
                error = failed
            ended(error)

        self._at_once = asyncio.create_task(append())
        return True

    async def sync(self) -> None:
        assert self.usable and not self._appending
        error = self.on_sync()
        if error is not None:
            self.usable = False
            raise error

    async def fetch(self, positions: Sequence[Position]) -> list[Frame]:
        assert list(positions) == sorted(set(positions)) and positions
        error = self.on_fetch()
        if error is not None:
            raise error
        self.fetches += 1
        return [self._read(position) for position in positions]

    async def fetch_parts(self, parts: Parts) -> list[bytes]:
        frames = await self.fetch(sorted(set(parts.positions)))
        found = {frame.position: frame for frame in frames}
        each = zip(parts.positions, parts.offsets, parts.sizes, strict=True)
        return [found[position].part(offset, size) for position, offset, size in each]

    async def save_checkpoint(self, checkpoint: Checkpoint, *, is_complete: bool = False) -> None:
        error = self.on_checkpoint()
        if error is not None:
            raise error
        assert checkpoint.position <= self.end
        kept = self.disk.checkpoints
        is_complete |= len(kept) < 2
        base = {} if is_complete else {each.name: each for each in kept[1].sections}
        newest = {each.name: each for each in kept[0].sections} if len(kept) == 2 else {}
        sections: list[Section] = []
        for section in checkpoint.sections:
            blocks: dict[int, Block] = {}
            taken: dict[int, Position] = {}
            if section.name in base:
                still = newest[section.name].blocks
                blocks = {
                    number: data for number, data in base[section.name].blocks.items() if number in still
                }
                taken = {number: base[section.name].taken[number] for number in blocks}
            blocks.update({number: whole(block) for number, block in section.blocks.items()})
            taken.update(dict.fromkeys(section.blocks, checkpoint.position))
            there = [number for number, data in blocks.items() if data]
            sections.append(
                replace(section, blocks={each: blocks[each] for each in there},
                taken={each: taken[each] for each in there})
            )  # fmt: skip
        sizes = [len(whole(block)) for section in sections for block in section.blocks.values()]
        self.disk.checkpoints = [Checkpoint(checkpoint.position, tuple(sections), sizes), *kept[:1]]
        self.disk.has_damaged_checkpoint = False

    async def roll(self) -> None:
        if self.disk.segments[-1] < self.disk.end:
            self.disk.segments.append(self.disk.end)

    async def trim(self, position: Position) -> None:
        if len(self.disk.checkpoints) < 2:
            return
        position = min(position, self.disk.checkpoints[1].position)
        keep = max(each for each in self.disk.segments if each <= position)
        self.disk.segments = [each for each in self.disk.segments if each >= keep]
        self.disk.frames = {each: data for each, data in self.disk.frames.items() if each >= keep}

    def fence(self) -> None:
        if self._appending:
            self._abandoned, self.usable = True, False
        if self._at_once is not None:
            self._at_once.cancel()

    async def close(self) -> None:
        if self._abandoned:
            raise DiskFailed("an append is under way")
        self.usable = False

    def _write(self, commit: Commit) -> None:
        disk = self.disk
        if disk.end - disk.segments[-1] >= self.segment_bytes:
            disk.segments.append(disk.end)
        disk.frames[disk.end] = bytes(FRAME_HEADER_BYTES) + b"".join(commit.parts)
        disk.end += FRAME_HEADER_BYTES + commit.bytes

    def _read(self, position: int) -> Frame:
        data = self.disk.frames[position]
        if not data:
            raise CorruptRecord("memory", position, "damaged by a test")
        return Frame(Position(position), data)
