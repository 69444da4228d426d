"""An in-memory disk that records what was synced, and can give the disk a power cut at this moment would
leave.

Files: bytes are durable once `sync` follows the write. Names: a directory entry is durable once
`sync_directory` follows its creation, renaming or removal. Of everything else, a power cut keeps nothing, or
any part: whole directory changes, and any of the 512-byte sectors of each write.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from storage.commit_queue import CommitQueue, CommitShare
from storage.disk import Space, write_all

SECTOR_BYTES = 512
ENDLESS_BYTES = 1 << 50
"""Size of a disk without a capacity."""


class _File:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = bytes(data)
        self.pending: list[tuple[int, bytes] | int] = []
        """Writes (offset, bytes) and truncations (size) since the last sync, in order."""

    def write(self, offset: int, data: bytes) -> None:
        _place(self.data, offset, data)
        self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        _cut(self.data, size)
        self.pending.append(size)

    def sync(self) -> None:
        self.synced = bytes(self.data)
        self.pending.clear()

    def after_power_cut(self, keep: Callable[[], bool]) -> _File:
        data = bytearray(self.synced)
        for change in self.pending:
            if isinstance(change, int):
                if keep():
                    _cut(data, change)
                continue
            offset, written = change
            for begin, end in _sectors(offset, offset + len(written)):
                if keep():
                    _place(data, begin, written[begin - offset : end - offset])
        return _File(bytes(data))


class _Directory:
    def __init__(self) -> None:
        self.entries: dict[str, _File | _Directory] = {}
        self.durable: dict[str, _File | _Directory] = {}
        self.pending: list[dict[str, _File | _Directory | None]] = []

    def change(self, changes: dict[str, _File | _Directory | None]) -> None:
        _apply(self.entries, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        for changes in self.pending:
            _apply(self.durable, changes)
        self.pending.clear()

    def after_power_cut(self, keep: Callable[[], bool]) -> _Directory:
        entries = dict(self.durable)
        for changes in self.pending:
            if keep():
                _apply(entries, changes)
        left = _Directory()
        left.entries = {name: node.after_power_cut(keep) for name, node in entries.items()}
        left.durable = dict(left.entries)
        return left


class RecordingDisk:
    """See `storage.disk.Disk`. With `queued` it has a commit queue; otherwise commits go through threads."""

    def __init__(self, *, queued: bool = False, capacity_bytes: int | None = None) -> None:
        self.before_sync: Callable[[], None] | None = None
        """Called before each sync of a file or directory takes effect."""
        self.capacity_bytes = capacity_bytes
        self._queued = queued
        self._root = _Directory()
        self._open: dict[int, _File] = {}
        self._next_fd = 1_000
        self._mutex = threading.RLock()

    def after_power_cut(self, rng: random.Random | None = None) -> RecordingDisk:
        """The disk without anything unsynced, or with whatever `rng` keeps of it."""
        return self._left((lambda: rng.random() < 0.5) if rng else (lambda: False))

    def after_kill(self) -> RecordingDisk:
        """The disk with all that was written, and nothing that is written later."""
        return self._left(lambda: True)

    def _left(self, keep: Callable[[], bool]) -> RecordingDisk:
        with self._mutex:
            left = RecordingDisk(queued=self._queued, capacity_bytes=self.capacity_bytes)
            left._root = self._root.after_power_cut(keep)
            return left

    def lose(self, path: Path) -> None:
        """A sync of this directory has failed: its changes so far count as written, and no later sync writes
        them.
        """
        with self._mutex:
            node = self._node(path)
            assert isinstance(node, _Directory)
            node.pending.clear()

    def contents(self, path: Path) -> bytearray:
        """A file's bytes, to inspect or damage."""
        node = self._node(path)
        assert isinstance(node, _File)
        return node.data

    @property
    def open_files(self) -> int:
        """Number of open descriptors."""
        return len(self._open)

    # --- Disk ---

    def names(self, directory: Path) -> list[str]:
        with self._mutex:
            try:
                node = self._node(directory)
            except FileNotFoundError:
                return []
            assert isinstance(node, _Directory)
            return list(node.entries)

    def make_directory(self, path: Path) -> None:
        with self._mutex:
            parent = self._parent(path)
            if path.name and path.name not in parent.entries:
                parent.change({path.name: _Directory()})

    def remove_tree(self, path: Path) -> None:
        self.remove(path)

    def sync_directory(self, path: Path) -> None:
        with self._mutex, self._syncing():
            node = self._node(path)
            assert isinstance(node, _Directory)
            node.sync()

    def create(self, path: Path) -> int:
        with self._mutex:
            parent = self._parent(path)
            file = parent.entries.get(path.name)
            if file is None:
                file = _File()
                parent.change({path.name: file})
            assert isinstance(file, _File)
            file.truncate(0)
            return self._opened(file)

    def open_write(self, path: Path) -> int:
        with self._mutex:
            node = self._node(path)
            assert isinstance(node, _File)
            return self._opened(node)

    def open_read(self, path: Path) -> int:
        return self.open_write(path)

    def close(self, fd: int) -> None:
        with self._mutex:
            del self._open[fd]

    def space(self, directory: Path) -> Space:
        with self._mutex:
            self._node(directory)
            if self.capacity_bytes is None:
                return Space(ENDLESS_BYTES, ENDLESS_BYTES)
            return Space(self.capacity_bytes, max(0, self.capacity_bytes - self._used()))

    def size(self, fd: int) -> int:
        return len(self._open[fd].data)

    def identity(self, fd: int) -> tuple[int, int]:
        return 0, id(self._open[fd])

    def read(self, fd: int, size: int, offset: int) -> bytes:
        with self._mutex:
            return bytes(self._open[fd].data[offset : offset + size])

    def read_cached(self, fd: int, size: int, offset: int) -> bytes:
        return self.read(fd, size, offset)

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        with self._mutex:
            file, data = self._open[fd], b"".join(buffers)
            if self.capacity_bytes is not None:
                growth_max = self.capacity_bytes - self._used()
                fits = max(len(file.data) - offset, 0) + max(growth_max, 0)
                if data and not fits:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                data = data[:fits]
            file.write(offset, data)
            return len(data)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        if self.write(fd, [bytes(size)], offset) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, fd: int) -> None:
        with self._mutex, self._syncing():
            self._open[fd].sync()

    def truncate(self, fd: int, size: int) -> None:
        with self._mutex:
            self._open[fd].truncate(size)

    def rename(self, source: Path, target: Path) -> None:
        with self._mutex:
            parent = self._parent(source)
            assert source.parent == target.parent, "renamed within a directory"
            parent.change({source.name: None, target.name: self._node(source)})

    def remove(self, path: Path) -> None:
        with self._mutex:
            parent = self._parent(path)
            if path.name in parent.entries:
                parent.change({path.name: None})

    def lock(self, path: Path) -> int:
        with self._mutex:
            if path.name not in self.names(path.parent):
                return self.create(path)
            return self.open_write(path)

    def commit_queue(self) -> CommitQueue | None:
        return _CommitQueue(self) if self._queued else None

    # --- within ---

    def _opened(self, file: _File) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = file
        return self._next_fd

    @contextmanager
    def _syncing(self) -> Iterator[None]:
        if self.before_sync is not None:
            self.before_sync()
        yield

    def _node(self, path: Path) -> _File | _Directory:
        node: _File | _Directory = self._root
        for part in path.parts[1:]:
            if not isinstance(node, _Directory) or part not in node.entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = node.entries[part]
        return node

    def _parent(self, path: Path) -> _Directory:
        node = self._node(path.parent)
        assert isinstance(node, _Directory)
        return node

    def _used(self) -> int:
        def used(node: _File | _Directory) -> int:
            return len(node.data) if isinstance(node, _File) else sum(map(used, node.entries.values()))

        return used(self._root)


