"""Descriptors for reading, shared by all logs. Their number is bounded; the least recently used one is closed
first.

Thread-safe. A descriptor is never closed while a thread reads from it. Files are opened and closed without
holding the mutex, because the event loop takes it too and a disk may be slow to open or close a file.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from storage.disk import Disk, close_quietly

Reading = Callable[[Path], AbstractContextManager[int]]
"""`OpenFiles.reading` or `OpenFiles.reading_if_open`."""


class _OpenFile:
    __slots__ = ("fd", "kept", "readers")

    def __init__(self) -> None:
        self.fd = -1
        """-1 until the file is open."""
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
        """A descriptor for the duration of the `with` block, opened if necessary. Blocks. Raises OSError."""
        dropped: list[int] = []
        with self._mutex:
            file = self._files.get(path)
            if file is None or file.fd < 0:  # another thread may be opening the file; do not wait for it
                file = self._files[path] = _OpenFile()
            self._files.move_to_end(path)
            file.readers += 1
        try:
            if file.fd < 0:
                file.fd = self._disk.open_read(path)
                with self._mutex:
                    while len(self._files) > self._files_max:
                        dropped += self._drop(next(iter(self._files)))
                self._close(dropped)
            yield file.fd
        finally:
            with self._mutex:
                if file.fd < 0 and self._files.get(path) is file:
                    del self._files[path]
                unused = self._leave(path, file)
            self._close(unused)

    @contextlib.contextmanager
    def reading_if_open(self, path: Path) -> Iterator[int]:
        """The same for the event loop, which must not block. Raises BlockingIOError if the file is not
        open."""
        with self._mutex:
            file = self._files.get(path)
            if file is None or file.fd < 0:
                raise BlockingIOError(f"{path} is not open")
            self._files.move_to_end(path)
            file.readers += 1
        try:
            yield file.fd
        finally:
            with self._mutex:
                unused = self._leave(path, file)
            self._close(unused)

    def forget(self, path: Path) -> None:
        """Close the file as soon as nobody reads from it."""
        with self._mutex:
            dropped = self._drop(path) if path in self._files else []
        self._close(dropped)

    def close(self) -> None:
        """Close all files."""
        with self._mutex:
            dropped = [fd for path in list(self._files) for fd in self._drop(path)]
        self._close(dropped)

    def _leave(self, path: Path, file: _OpenFile) -> list[int]:
        """A reader is done. Gives the descriptors to close."""
        file.readers -= 1
        if self._files.get(path) is not file:  # forgotten, or opened by another thread as well
            file.kept = False
        return self._unused(file)

    def _drop(self, path: Path) -> list[int]:
        file = self._files.pop(path)
        file.kept = False
        return self._unused(file)

    @staticmethod
    def _unused(file: _OpenFile) -> list[int]:
        if file.kept or file.readers or file.fd < 0:
            return []
        fd, file.fd = file.fd, -1
        return [fd]

    def _close(self, fds: list[int]) -> None:
        for fd in fds:
            close_quietly(self._disk, fd)
