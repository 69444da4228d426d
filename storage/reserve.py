"""A file of zeros that is given up when the disk is full, so that settlements still find room (durability rule 6).

Held: sends and settlements are written as the disk lets them. A settlement that finds the disk full releases the
reserve and takes what it needs. From then on sends are refused unseen, so that what was released, and what draining
gives back, serves settlements alone, until the reserve could be made anew: then there is room again.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import structlog

from storage.disk import Disk, close_quietly, write_all

_log = structlog.get_logger()


class Reserve:
    """The reserve of one store. `hold` and `release` block, and may be called from any thread."""

    def __init__(self, disk: Disk, path: Path, size_bytes: int) -> None:
        self._disk = disk
        self._path = path
        self._size_bytes = size_bytes
        self._mutex = threading.Lock()
        self.held = size_bytes == 0
        """Whether there is room for commits that are not urgent, as far as is known."""

    def hold(self) -> bool:
        """Take the room, if there is as much; gives whether it is held."""
        with self._mutex:
            if not self.held:
                self.held = self._create()
                if self.held:
                    _log.info("reserve.held", path=str(self._path), bytes=self._size_bytes)
            return self.held

    def _create(self) -> bool:
        fd = -1
        try:
            if self._path.name in self._disk.names(self._path.parent):
                fd = self._disk.open_read(self._path)
                if self._disk.size(fd) == self._size_bytes:
                    return True  # it was held when the broker stopped
                close_quietly(self._disk, fd)
            fd = self._disk.create(self._path)
            write_all(self._disk, fd, [bytes(self._size_bytes)], 0)
            self._disk.sync(fd)  # only now has the file system given it room
        except OSError:
            self._remove()
            return False
        finally:
            close_quietly(self._disk, fd)
        return True

    def release(self) -> None:
        """Give the room to whoever writes next."""
        with self._mutex:
            if self.held and self._size_bytes:
                self.held = False
                self._remove()
                _log.warning("reserve.released", path=str(self._path), bytes=self._size_bytes)

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self._disk.remove(self._path)