class _CommitQueue:
    """Writes and syncs at once, and reports completion later."""

    def __init__(self, disk: RecordingDisk) -> None:
        self._disk = disk
        self._ended: list[tuple[int, int, bool]] = []
        self._ready_fd = os.eventfd(0, os.EFD_NONBLOCK)

    @property
    def ready_fd(self) -> int:
        return self._ready_fd

    def submit(self, shares: Sequence[CommitShare]) -> int:
        for number, fd, buffers, offset, syncs in shares:
            try:
                write_all(self._disk, fd, buffers, offset)
            except OSError as error:
                assert error.errno is not None
                self._ended.append((number, error.errno, False))
                continue
            if syncs:
                self._disk.sync(fd)
            self._ended.append((number, 0, True))
        os.eventfd_write(self._ready_fd, len(shares))
        return len(shares)

    def ended(self) -> list[tuple[int, int, bool]]:
        os.eventfd_read(self._ready_fd)
        ended, self._ended = self._ended, []
        return ended

    def take_back(self) -> list[int]:
        return []

    def close(self) -> None:
        os.close(self._ready_fd)


def _sectors(begin: int, end: int) -> Iterator[tuple[int, int]]:
    while begin < end:
        stop = min(end, (begin // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield begin, stop
        begin = stop


def _place(data: bytearray, offset: int, written: bytes) -> None:
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(written)] = written


def _cut(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


def _apply(entries: dict[str, _File | _Directory], changes: dict[str, _File | _Directory | None]) -> None:
    for name, node in changes.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node
