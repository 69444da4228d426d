"""broker/maintenance/locking.py: all folders are locked, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.maintenance.locking import FolderLocks, InUse
from storage.disk import LocalDisk


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
