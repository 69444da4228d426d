"""broker/maintenance/locking.py: all folders are locked, or none."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from broker.maintenance.locking import FolderLocks, InUse
from storage.disk import LocalDisk
from storage.errors import DiskFailed
from tests.support.faulty_disk import FaultyDisk


def test_all_folders_are_locked_or_none(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    first, second = FolderLocks(LocalDisk()), FolderLocks(LocalDisk())
    first.take(folders[1:])
    with pytest.raises(InUse, match=r"/b: a broker uses this folder"):
        second.take(folders)
    first.take(folders[:1])
    first.release()
    second.take(folders)
    second.release()


def test_a_lock_that_cannot_be_opened_is_said_in_words_and_leaves_none_taken(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    disk.fail("lock", errno.EROFS, nth=2)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    folders = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(DiskFailed, match="b/lock: Read-only file system"):
        FolderLocks(disk).take(folders)
    FolderLocks(disk).take(folders)
