"""A disk wrapper that fails, shortens, corrupts or delays calls as a test tells it to."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.commit_queue import CommitQueue, CommitShare
from storage.disk import Disk, Space, write_all

OPERATIONS = (
    "names", "make_directory", "remove_tree", "sync_directory", "create", "open_write", "open_read", "space",
    "size", "identity", "read",
    "read_cached", "write", "allocate", "sync", "truncate", "rename", "remove", "lock",
)  # fmt: skip
"""Operations that can be made to fail. What the queue does counts as a `write` and a `sync`."""


@dataclass
class _Fault:
    operation: str
    path_part: str
    skip: int
    times: int
    error: int
    bytes_max: int


class FaultyDisk:
    """See `storage.disk.Disk`. Faults are counted across all threads."""

    def __init__(self, inner: Disk, lose: Callable[[Path], None] | None = None) -> None:
        """`lose` is called with each directory whose sync failed, so that the underlying disk can drop what
        was not written.
        """
        self.calls: Counter[str] = Counter()
        """Calls per operation."""
        self._inner = inner
        self._lose = lose
        self._faults: list[_Fault] = []
        self._flips: list[tuple[str, int]] = []
        self._holds: list[tuple[str, str]] = []
        self._free = threading.Event()
        self._free.set()
        self.held = 0
        """Number of calls now hanging."""
        self._paths: dict[int, Path] = {}
        self._mutex = threading.Lock()

    def fail(
        self, operation: str, error: int = errno.EIO, *, nth: int = 1, times: int = 1, path_part: str = ""
    ) -> None:
        """Make the nth call from now, and the `times - 1` after it, fail; only calls on paths that contain
        `path_part` count.
        """
        assert operation in OPERATIONS
        with self._mutex:
            self._faults.append(_Fault(operation, path_part, nth - 1, times, error, -1))

    def shorten(self, bytes_max: int, *, nth: int = 1, path_part: str = "") -> None:
        """Make the nth write from now write at most `bytes_max` bytes."""
        with self._mutex:
            self._faults.append(_Fault("write", path_part, nth - 1, 1, 0, bytes_max))

    def flip_on_read(self, path_part: str, offset: int) -> None:
        """From now on, reads return a flipped bit in the byte at `offset` of files whose paths contain
        `path_part`.
        """
        self._flips.append((path_part, offset))

    def hang(self, operation: str, path_part: str = "") -> None:
        """From now on, these calls block until `release`, on paths that contain `path_part`."""
        assert operation in OPERATIONS
        with self._mutex:
            self._holds.append((operation, path_part))
            self._free.clear()

    def release(self) -> None:
        """Release all hanging calls; later calls do not hang."""
        with self._mutex:
            self._holds.clear()
            self._free.set()

    def hangs(self, operation: str, path: Path) -> bool:
        """Whether such a call would hang."""
        return any(each == operation and part in str(path) for each, part in self._holds)

    def _wait(self, operation: str, path: Path) -> None:
        with self._mutex:
            if not self.hangs(operation, path):
                return
            self.held += 1
        self._free.wait()
        with self._mutex:
            self.held -= 1

    def heal(self) -> None:
        """Remove all faults."""
        with self._mutex:
            self._faults.clear()
            self._flips.clear()

    @property
    def has_failed(self) -> bool:
        """Whether every fault that `fail` and `shorten` have prepared has happened."""
        with self._mutex:
            return not any(fault.times for fault in self._faults)

    def _meet(self, operation: str, path: Path) -> int:
        """Hang or raise as the test asked; otherwise give the most bytes to write, -1 for no limit."""
        if self._holds:
            self._wait(operation, path)
        with self._mutex:
            self.calls[operation] += 1
            for fault in self._faults:
                if fault.operation != operation or fault.path_part not in str(path) or fault.times == 0:
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                if fault.error:
                    raise OSError(fault.error, os.strerror(fault.error), str(path))
                return fault.bytes_max
        return -1

    def _opened(self, fd: int, path: Path) -> int:
        self._paths[fd] = path
        return fd

    # --- Disk ---

    def names(self, directory: Path) -> list[str]:
        self._meet("names", directory)
        return self._inner.names(directory)

    def make_directory(self, path: Path) -> None:
        self._meet("make_directory", path)
        self._inner.make_directory(path)

    def remove_tree(self, path: Path) -> None:
        self._meet("remove_tree", path)
        self._inner.remove_tree(path)

    def sync_directory(self, path: Path) -> None:
        try:
            self._meet("sync_directory", path)
        except OSError:
            if self._lose is not None:
                self._lose(path)
            raise
        self._inner.sync_directory(path)

    def create(self, path: Path) -> int:
        self._meet("create", path)
        return self._opened(self._inner.create(path), path)

    def open_write(self, path: Path) -> int:
        self._meet("open_write", path)
        return self._opened(self._inner.open_write(path), path)

    def open_read(self, path: Path) -> int:
        self._meet("open_read", path)
        return self._opened(self._inner.open_read(path), path)

    def close(self, fd: int) -> None:
        self._inner.close(fd)

    def space(self, directory: Path) -> Space:
        self._meet("space", directory)
        return self._inner.space(directory)

    def size(self, fd: int) -> int:
        self._meet("size", self._paths[fd])
        return self._inner.size(fd)

    def identity(self, fd: int) -> tuple[int, int]:
        self._meet("identity", self._paths[fd])
        return self._inner.identity(fd)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        self._meet("read", self._paths[fd])
        return self._flipped(fd, self._inner.read(fd, size, offset), offset)

    def read_cached(self, fd: int, size: int, offset: int) -> bytes:
        self._meet("read_cached", self._paths[fd])
        return self._flipped(fd, bytes(self._inner.read_cached(fd, size, offset)), offset)

    def _flipped(self, fd: int, data: bytes, offset: int) -> bytes:
        for path_part, at in self._flips:
            if path_part in str(self._paths[fd]) and offset <= at < offset + len(data):
                data = data[: at - offset] + bytes([data[at - offset] ^ 0x10]) + data[at - offset + 1 :]
        return data

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        bytes_max = self._meet("write", self._paths[fd])
        if bytes_max >= 0:
            buffers = [b"".join(buffers)[:bytes_max]]
        return self._inner.write(fd, buffers, offset)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        self._meet("allocate", self._paths[fd])
        self._inner.allocate(fd, offset, size)

    def sync(self, fd: int) -> None:
        self._meet("sync", self._paths[fd])
        self._inner.sync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self._meet("truncate", self._paths[fd])
        self._inner.truncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        self._meet("rename", target)
        self._inner.rename(source, target)

    def remove(self, path: Path) -> None:
        self._meet("remove", path)
        self._inner.remove(path)

    def lock(self, path: Path) -> int:
        self._meet("lock", path)
        return self._opened(self._inner.lock(path), path)

    def commit_queue(self) -> CommitQueue | None:
        inner = self._inner.commit_queue()
        return None if inner is None else _FaultyQueue(self, inner)


class _FaultyQueue:
    def __init__(self, disk: FaultyDisk, inner: CommitQueue) -> None:
        self._disk = disk
        self._inner = inner
        self._failed: list[tuple[int, int, bool]] = []
        self._held: list[CommitShare] = []
        """Work that hangs. A queue does not block: it just never completes."""

    @property
    def ready_fd(self) -> int:
        return self._inner.ready_fd

    def submit(self, shares: Sequence[CommitShare]) -> int:
        good = [met for met in map(self._meet, shares) if met is not None]
        accepted = self._inner.submit(good) if good else 0
        assert accepted == len(good)
        return len(shares)

    def _meet(self, share: CommitShare) -> CommitShare | None:
        """What is left to do of a share; None if it fails or hangs."""
        number, fd, buffers, offset, syncs = share
        disk, path = self._disk, self._disk._paths[fd]
        while buffers:
            if disk.hangs("write", path):
                self._hold("write", (number, fd, buffers, offset, syncs))
                return None
            try:
                bytes_max = disk._meet("write", path)
            except OSError as error:
                self._fail(number, error, is_written=False)
                return None
            if bytes_max < 0:
                break
            data = b"".join(buffers)  # a short write; the rest follows
            done = disk._inner.write(fd, [data[:bytes_max]], offset)
            buffers, offset = [data[done:]] if done < len(data) else (), offset + done
        if not syncs:
            return number, fd, buffers, offset, False
        hangs = disk.hangs("sync", path)
        try:
            if not hangs:
                disk._meet("sync", path)
                return number, fd, buffers, offset, True
        except OSError as error:
            write_all(disk._inner, fd, buffers, offset)
            self._fail(number, error, is_written=True)
            return None
        write_all(disk._inner, fd, buffers, offset)
        self._hold("sync", (number, fd, (), 0, True))
        return None

    def _fail(self, number: int, error: OSError, *, is_written: bool) -> None:
        assert error.errno is not None
        self._failed.append((number, error.errno, is_written))
        os.eventfd_write(self.ready_fd, 1)

    def _hold(self, operation: str, share: CommitShare) -> None:
        self._held.append(share)
        path = self._disk._paths[share[1]]
        threading.Thread(target=self._end_held, args=(operation, path), daemon=True).start()

    def _end_held(self, operation: str, path: Path) -> None:
        """Wait in a thread for the release, then wake the event loop."""
        self._disk._wait(operation, path)
        os.eventfd_write(self.ready_fd, 1)

    def ended(self) -> list[tuple[int, int, bool]]:
        if self._held and self._disk._free.is_set():
            held, self._held = self._held, []
            self.submit(held)
        failed, self._failed = self._failed, []
        return self._inner.ended() + failed

    def take_back(self) -> list[int]:
        return self._inner.take_back()

    def close(self) -> None:
        self._inner.close()
