"""One segment: a file of a log, its name, its header, and writing at its end. Knows no other segment.

A segment is a header of 256 bytes, followed by the frames from position `base` on. All numbers are little
endian.

    offset  size  field
         0     8  magic "PbSegmnt"
         8     4  CRC-32C of the bytes 12 … 255
        12     2  format version, 1
        14     2  partition
        16     4  epoch of the owner that began the segment
        20     2  length of the entity's identifier in bytes
        22     2  zero
        24     8  base: the position of the first frame; the segment before ends here, whatever else it holds
        32     8  sequence of the first frame
        40    16  digest of the frame before the first one
        56    16  salt: random, the same in all segments of a log
        72   184  the entity's identifier, UTF-8, filled up with zeros
       256     …  frames (`record.py`), then zeros

Its name is `<base>-<epoch>.segment`, in hexadecimal. Everything that segments of lower epochs hold from this
base on is void.

The file is filled with zeros ahead of its frames, in steps that double while the log is busy. A sync that
changes neither the size nor the extents of a file saves the file system a journal commit. Measured (ext4, 16
files, 32 KiB per round, 4 threads): 1.05 ms per round and 0.70 ms of CPU, instead of 1.5 ms and 0.95 ms.

When half of a step is used up, or fewer than 256 KiB are left, a thread writes the next zeros (`Zeros`) while
commits go on. Larger frames need them earlier. A commit that finds no room writes them itself, and waits for
them.

Behind large frames, zeros are not written, but only allocated: the file system notes that the bytes belong to
the file and read as zeros. To write them as well would take longer than the journal commits that it saves.
Measured (ext4, 4 files, 4 threads), in MB/s with zeros that are written and with allocated ones: 216 and 168
with frames of 32 KiB, 439 and 388 with 128 KiB, 523 and 671 with 512 KiB, 483 and 833 with 1 MiB. The time of
the processor is the same with 128 KiB, and less than half with 1 MiB.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from storage.disk import FULL_ERRNOS, Disk, close_quietly, commit_error, publish, write_all
from storage.errors import CommitFailed, CorruptRecord, DiskFull, UnknownFormat
from storage.log import Position
from storage.record import Chain, crc32c

FORMAT_VERSION = 1
SEGMENT_HEADER_BYTES = 256
SALT_BYTES = 16
SEGMENT_SUFFIX = ".segment"
ENTITY_BYTES_MAX = 184

FILL_STEP_BYTES_MIN = 16 << 10
"""The first step, so that ten thousand logs with a message or two stay small."""
FILL_STEP_BYTES_MAX = 1 << 20
"""Each step costs a sync and a thread that wakes up beside a busy event loop, together as much as dozens of
messages."""
FILL_LOW_BYTES_MAX = 256 << 10
"""Time enough to write the next step while commits go on."""

ALLOCATED_FRAME_BYTES_MIN = 128 << 10
"""Behind frames of this size, zeros are allocated. Both ways take about as long then, and the disk has half
of the bytes to write. A commit of a single message of 200 KiB gains."""
ALLOCATED_STEP_BYTES_MAX = 4 << 20
"""Such a step costs a thread that wakes up, but no sync. The last one takes what is left of the segment."""

FRAMES_AHEAD = 2
"""Zeros are also due without room for so many frames like the last one, or for so many steps. Otherwise,
commits of 1 MiB, as large messages make them, would find no room every third time."""

FILL_STEP_BYTES_FOLLOWING = 256 << 10
"""The first step in a segment that follows a full one, at most, unless its frames are large."""

PUT_BYTES = 4 << 10
"""How many bytes before the end are compared when a file that was put away is opened again."""

_MAGIC = b"PbSegmnt"
_HEAD = struct.Struct("<8sI")
_TAIL = struct.Struct("<HHIHHQQ16s16s184s")
assert _HEAD.size + _TAIL.size == SEGMENT_HEADER_BYTES

_ZEROS = bytes(64 << 10)


class SegmentHeader(NamedTuple):
    """The content of a segment's header."""

    entity: str
    partition: int
    epoch: int
    salt: bytes
    chain: Chain
    """Where the segment begins: its base, and what its first frame must carry."""


