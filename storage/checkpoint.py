"""Checkpoints of a log: the owner's state as of a position, each a file that is there as a whole or not at all.

The two newest are kept: the one before the newest serves if that one is damaged and nothing was trimmed since. All
numbers are little endian.

    offset  size  field
         0     8  magic "PbChckpt"
         8     4  CRC-32C of everything behind
        12     2  format version, 1
        14     2  partition
        16     4  epoch of the owner
        20     4  1 if sequence and digest are known, else 0
        24     8  position: replay goes on here
        32     8  sequence of the frame that stands there, or will
        40    16  digest of the frame before it
        56    16  the log's salt
        72     8  length of the state in bytes
        80     …  state

Its name is `<position>.checkpoint`, in hexadecimal.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from pathlib import Path

import structlog

from storage.disk import Disk, publish
from storage.errors import CorruptRecord, UnknownFormat
from storage.log import Checkpoint, Position
from storage.record import NO_DIGEST, Chain, crc32c

FORMAT_VERSION = 1
CHECKPOINT_SUFFIX = ".checkpoint"
CHECKPOINT_HEADER_BYTES = 80
CHECKPOINTS_KEPT = 2

_MAGIC = b"PbChckpt"
_HEAD = struct.Struct("<8sI")
_TAIL = struct.Struct("<HHIIQQ16s16sQ")
assert _HEAD.size + _TAIL.size == CHECKPOINT_HEADER_BYTES

_log = structlog.get_logger()


@dataclass(slots=True, frozen=True)
class StoredCheckpoint:
    """A checkpoint and what ties it to its log."""

    checkpoint: Checkpoint
    chain: Chain
    """The place in the log at which it was taken; its digest is None if that was not known any more."""
    epoch: int
    partition: int
    salt: bytes


def write_checkpoint(disk: Disk, directory: Path, stored: StoredCheckpoint) -> None:
    """Keep it durably, and of the older ones the newest. Raises DiskFull, CommitFailed; the older ones stay then."""
    chain, state = stored.chain, stored.checkpoint.state
    before = chain.before if chain.before is not None else NO_DIGEST
    known = chain.before is not None
    tail = _TAIL.pack(
        FORMAT_VERSION, stored.partition, stored.epoch, known, chain.position, chain.sequence, before, stored.salt, len(state)
    )  # fmt: skip
    rest = tail + state
    fd = publish(disk, directory / f"{chain.position:016x}{CHECKPOINT_SUFFIX}", [_HEAD.pack(_MAGIC, crc32c(rest)), rest])
    with contextlib.suppress(OSError):  # what stays behind is removed after the next one
        disk.close(fd)
        for path in checkpoint_paths(directory, disk.names(directory))[CHECKPOINTS_KEPT:]:
            disk.remove(path)


def checkpoint_paths(directory: Path, names: list[str]) -> list[Path]:
    """The checkpoints among the names in a log's directory, newest first."""
    return [directory / name for name in sorted(names, reverse=True) if name.endswith(CHECKPOINT_SUFFIX)]


def newest_checkpoint(disk: Disk, paths: list[Path], salt: bytes, start: Position) -> StoredCheckpoint | None:
    """The newest whole one of these, given the log's salt and where it starts; None if the log is to be read from there.

    Raises CorruptRecord if the log was trimmed and no whole checkpoint says what stood before; OSError.
    """
    damage: CorruptRecord | None = None
    for path in paths:
        try:
            stored = read_checkpoint(disk, path, salt)
        except CorruptRecord as error:
            _log.error("checkpoint.damaged", path=error.path, position=error.position, why=error.why)
            damage = damage or error
            continue
        if stored.checkpoint.position >= start:
            return stored
        damage = damage or CorruptRecord(str(path), 0, f"the log was trimmed up to {start} since")
    if start == 0:
        return None
    if damage is not None:
        raise damage
    raise CorruptRecord(str(paths[0].parent if paths else "log"), start, "the log was trimmed, and its checkpoint is missing")


def read_checkpoint(disk: Disk, path: Path, salt: bytes) -> StoredCheckpoint:
    """The checkpoint in a file of the log with this salt. Raises CorruptRecord, UnknownFormat, OSError."""
    fd = disk.open_read(path)
    try:
        data = disk.read(fd, disk.size(fd), 0)
    finally:
        disk.close(fd)
    if len(data) < CHECKPOINT_HEADER_BYTES:
        raise CorruptRecord(str(path), len(data), "the checkpoint is cut off")
    magic, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or crc != crc32c(data[_HEAD.size :]):
        raise CorruptRecord(str(path), 0, "the checkpoint's checksum does not match")
    version, partition, epoch, known, position, sequence, before, its_salt, length = _TAIL.unpack_from(data, _HEAD.size)
    if version != FORMAT_VERSION:
        raise UnknownFormat(f"{path}: checkpoint format version {version} is not known, only {FORMAT_VERSION}")
    if its_salt != salt or length != len(data) - CHECKPOINT_HEADER_BYTES:
        raise CorruptRecord(str(path), 0, "the checkpoint belongs to another log")
    chain = Chain(Position(position), sequence, before if known else None)
    return StoredCheckpoint(Checkpoint(Position(position), data[CHECKPOINT_HEADER_BYTES:]), chain, epoch, partition, its_salt)
