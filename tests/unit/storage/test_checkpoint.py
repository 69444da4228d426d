"""One checkpoint, byte by byte: it comes back, and one of another log or a later format is refused."""

from __future__ import annotations

import struct

import pytest

from storage.checkpoints import Checkpoints
from storage.errors import CorruptRecord, UnknownFormat
from storage.log import Checkpoint, Position, Section
from storage.record import crc32c
from tests.support.recording_disk import RecordingDisk
from tests.support.saved_checkpoints import ROOT, SALT, anchor, files, found, save


@pytest.mark.parametrize("known", [True, False])
def test_a_checkpoint_comes_back(known: bool) -> None:
    disk = RecordingDisk()
    sections = (
        Section("one", 1, {0: b"zero", 1 << 60: b"far"}),
        Section("two", 2, {}),
        Section("3", 7, {5: b"5"}),
    )
    checkpoint = Checkpoint(Position(100), sections)
    Checkpoints(ROOT).save(disk, checkpoint, anchor(100, known=known))
    kept = found(disk)
    assert kept.load(disk, Position(0)) == checkpoint
    newest = kept.newest
    assert newest is not None and newest.chain == anchor(100, known=known).chain
    assert (newest.epoch, newest.partition, newest.salt, newest.serial) == (2, 9, SALT, 1)
    assert disk.open_files == 0


def test_one_of_another_log_or_a_later_format_is_refused() -> None:
    disk = RecordingDisk()
    save(Checkpoints(ROOT), disk, 5, {})
    with pytest.raises(CorruptRecord, match="another log"):
        found(disk, start=1, salt=b"o" * 16)
    data = disk.contents(files(disk)[0])
    struct.pack_into("<H", data, 12, 3)
    struct.pack_into("<I", data, 8, crc32c(bytes(data[12:])))
    with pytest.raises(UnknownFormat, match="version 3"):
        found(disk)