@dataclass(slots=True, frozen=True)
class Segment:
    """One file of a log."""

    path: Path
    header: SegmentHeader

    @property
    def base(self) -> Position:
        """The position of the first frame."""
        return self.header.chain.position

    def offset_of(self, position: Position) -> int:
        """The offset of a position in the file."""
        return SEGMENT_HEADER_BYTES + position - self.base

    def position_at(self, offset: int) -> Position:
        """The position of an offset in the file."""
        return Position(self.base + offset - SEGMENT_HEADER_BYTES)


def _zeros(size: int) -> list[bytes]:
    """Zeros of this size, as buffers for a write."""
    whole, rest = divmod(size, len(_ZEROS))
    return [*[_ZEROS] * whole, _ZEROS[:rest]] if rest else [_ZEROS] * whole


def segment_name(header: SegmentHeader) -> str:
    """The file name of the segment with this header."""
    return f"{header.chain.position:016x}-{header.epoch:08x}{SEGMENT_SUFFIX}"


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The first 256 bytes of a segment."""
    entity = header.entity.encode()
    position, sequence, before = header.chain
    assert before is not None and len(entity) <= ENTITY_BYTES_MAX and len(header.salt) == SALT_BYTES
    tail = _TAIL.pack(
        FORMAT_VERSION, header.partition, header.epoch, len(entity), 0, position, sequence, before,
        header.salt, entity
    )  # fmt: skip
    return _HEAD.pack(_MAGIC, crc32c(tail)) + tail


def decode_segment_header(data: bytes, path: Path) -> SegmentHeader:
    """Decode the first 256 bytes. Raises CorruptRecord, or UnknownFormat for a later version."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise CorruptRecord(str(path), len(data), "the segment header is cut off")
    magic, crc = _HEAD.unpack_from(data)
    tail = data[_HEAD.size : SEGMENT_HEADER_BYTES]
    if magic != _MAGIC or crc != crc32c(tail):
        raise CorruptRecord(str(path), 0, "the segment header's checksum does not match")
    version, partition, epoch, entity_length, _, position, sequence, before, salt, entity = _TAIL.unpack(tail)
    if version != FORMAT_VERSION:
        raise UnknownFormat(f"{path}: segment format version {version} is not known, only {FORMAT_VERSION}")
    chain = Chain(Position(position), sequence, before)
    return SegmentHeader(entity[:entity_length].decode(), partition, epoch, salt, chain)


class _Put(NamedTuple):
    """The state of a file when it was put away."""

    identity: tuple[int, int]
    size: int
    end: bytes
    """The last bytes before the end of its last frame."""


class Zeros(NamedTuple):
    """Zeros to be put ahead of a segment's frames. Only their own thread touches these bytes meanwhile."""

    path: Path
    begin: int
    end: int
    are_allocated: bool
    """Whether they are allocated instead of written."""

    def write(self, disk: Disk, syncs: bool) -> None:
        """Put them there, through a descriptor of their own, so that the commits' descriptor still reports
        every error.

        Raises CommitFailed if the file must not be written to any more (durability rule 4); any other error
        has changed nothing.
        """
        fd = disk.open_write(self.path)
        try:
            self._write(disk, fd, syncs)
        finally:
            close_quietly(disk, fd)

    def _write(self, disk: Disk, fd: int, syncs: bool) -> None:
        try:
            try:
                self.put(disk, fd)
            except OSError as error:
                if error.errno in FULL_ERRNOS:
                    disk.truncate(fd, self.begin)
                    raise DiskFull(f"{self.path}: {error.strerror}") from error
                raise
            if syncs and not self.are_allocated:  # each sync of frames notes what was written over those
                disk.sync(fd)
        except OSError as error:
            raise CommitFailed(f"{self.path}: it could not be filled: {error.strerror}") from error

    def put(self, disk: Disk, fd: int) -> None:
        """Put them there, without a sync. Raises OSError."""
        if self.are_allocated:
            disk.allocate(fd, self.begin, self.end - self.begin)
        else:
            write_all(disk, fd, _zeros(self.end - self.begin), self.begin)


