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
        capacity = self.capacity_bytes
        if capacity is not None:
            growth = offset + sum(map(len, buffers)) - os.fstat(fd).st_size
            if growth > 0 and self.used_bytes + growth > capacity:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, buffers, offset)
