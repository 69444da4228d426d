"""Opens a log on disk as its new owner: its files, and what a crash or a failed commit has left.

Invariants (durability rules 4 and 5):
- A segment voids everything that segments of lower epochs hold from its base on; that is never read. So each
  segment ends where the next one begins, and a segment whose base is not below the base of a later epoch
  holds nothing.
- `torn_tail.py` decides where the last segment ends, and whether what follows is a torn tail or damage.
- Every new owner begins a new segment and never writes to an earlier owner's. Frames that are not proven
  durable are copied into the new segment: after a failed sync they may exist only in memory, where they can
  be read until the power fails, and syncing that file again would write nothing.
- If the log's files lack anything that its extent (`extent.py`) records, the log is damaged.
- The epoch is checked before anything is changed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import structlog

from storage.checkpoint import checkpoint_paths
from storage.checkpoints import Checkpoints
from storage.disk import TEMPORARY_SUFFIX, Disk
from storage.errors import CorruptRecord, Fenced, RecordsMissing
from storage.extent import Extent
from storage.log import FRAME_HEADER_BYTES, Position
from storage.record import CHAIN_START, Chain, FrameCodec
from storage.scan import FrameScanner
from storage.segment import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_SUFFIX,
    ActiveSegment,
    Segment,
    SegmentHeader,
    decode_segment_header,
    segment_name,
)
from storage.torn_tail import cut_void, find_tail

_log = structlog.get_logger()


REWRITTEN_BYTES_MAX = 256 << 10
"""A last segment of at most this size is copied as a whole, so that many restarts do not make many files."""


FILLED_SEGMENT_BYTES_MIN = 256 << 10
"""If the lack of room makes segments shorter than this, they are not filled with zeros. The disk has less
than 16 MiB left then (`sizing.py`). While room for draining is short, no zeros are added to any segment."""

EARLY_FRAMES, EARLY_SHARE = 8, 16
"""While nothing waits, the next segment begins up to EARLY_FRAMES frames before the active one is full, or a
segment divided by EARLY_SHARE if that is less."""


@dataclass(slots=True)
class OpenLog:
    """An open log: everything that `FileLog` needs to continue it."""

    directory: Path
    segments: list[Segment]
    """In the order of their positions; the last one is active."""
    active: ActiveSegment
    codec: FrameCodec
    tail: Chain
    durable: Position
    """Everything below this position is on stable storage."""
    epoch: int
    checkpoints: Checkpoints
    segment_bytes_max: int = 0
    """The bound for the active segment; only a single larger frame may exceed it."""
    is_confined: bool = False
    """Whether that bound is lower than usual for a log of this length, because the disk has little space."""
    strays: list[Path] = field(default_factory=list)
    """Files that no reader uses and that are not yet removed durably, in the order to remove them."""

    @property
    def fill_until(self) -> int:
        """How large the active segment may become when it is filled with zeros ahead of its frames. On a disk
        with very little room it is not filled at all: a partition that was used once would keep 16 KiB."""
        is_tight = self.is_confined and self.segment_bytes_max < FILLED_SEGMENT_BYTES_MIN
        return 0 if is_tight else self.segment_bytes_max

    def next_is_due(self, *, more_waits: bool) -> bool:
        """Whether the next segment should begin: a frame as large as the last one no longer fits, or soon
        will not and nothing waits. Messages that wait for a commit would wait for the new segment as well."""
        frame, room = self.active.frame_bytes, self.segment_bytes_max // EARLY_SHARE
        # Beginning early for larger frames would make many more segments.
        early = 0 if more_waits or frame > room else min(EARLY_FRAMES * frame, room)
        return self.active.used + frame + early > self.segment_bytes_max


def acquire_log(
    disk: Disk,
    directory: Path,
    entity: str,
    partition: int,
    epoch: int | None,
    salt: bytes,
    rewritten_bytes_max: int,
    known: Extent | None = None,
) -> OpenLog:
    """Become the owner of the log in `directory`. `salt` is used if the log is new. Durable when it returns.

    The caller then writes the new extent, and only after that calls `clear_up`: the old extent may need the
    old files. known: the log's extent, or None if it has none; then the directory must exist, and the log may
    be new. rewritten_bytes_max: REWRITTEN_BYTES_MAX, or 0 if the disk hardly has space for what must be
    written. Raises CorruptRecord, Fenced, CommitFailed, DiskFull, UnknownFormat, OSError.
    """
    names = disk.names(directory)
    segments = _live_segments(_read_segments(disk, directory, names, entity, partition), known)
    if known is not None:
        _check_extent(directory, segments, known)
    checkpoints = checkpoint_paths(directory, names)
    if segments:
        codec = FrameCodec(segments[0].header.salt, partition)
        kept = Checkpoints.find(disk, directory, names, segments[0].header.salt, segments[0].base)
        checkpoint = kept.newest
        if (
            known is not None
            and known.checkpoint is not None
            and (checkpoint is None or checkpoint.position < known.checkpoint)
        ):
            found, kept.is_damaged = checkpoint.position if checkpoint else None, True
            _log.error("checkpoint.missing", directory=str(directory), expected=known.checkpoint, found=found)
        durable = max(known.durable if known else Position(0), kept.named)
        tail = find_tail(disk, segments[-1], codec, checkpoint, durable)
        epoch = _next_epoch(directory, tail.epoch, epoch)
        active, end = _begin_segment(
            disk, directory, segments, codec, tail.chain, tail.durable, epoch, rewritten_bytes_max
        )
        log = OpenLog(directory, segments, active, codec, end, end.position, epoch, kept)
    elif checkpoints:
        raise CorruptRecord(str(checkpoints[0]), 0, "there is a checkpoint but no segment")
    else:
        header = SegmentHeader(entity, partition, _next_epoch(directory, 0, epoch), salt, CHAIN_START)
        active = ActiveSegment.begin(disk, directory, header)
        codec, none = FrameCodec(salt, partition), Checkpoints(directory)
        log = OpenLog(
            directory, [active.segment], active, codec, CHAIN_START, CHAIN_START.position, header.epoch, none
        )
    return log


def reacquire_log(disk: Disk, log: OpenLog, epoch: int | None, rewritten_bytes_max: int) -> None:
    """Continue a log after a failed commit, in a new segment; nothing of that commit is ever read
    (durability rule 4).

    Uses what the owner knows instead of reading the files again. Raises what `acquire_log` raises.
    """
    log.epoch = epoch = _next_epoch(log.directory, log.epoch, epoch)
    log.active.abandon()
    log.active, log.tail = _begin_segment(
        disk, log.directory, log.segments, log.codec, log.tail, log.durable, epoch, rewritten_bytes_max
    )  # fmt: skip
    log.durable = log.tail.position


def extent_of(log: OpenLog) -> Extent:
    """The extent of a log that was just opened."""
    last, newest = log.active.segment, log.checkpoints.newest
    checkpoint = newest.position if newest else None
    return Extent(
        log.segments[0].base,
        last.base,
        last.header.epoch,
        log.durable,
        checkpoint,
        len(log.segments),
        last.header.salt,
    )


def clear_up(disk: Disk, log: OpenLog) -> None:
    """Remove what nobody reads: unpublished files, trimmed and void segments, and the void end of the last
    segment but one."""
    if len(log.segments) > 1:
        cut_void(disk, log.segments[-2], log.active.segment.base)
    with contextlib.suppress(OSError):
        live = {segment.path.name for segment in log.segments}
        names = [
            name
            for name in disk.names(log.directory)
            if name.endswith((TEMPORARY_SUFFIX, SEGMENT_SUFFIX)) and name not in live
        ]
        log.strays = [log.directory / name for name in names]
        remove_strays(disk, log)


def remove_strays(disk: Disk, log: OpenLog) -> None:
    """Remove these files durably, one after the other: if only some of them came back, that would look like
    damage. Raises OSError."""
    while log.strays:
        disk.remove(log.strays[0])
        disk.sync_directory(log.directory)
        del log.strays[0]


def _next_epoch(directory: Path, last: int, wanted: int | None) -> int:
    if wanted is not None and wanted <= last:
        raise Fenced(f"{directory}: epoch {wanted} is not above {last}")
    return last + 1 if wanted is None else wanted


def _read_segments(
    disk: Disk, directory: Path, names: list[str], entity: str, partition: int
) -> list[tuple[Segment, int]]:
    """The segments, each with the size of its file."""
    found: list[tuple[Segment, int]] = []
    for name in sorted(
        name for name in names if name.endswith(SEGMENT_SUFFIX)
    ):  # sorted, so that the same damage is reported each time
        path = directory / name
        fd = disk.open_read(path)
        try:
            header = decode_segment_header(disk.read(fd, SEGMENT_HEADER_BYTES, 0), path)
            found.append((Segment(path, header), disk.size(fd)))
        finally:
            disk.close(fd)
        if (header.entity, header.partition, segment_name(header)) != (entity, partition, name):
            raise CorruptRecord(
                str(path),
                0,
                f"the segment is {segment_name(header)} of partition {header.partition} of {header.entity!r}",
            )
        if header.salt != found[0][0].header.salt:
            raise CorruptRecord(str(path), 0, "the segment belongs to another log")
    return found


def _live_segments(found: list[tuple[Segment, int]], known: Extent | None) -> list[Segment]:
    """The segments that hold a part of the log, in order and checked for gaps. Leaves out those that were
    trimmed according to the extent."""
    start = known.start if known is not None else Position(0)
    live: list[tuple[Segment, int]] = []
    for segment, size in sorted(found, key=lambda entry: (entry[0].header.epoch, entry[0].base)):
        while live and live[-1][0].base >= segment.base:
            live.pop()
        live.append((segment, size))
    live = [(segment, size) for segment, size in live if segment.base >= start]
    for (segment, size), (successor, _) in pairwise(live):
        if segment.offset_of(successor.base) > size:
            if known is not None and sum(each.base <= known.base for each, _ in live) < known.segments:
                # Most likely this segment is whole, and the file that follows it is missing.
                missing = segment.path.with_name(f"{segment.position_at(size):016x}-*{SEGMENT_SUFFIX}")
                why = f"the segment between {segment.path.name} and {successor.path.name} is missing"
                raise RecordsMissing(
                    str(missing), 0, why, expected=segment.position_at(size), found=successor.base
                )
            raise CorruptRecord(
                str(segment.path), size, f"the segment ends before {successor.path.name} begins"
            )
    return [segment for segment, _ in live]


def _check_extent(directory: Path, live: list[Segment], known: Extent) -> None:
    """Raise RecordsMissing if segments are missing, CorruptRecord if they belong to another log."""
    last = directory / f"{known.base:016x}-{known.epoch:08x}{SEGMENT_SUFFIX}"
    if not live:
        raise RecordsMissing(
            str(directory), 0, "all segments of the log are missing", expected=known.durable, found=0
        )
    if live[0].header.salt != known.salt:
        raise CorruptRecord(str(live[0].path), 0, "the segment belongs to another log than the extent")
    if (live[-1].base, live[-1].header.epoch) < (known.base, known.epoch):
        found = live[-1].base
        raise RecordsMissing(
            str(last),
            0,
            f"the segment is missing, and {live[-1].path.name} is the last",
            expected=known.base,
            found=found,
        )
    if live[0].base > known.start:
        raise RecordsMissing(
            str(directory), 0, "the first segments are missing", expected=known.start, found=live[0].base
        )
    count = sum(segment.base <= known.base for segment in live)
    if count != known.segments:
        why = f"{count} of {known.segments} segments are there"
        raise RecordsMissing(str(directory), 0, why, expected=known.durable, found=live[0].base)


def _begin_segment(
    disk: Disk,
    directory: Path,
    segments: list[Segment],
    codec: FrameCodec,
    tail: Chain,
    durable: Position,
    epoch: int,
    rewritten_bytes_max: int,
) -> tuple[ActiveSegment, Chain]:
    """Begin the new owner's segment with a copy of what may not be durable; gives it and the log's new
    end."""
    last = segments[-1]
    fd = disk.open_read(last.path)
    try:
        begin = last.header.chain
        if tail.position - begin.position > rewritten_bytes_max:
            begin = tail if durable == tail.position else _chain_at(disk, fd, last, codec, durable)
        scanner = FrameScanner(disk, fd, last, codec, begin, tail.position)
        copied: list[bytes] = []
        while frames := scanner.frames():
            copied.extend(frame.data for frame in frames)
    finally:
        disk.close(fd)
    end = scanner.chain
    if end.position < durable:
        raise CorruptRecord(str(last.path), last.offset_of(end.position), scanner.why)
    if (
        end.position < tail.position
    ):  # possible if commits are acknowledged before a sync: `fsync` is `interval` or `never`
        _log.error(
            "log.unsynced_lost",
            path=str(last.path),
            position=end.position,
            bytes=tail.position - end.position,
            why=scanner.why,
        )

    header = last.header._replace(epoch=epoch, chain=begin)
    active = ActiveSegment.begin(disk, directory, header, copied)
    if begin.position == last.base:
        segments[-1] = active.segment  # the old one is void, because its successor has the same base
    else:
        segments.append(active.segment)
    return active, end


def _chain_at(disk: Disk, fd: int, segment: Segment, codec: FrameCodec, position: Position) -> Chain:
    """The chain in front of the frame at `position`, according to that frame's header."""
    offset = segment.offset_of(position)
    header = codec.parse_header(disk.read(fd, FRAME_HEADER_BYTES, offset))
    if header is None or header.position != position:
        raise CorruptRecord(str(segment.path), offset, "no frame header")
    return Chain(position, header.sequence, header.before)
