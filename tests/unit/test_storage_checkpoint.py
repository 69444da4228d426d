"""storage/checkpoint.py: what is kept of an owner's state."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from storage.checkpoint import StoredCheckpoint, checkpoint_paths, newest_checkpoint, write_checkpoint
from storage.errors import CommitFailed, CorruptRecord, UnknownFormat
from storage.log import Checkpoint, Position
from storage.record import Chain, crc32c
from tests.support.faulty_disk import FaultyDisk
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/")
SALT = b"s" * 16


def stored(position: int, *, known: bool = True) -> StoredCheckpoint:
    chain = Chain(Position(position), 4 if known else 0, b"d" * 16 if known else None)
    return StoredCheckpoint(Checkpoint(Position(position), b"state at %d" % position), chain, 2, 9, SALT)


def newest(disk: RecordingDisk, start: int = 0) -> StoredCheckpoint | None:
    return newest_checkpoint(disk, checkpoint_paths(ROOT, disk.names(ROOT)), SALT, Position(start))


@pytest.mark.parametrize("known", [True, False])
def test_a_checkpoint_comes_back(known: bool) -> None:
    disk = RecordingDisk()
    write_checkpoint(disk, ROOT, stored(100, known=known))
    assert newest(disk) == stored(100, known=known)
    assert disk.open_files == 0


def test_the_two_newest_are_kept() -> None:
    disk = RecordingDisk()
    for position in (5, 300, 10_000, 10_001):
        write_checkpoint(disk, ROOT, stored(position))
    assert sorted(disk.names(ROOT)) == ["0000000000002710.checkpoint", "0000000000002711.checkpoint"]
    assert newest(disk) == stored(10_001)


def test_one_at_the_same_position_replaces_the_other() -> None:
    disk = RecordingDisk()
    write_checkpoint(disk, ROOT, stored(5, known=False))
    write_checkpoint(disk, ROOT, stored(5))
    assert newest(disk) == stored(5)


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_directory"])
def test_a_failure_leaves_the_one_before(operation: str) -> None:
    disk = RecordingDisk()
    write_checkpoint(disk, ROOT, stored(5))
    disk.sync_directory(ROOT)
    faulty = FaultyDisk(disk)
    faulty.fail(operation)
    with pytest.raises(CommitFailed):
        write_checkpoint(faulty, ROOT, stored(6))
    assert newest(disk.after_power_cut()) == stored(5)
    assert disk.open_files == 0


def test_without_any_the_log_is_read_from_its_start_unless_it_was_trimmed() -> None:
    disk = RecordingDisk()
    assert newest(disk) is None
    with pytest.raises(CorruptRecord, match="missing"):
        newest(disk, start=1)
    write_checkpoint(disk, ROOT, stored(5))
    with pytest.raises(CorruptRecord, match="trimmed up to 6"):
        newest(disk, start=6)


def test_one_of_another_log_or_a_later_format_is_refused() -> None:
    disk = RecordingDisk()
    write_checkpoint(disk, ROOT, stored(5))
    path = ROOT / disk.names(ROOT)[0]
    with pytest.raises(CorruptRecord, match="another log"):
        newest_checkpoint(disk, [path], b"o" * 16, Position(1))
    data = disk.contents(path)
    struct.pack_into("<H", data, 12, 2)
    struct.pack_into("<I", data, 8, crc32c(bytes(data[12:])))
    with pytest.raises(UnknownFormat, match="version 2"):
        newest(disk)
