"""Descriptors for reading, shared by all logs: at most so many are kept open, the longest unused is closed first.

Thread-safe; a descriptor is never closed while a thread reads from it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from storage.disk import Disk, close_quietly


class _OpenFile:
    __slots__ = ("fd", "kept", "readers")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.readers = 0
        self.kept = True


class OpenFiles:
    """Files open for reading, by path."""

    def __init__(self, disk: Disk, files_max: int) -> None:
        self._disk = disk
        self._files_max = files_max
        self._files: OrderedDict[Path, _OpenFile] = OrderedDict()
        self._mutex = threading.Lock()

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[int]:
        """A descriptor for the time of the `with` block. Raises OSError."""
        with self._mutex:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = _OpenFile(self._disk.open_read(path))
            self._files.move_to_end(path)
            file.readers += 1
            if len(self._files) > self._files_max:
                self._drop(next(iter(self._files)))
        try:
            yield file.fd
        finally:
            with self._mutex:
                file.readers -= 1
                self._close_unused(file)

    def forget(self, path: Path) -> None:
        """Close the file, as soon as nobody reads from it."""
        with self._mutex:
            if path in self._files:
                self._drop(path)

    def close(self) -> None:
        """Close all."""
        with self._mutex:
            for path in list(self._files):
                self._drop(path)

    def _drop(self, path: Path) -> None:
        file = self._files.pop(path)
        file.kept = False
        self._close_unused(file)

    def _close_unused(self, file: _OpenFile) -> None:
        if not file.kept and not file.readers:
            close_quietly(self._disk, file.fd)
