"""Locks data folders, so that no broker and no other repair uses them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from storage.disk import Disk, close_quietly, disk_error
from storage.folders import LOCK_NAME


class InUse(Exception):
    """A broker or another repair holds the folder's lock."""


class FolderLocks:
    """The locks of some data folders."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._fds: list[int] = []

    def take(self, roots: Sequence[Path]) -> None:
        """Take all locks or none. Raises InUse, DiskFailed."""
        for root in roots:
            try:
                self._fds.append(self._disk.lock(root / LOCK_NAME))
            except BlockingIOError as error:
                self.release()
                raise InUse(
                    f"{root}: a broker uses this folder. Stop it first; `partibus check` works beside it."
                ) from error
            except OSError as error:
                self.release()
                raise disk_error(error, root) from error

    def release(self) -> None:
        """Release all locks."""
        while self._fds:
            close_quietly(self._disk, self._fds.pop())
