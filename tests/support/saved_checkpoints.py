"""Checkpoints of one section, saved to a disk in memory."""

from __future__ import annotations

from pathlib import Path

from storage.checkpoint import CHECKPOINT_SUFFIX
from storage.checkpoints import Anchor, Checkpoints
from storage.log import Checkpoint, Position, Section
from storage.record import Chain
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/")
SALT = b"s" * 16


def anchor(position: int, *, known: bool = True) -> Anchor:
    """A place in the log; `known`: whether its digest is."""
    return Anchor(Chain(Position(position), 4 if known else 0, b"d" * 16 if known else None), 2, 9, SALT)


def found(disk: RecordingDisk, start: int = 0, salt: bytes = SALT) -> Checkpoints:
    """The checkpoints on a disk."""
    return Checkpoints.find(disk, ROOT, disk.names(ROOT), salt, Position(start))


def save(
    kept: Checkpoints, disk: object, position: int, blocks: dict[int, bytes], *, is_complete: bool = False
) -> None:
    """Save a checkpoint of one section."""
    checkpoint = Checkpoint(Position(position), (Section("state", 3, blocks),))
    kept.save(disk, checkpoint, anchor(position), is_complete=is_complete)  # type: ignore[arg-type]


def files(disk: RecordingDisk) -> list[Path]:
    """The checkpoint files on a disk."""
    return sorted(ROOT / name for name in disk.names(ROOT) if name.endswith(CHECKPOINT_SUFFIX))
