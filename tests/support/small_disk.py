"""The machine's disk with a limit on the size of one folder, so that it really fills up without filling the
machine's disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from storage.disk import LocalDisk, Space


class SmallDisk(LocalDisk):
    """Refuses with ENOSPC writes that would make the files below `root` exceed `capacity_bytes` in total."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.capacity_bytes: int | None = None
        """None for no limit; may be changed at any time."""
        self._root = root

    @property
    def used_bytes(self) -> int:
        """Total size of all files."""
        sizes = 0
        for folder, _, names in os.walk(self._root):
            for name in names:
                try:
                    sizes += os.stat(os.path.join(folder, name)).st_size
                except FileNotFoundError:
                    continue
        return sizes

    def space(self, directory: Path) -> Space:
        capacity = self.capacity_bytes
        return (
            super().space(directory)
            if capacity is None
            else Space(capacity, max(0, capacity - self.used_bytes))
        )

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        self._grow(fd, offset + sum(map(len, buffers)))
        return super().write(fd, buffers, offset)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        self._grow(fd, offset + size)
        super().allocate(fd, offset, size)

    def _grow(self, fd: int, size: int) -> None:
        """Raise ENOSPC if there is no room for a file of this size."""
        growth = size - os.fstat(fd).st_size
        if self.capacity_bytes is not None and growth > 0 and self.used_bytes + growth > self.capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
