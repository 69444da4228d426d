"""Files of zeros that are given up when the disk is full, so that settlements and upkeep still find room
(durability rule 6).

Held: sends and settlements are written as the disk lets them. A settlement that finds the disk full releases
the reserve and takes what it needs. From then on sends are refused unseen, so that what was released, and
what draining gives back, serves settlements alone, until the reserve could be made anew: then there is room
again.

A second, smaller reserve is for what gives room back: trimming and compaction must write a little before they
free much. It comes back first, and as long as it has been given up, settlements wait for it too: they must
not use up what would help them.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import structlog

from storage.disk import Disk, close_quietly, write_all
from storage.sizing import UPKEEP_RESERVES

_log = structlog.get_logger()


class Reserve:
    """The reserve of one store. `hold` and `release` block, and may be called from any thread."""

    def __init__(self, disk: Disk, path: Path, size_bytes: int) -> None:
        self._disk = disk
        self._path = path
        self._size_bytes = size_bytes
        self._mutex = threading.Lock()
        self.held = size_bytes == 0
        """Whether there is room for what this reserve is not for, as far as is known."""
        self.given_up = False
        """It was held and released, and is not held again."""

    def hold(self) -> bool:
        """Take the room, if there is as much; gives whether it is held."""
        with self._mutex:
            if not self.held:
                self.held = self._create()
                if self.held:
                    self.given_up = False
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
                fd = -1
                self._disk.remove(self._path)
            if self._disk.space(self._path.parent).free < self._size_bytes:
                return False  # trying would take what little there is from settlements, for a moment
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
                self.given_up = True
                self._remove()
                _log.warning("reserve.released", path=str(self._path), bytes=self._size_bytes)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def resize(self, size_bytes: int) -> None:
        """Another size, before it is first held."""
        self._size_bytes = size_bytes
        self.held = size_bytes == 0

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self._disk.remove(self._path)


class Reserves:
    """Both reserves of a store, in its root folder."""

    def __init__(self, disk: Disk, root: Path, size_bytes: int) -> None:
        """`size_bytes` is for settlements; a part of it comes on top for upkeep."""
        self.settlements = Reserve(disk, root / "reserve", size_bytes)
        self.upkeep = Reserve(disk, root / "reserve-upkeep", size_bytes // UPKEEP_RESERVES)

    @property
    def held(self) -> bool:
        """Whether there is room for commits that are not urgent, as far as is known."""
        return self.settlements.held and self.upkeep.held

    def hold(self) -> bool:
        """Take the room, if there is as much. Blocks."""
        return self.upkeep.hold() and self.settlements.hold()

    def resize(self, size_bytes: int) -> None:
        """Another size, before they are first held."""
        self.settlements.resize(size_bytes)
        self.upkeep.resize(size_bytes // UPKEEP_RESERVES)

    def release(self) -> None:
        """Give the room to whatever must be written before anything is freed. Blocks."""
        self.upkeep.release()
        self.settlements.release()

    @property
    def held_bytes(self) -> int:
        """What `release` would give."""
        return sum(each.size_bytes for each in (self.settlements, self.upkeep) if each.held)
