"""Torn tails: where a log ends after a crash, and what is cut off behind that (durability rule 5).

The last segment ends behind its last whole frame. Zeros that follow are space not yet used. Anything else is
the *torn tail* of a commit that was never acknowledged: it is given up and logged (`log.tail_cut`).

There is one exception. If anything whole (the extent, a checkpoint or at least its name, a later frame) says
that this place was durable, then the bytes are not torn but *damaged*: `find_tail` changes nothing and raises
RecordsMissing.
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
    """The end of a log."""

    chain: Chain
    epoch: int
    durable: Position
    """Everything below is on stable storage; nothing proves that of the bytes from here to the end."""


def find_tail(
    disk: Disk, last: Segment, codec: FrameCodec, checkpoint: StoredCheckpoint | None, known: Position
) -> Tail:
    """Find the end of the last segment, reading from the checkpoint on if possible. Everything below `known`
    is known to have been durable.

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
            is_damage=bool(scanner.why),
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
    """Cut off what follows a segment's end. Even if the disk refuses, it is never read."""
    with contextlib.suppress(OSError):
        fd = disk.open_write(segment.path)
        try:
            if disk.size(fd) > segment.offset_of(end):
                disk.truncate(fd, segment.offset_of(end))
        finally:
            disk.close(fd)