class ActiveSegment:
    """The segment that is written to. Used by one thread at a time, and never again after CommitFailed.

    While nothing is written, the file may be put away: it is closed as it is, and opened again before the
    next write.
    """

    __slots__ = ("_disk", "_fd", "_fill_step", "_filled", "_low", "_put", "frame_bytes", "segment", "used")

    def __init__(self, disk: Disk, segment: Segment, fd: int, used: int, filled: int) -> None:
        self._disk = disk
        self._fd = fd
        self._filled = filled
        self._fill_step = FILL_STEP_BYTES_MIN
        self._low = 0
        """With less room than this, zeros are due."""
        self.frame_bytes = 0
        """The size of the last frame; in a new segment, of the last one before it."""
        self.segment = segment
        self.used = used
        """The bytes of the file up to the end of its last whole frame."""
        self._put: _Put | None = None

    @classmethod
    def begin(
        cls, disk: Disk, directory: Path, header: SegmentHeader, frames: Sequence[bytes] = ()
    ) -> ActiveSegment:
        """Begin a new segment that holds these frames, durably. Raises DiskFull (nothing happened),
        CommitFailed."""
        segment = Segment(directory / segment_name(header), header)
        fd = publish(disk, segment.path, [encode_segment_header(header), *frames])
        used = SEGMENT_HEADER_BYTES + sum(map(len, frames))
        return cls(disk, segment, fd, used, filled=used)

    @property
    def fd(self) -> int:
        """The file's descriptor, for a commit queue."""
        return self._fd

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._fd >= 0

    def put_away(self) -> None:
        """Close the file without changing it. Every frame must be durable, because a later error of this file
        would go unnoticed."""
        with contextlib.suppress(OSError):  # then `take_up` refuses the file
            begin = max(0, self.used - PUT_BYTES)
            end = self._disk.read(self._fd, self.used - begin, begin)
            self._put = _Put(self._disk.identity(self._fd), self._disk.size(self._fd), end)
        self.abandon()

    def take_up(self) -> None:
        """Open a file that was put away. Raises CommitFailed, with nothing written, if it cannot be opened or
        has changed."""
        put, self._put = self._put, None
        fd = -1
        try:
            if put is None:
                raise CommitFailed(f"{self.segment.path}: its end could not be read when it was closed")
            fd = self._disk.open_write(self.segment.path)
            begin = self.used - len(put.end)
            found = _Put(
                self._disk.identity(fd), self._disk.size(fd), self._disk.read(fd, len(put.end), begin)
            )
            if found != put:
                what = (
                    "file"
                    if found.identity != put.identity
                    else f"size ({put.size} bytes)"
                    if found.size != put.size
                    else "end"
                )
                raise CommitFailed(
                    f"{self.segment.path}: it was changed while it was closed: it has not the same "
                    f"{what} any more"
                )
        except OSError as error:
            close_quietly(self._disk, fd)
            raise CommitFailed(
                f"{self.segment.path}: it could not be opened again: {error.strerror}"
            ) from error
        except CommitFailed:
            close_quietly(self._disk, fd)
            raise
        self._fd = fd

    def has_room(self, length: int) -> bool:
        """Whether this many bytes fit into the zeros that are there, so that a write needs no space."""
        return self.used + length <= self._filled

    def wrote(self, length: int) -> None:
        """A frame for which there was room was written behind the last one by others."""
        self.used, self.frame_bytes = self.used + length, length

    def write(self, frame: list[bytes], fill_until: int) -> None:
        """Write a frame behind the last one, and zeros behind it as far as `fill_until` allows. Does not
        sync.

        Raises DiskFull if nothing of it was kept, else CommitFailed.
        """
        try:
            self._write(frame, fill_until)
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                self.undo()  # durability rule 6
            raise commit_error(error, self.segment.path) from error

    def _write(self, frame: list[bytes], fill_until: int) -> None:
        length = sum(map(len, frame))
        end = self.used + length
        self.frame_bytes = length
        write_all(self._disk, self._fd, frame, self.used)
        if end > self._filled:
            self._filled = self._put_zeros(end, min(end + self._step, fill_until))
            self._grow_step()
        self.used = end

    def _put_zeros(self, begin: int, end: int) -> int:
        """Put zeros behind a frame that was just written; gives where they end. There are none if there is no
        space for them."""
        if end <= begin:
            return begin
        try:
            self._zeros_between(begin, end).put(self._disk, self._fd)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            self._cut_off(begin)
            return begin
        return end

    def _zeros_between(self, begin: int, end: int) -> Zeros:
        return Zeros(self.segment.path, begin, end, self._is_large)

    @property
    def _is_large(self) -> bool:
        """Whether zeros behind the last frame are allocated."""
        return self.frame_bytes >= ALLOCATED_FRAME_BYTES_MIN

    @property
    def _step(self) -> int:
        """How many zeros are put at once, in bytes."""
        return min(self._fill_step, ALLOCATED_STEP_BYTES_MAX if self._is_large else FILL_STEP_BYTES_MAX)

    @property
    def is_low(self) -> bool:
        """Whether few of the zeros are left."""
        return self._filled - self.used < self._least_room

    @property
    def _least_room(self) -> int:
        return max(self._low, FRAMES_AHEAD * min(self.frame_bytes, self._step) if self._low else 0)

    def zeros_due(self, fill_until: int) -> Zeros | None:
        """The zeros that should be written now, so that later frames find room; None if there are enough, or
        `fill_until` allows no more."""
        if not self.is_low or self._filled >= fill_until:
            return None
        end = self._filled + self._step
        if end + self._least_room > fill_until:
            end = fill_until  # with the rest, which would be a short step
        return self._zeros_between(self._filled, end)

    def fill(self, fill_until: int, *, syncs: bool) -> None:
        """Write the first zeros of a new segment; without room for them, does nothing. Raises
        CommitFailed."""
        zeros = self._zeros_between(self._filled, min(self._filled + self._step, fill_until))
        if zeros.begin < zeros.end:
            with contextlib.suppress(DiskFull):
                zeros.write(self._disk, syncs)
                self.zeros_written(zeros)

    def is_before(self, zeros: Zeros) -> bool:
        """Whether zeros begin where the file was filled up to. False if it was cut off meanwhile (a full
        disk)."""
        return zeros.begin == self._filled

    def zeros_written(self, zeros: Zeros) -> None:
        """Zeros are there now, unless the file was cut off meanwhile."""
        if self.is_before(zeros):
            self._filled = zeros.end
            self._grow_step()

    def follow(self, before: ActiveSegment) -> None:
        """Expect frames like those of the segment before. Begin with larger steps than a new log, because
        commits have filled that one."""
        self.frame_bytes = before.frame_bytes
        step = max(FILL_STEP_BYTES_FOLLOWING, FRAMES_AHEAD * before.frame_bytes)
        self._fill_step = max(self._fill_step, min(before._step, step))

    def _grow_step(self) -> None:
        self._low = min(self._step // 2, FILL_LOW_BYTES_MAX)
        self._fill_step = 2 * self._step

    def undo(self) -> None:
        """Cut off what a write to a full disk has left. Raises CommitFailed: then only a new segment can void
        it."""
        self._cut_off(self.used)
        self._filled = self.used

    def _cut_off(self, size: int) -> None:
        try:
            self._disk.truncate(self._fd, size)
        except OSError as error:
            raise CommitFailed(
                f"{self.segment.path}: a write to a full disk could not be undone: {error.strerror}"
            ) from error

    def sync(self) -> None:
        """Make all frames durable. Raises CommitFailed; the sync is never repeated on this file (durability
        rule 4)."""
        try:
            self._disk.sync(self._fd)
        except OSError as error:
            raise self.sync_error(error) from error

    def sync_error(self, error: OSError) -> CommitFailed:
        """The error for a failed sync, whether the disk is full or not."""
        return CommitFailed(f"{self.segment.path}: sync failed: {error.strerror}")

    def close(self) -> None:
        """Cut off the zeros and close the file. A failure here affects nothing durable."""
        if self._filled > self.used and not self.is_open:
            with contextlib.suppress(CommitFailed):
                self.take_up()
        if self._filled > self.used and self.is_open:
            with contextlib.suppress(OSError):
                self._disk.truncate(self._fd, self.used)
            self._filled = self.used
        self.abandon()

    def abandon(self) -> None:
        """Close the file as it is. The next segment voids whatever follows its last durable frame."""
        fd, self._fd = self._fd, -1
        close_quietly(self._disk, fd)
