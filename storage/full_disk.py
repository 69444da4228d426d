"""A full disk: what may still be written, and the files of zeros that are given up then (durability rule 6).

Messages are refused as long as the disk has only room for what draining needs (`drain_room.py`). So
settlements normally find room without what follows, which is for everything that no need foresees.

Two *reserves* hold space back. While both are held, commits are written as long as the disk accepts them. A
settlement that finds the disk full releases the reserve for settlements and uses its space. From then on,
sends are refused without being tried, so that this space, and whatever draining frees, is left to
settlements. Once there is enough space to create the reserve again, sends are accepted again.

Settlements free space in the end, but some also add to what must be kept: properties that they change, states
of message sessions, the reasons of dead letters. These *grow*, and together they may add no more than a
fraction of the reserve for settlements until the disk has room again, so that the rest is left to
settlements that free. Whoever decides on them asks first (`take_growth`). If it was not known that the disk
is full, their commit is refused unless it fits into that fraction. What is added is kept at most three times:
in the log and in two checkpoints. With a fraction of one eighth, that is less than half of the reserve.

The second, smaller reserve is for work that frees space: trimming, compaction, checkpoints and acquiring a
log write a little before they free much. It is created again first. While it is released, settlements are
refused too, so that they do not use up the space that this work needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import structlog

from storage.disk import Disk, close_quietly, write_all
from storage.errors import DiskFull
from storage.sizing import GROWTHS_PER_RESERVE, UPKEEP_RESERVES

_log = structlog.get_logger()


class Reserve:
    """The reserve of one store. `hold` and `release` block, and may be called from any thread."""

    def __init__(self, disk: Disk, path: Path, size_bytes: int) -> None:
        self._disk = disk
        self._path = path
        self._size_bytes = size_bytes
        self._mutex = threading.Lock()
        self.held = size_bytes == 0
        """Whether there is space for everything else, as far as is known."""
        self.given_up = False
        """Whether it was released and has not been taken again."""

    def hold(self) -> bool:
        """Take the space if there is enough; returns whether it is held."""
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
                    return True  # it was still held when the broker stopped
                close_quietly(self._disk, fd)
                fd = -1
                self._disk.remove(self._path)
            if self._disk.space(self._path.parent).free < self._size_bytes:
                return False  # trying would briefly take the little space there is from settlements
            fd = self._disk.create(self._path)
            write_all(self._disk, fd, [bytes(self._size_bytes)], 0)
            self._disk.sync(fd)  # some file systems allocate the space only now
        except OSError:
            self._remove()
            return False
        finally:
            close_quietly(self._disk, fd)
        return True

    def release(self) -> bool:
        """Free the space for the next write. Returns whether it was held."""
        with self._mutex:
            was_held = self.held and self._size_bytes > 0
            if was_held:
                self.held = False
                self.given_up = True
                self._remove()
                _log.warning("reserve.released", path=str(self._path), bytes=self._size_bytes)
            return was_held

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def resize(self, size_bytes: int) -> None:
        """Change the size. Call this before the reserve is first taken."""
        self._size_bytes = size_bytes
        self.held = size_bytes == 0

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self._disk.remove(self._path)


class Reserves:
    """Both reserves of a store, in its root folder."""

    def __init__(self, disk: Disk, root: Path, size_bytes: int) -> None:
        """`size_bytes` is for settlements; a fraction of it is added for upkeep."""
        self.settlements = Reserve(disk, root / "reserve", size_bytes)
        self.upkeep = Reserve(disk, root / "reserve-upkeep", size_bytes // UPKEEP_RESERVES)
        self._mutex = threading.Lock()
        self._grown_bytes = 0
        """What was added by commits that grow since the disk became full."""

    @property
    def held(self) -> bool:
        """Whether there is space for commits that are not urgent, as far as is known."""
        return self.settlements.held and self.upkeep.held

    def hold(self) -> bool:
        """Take the space if there is enough. Blocks."""
        return self.upkeep.hold() and self.settlements.hold()

    def take_growth(self, each: int, count: int = 1) -> int:
        """How many of `count` additions of `each` bytes may be made while the disk is full; these are
        counted."""
        with self._mutex:
            left = self.settlements.size_bytes // GROWTHS_PER_RESERVE - self._grown_bytes
            fitting = min(count, max(left, 0) // each) if each else count
            self._grown_bytes += each * fitting
            return fitting

    def forget_growth(self) -> None:
        """The disk has room for all that was added, so as much may be added the next time it is full."""
        with self._mutex:
            self._grown_bytes = 0

    async def admit(self, log: Path, executor: Executor, *, urgent: bool, grows_by: int = 0) -> None:
        """Decide whether a commit may be written while the reserves are not held.

        Raises DiskFull for a send, for a settlement (`urgent`) while upkeep needs the remaining space, and
        for one that grows by more than may be added.
        """
        if not urgent:
            raise DiskFull(f"{log}: the remaining room is kept for settlements")
        if self.upkeep.given_up and not await asyncio.get_running_loop().run_in_executor(
            executor, self.upkeep.hold
        ):
            raise DiskFull(f"{log}: the remaining room is needed to make more")
        if grows_by and not self.take_growth(grows_by):
            raise DiskFull(f"{log}: the remaining room is kept for settlements that free some")

    def spare_for(self, *, urgent: bool, frees: bool, grows_by: int = 0) -> Callable[[], None] | None:
        """A function that releases the reserve for a commit that finds the disk full, or raises DiskFull if
        it grows by too much; None for a send, which may use no reserve."""
        if frees:
            return self.release
        return partial(self._release_for_settlements, grows_by) if urgent else None

    def _release_for_settlements(self, grows_by: int) -> None:
        if self.settlements.release():
            with self._mutex:
                self._grown_bytes = 0
        if grows_by and not self.take_growth(grows_by):
            raise DiskFull("the disk is full, and the reserve is kept for settlements that free room")

    def resize(self, size_bytes: int) -> None:
        """Change the sizes. Call this before the reserves are first taken."""
        self.settlements.resize(size_bytes)
        self.upkeep.resize(size_bytes // UPKEEP_RESERVES)

    def release(self) -> None:
        """Release both, for something that must be written before anything can be freed. Blocks."""
        self.upkeep.release()
        self._release_for_settlements(0)

    @property
    def held_bytes(self) -> int:
        """How many bytes `release` would free."""
        return sum(each.size_bytes for each in (self.settlements, self.upkeep) if each.held)
