"""Torn tails: where a log ends after a crash, and what is cut off behind that (durability rule 5).

The last segment ends behind its last whole frame. Zeros that follow are room not used yet. Anything else is
the *torn tail* of a commit that nobody was told of: the claim gives it up and reports it (`log.tail_cut`).

There is one exception. If something whole says that this place was durable once (the extent, a checkpoint, a
later frame), then the bytes are not torn but *damaged*. The claim changes nothing and raises RecordsMissing.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import structlog

from storage.checkpoint import StoredCheckpoint
from storage.disk import Disk
from storage.errors import RecordsMissing
from storage.log import Position
from storage.record import Chain, FrameCodec
from storage.scan import FrameScanner, durable_witness, is_zero
from storage.segment import Segment

_log = structlog.get_logger()


@dataclass(slots=True, frozen=True)
class Tail:
    """Where a log ends."""

    chain: Chain
    epoch: int
    durable: Position
    """Nothing proves that the bytes from here to the end are on stable storage."""


def find_tail(
    disk: Disk, last: Segment, codec: FrameCodec, checkpoint: StoredCheckpoint | None, known: Position
) -> Tail:
    """Find the end of the last segment, reading from the checkpoint on if possible. Everything below `known`
    was durable.

    Raises RecordsMissing for damage, CorruptRecord, OSError.
    """
    start, epoch, witness = last.header.chain, last.header.epoch, known
    fd = disk.open_read(last.path)
    try:
        size = disk.size(fd)
        if checkpoint is not None:
            taken_at = checkpoint.position
            witness = max(witness, taken_at)
            epoch = max(epoch, checkpoint.epoch)
            if checkpoint.chain.before is not None and last.base <= taken_at <= last.position_at(size):
                start = checkpoint.chain
        scanner = FrameScanner(disk, fd, last, codec, start, last.position_at(size))
        while scanner.frames():
            pass
        end = scanner.chain.position
        offset = last.offset_of(end)
        clean = is_zero(disk, fd, offset)
        if not clean:
            witness = max(witness, durable_witness(disk, fd, last, codec, offset))
    finally:
        disk.close(fd)
    if witness > end:
        raise RecordsMissing(
            str(last.path),
            offset,
            scanner.why or "the end of the log is missing",
            expected=witness,
            found=end,
        )
    if not clean:
        _log.warning(
            "log.tail_cut",
            path=str(last.path),
            offset=offset,
            position=end,
            bytes=size - offset,
            why=scanner.why,
        )
    durable = max(scanner.last.durable, start.position) if scanner.last else end
    return Tail(scanner.chain, epoch, Position(durable))


def cut_void(disk: Disk, segment: Segment, end: Position) -> None:
    """Cut off what stands behind a segment's end. If the disk refuses, it still is never read."""
    with contextlib.suppress(OSError):
        fd = disk.open_write(segment.path)
        try:
            if disk.size(fd) > segment.offset_of(end):
                disk.truncate(fd, segment.offset_of(end))
        finally:
            disk.close(fd)
