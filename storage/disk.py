"""Disk: what storage does with files. Only this file opens, writes, syncs, renames and removes them.

`LocalDisk` makes one system call per method, so a test's disk can refuse each of them, or remember what was
synced (`tests/support/faulty_disk.py`, `tests/support/recording_disk.py`). The functions below the classes
combine them: `read_file`, `write_all`, and `publish`, the only way in which a file gets its final name.

Everything here relies on these rules of Linux file systems:
- Data is durable once `sync` has returned, and not before. After a failed sync it never is: the failure marks
  the pages clean, so a second sync succeeds without writing anything. So a sync is never repeated on the same
  file (durability rule 4).
- A new, renamed or removed name is durable once `sync_directory` has returned.

`sync_queue` and `read_cached` save a hop to a thread where the system supports it (`kernel_sync.py`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from storage.errors import CommitFailed, DiskFailed, DiskFull, StorageError
from storage.kernel_sync import open_sync_queue

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})

TEMPORARY_SUFFIX = ".tmp"
"""Ends the name of a file that is not published yet; whoever finds one after a crash may remove it."""

_READ_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
"""preadv2's flag to read only what is in memory (Linux 4.14)."""

_IOV_MAX = 1024
"""Buffers per write (Linux: UIO_MAXIOV)."""


class Space(NamedTuple):
    """A file system's size and what is free of it for the broker, in bytes."""

    total: int
    free: int


class Disk(Protocol):
    """Files by descriptor, directories by path. Every method blocks, and raises OSError."""

    def names(self, directory: Path) -> list[str]:
        """The names in a directory, in no order; none if it does not exist."""

    def make_directory(self, path: Path) -> None:
        """Make a directory whose parent exists; nothing if it is there."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and all in it; nothing if it is not there."""

    def sync_directory(self, path: Path) -> None:
        """Make the directory's names durable."""

    def create(self, path: Path) -> int:
        """Open a new, empty file for writing and reading; one of that name is emptied."""

    def open_write(self, path: Path) -> int:
        """Open an existing file for writing and reading."""

    def open_read(self, path: Path) -> int:
        """Open an existing file for reading."""

    def close(self, fd: int) -> None:
        """Close what `create`, `open_write`, `open_read` or `lock` gave."""

    def space(self, directory: Path) -> Space:
        """What the file system of an existing directory holds."""

    def size(self, fd: int) -> int:
        """The file's size in bytes."""

    def identity(self, fd: int) -> tuple[int, int]:
        """Device and inode: the same for two descriptors of one file, and never for those of two files that
        both exist."""

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`; fewer only at the file's end."""

    def read_cached(self, fd: int, size: int, offset: int) -> bytes:
        """`size` bytes at `offset` that are in memory already; BlockingIOError if they are not, or nobody can
        tell."""

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """Write the buffers one after the other at `offset`; gives how many bytes were written, which may be
        too few."""

    def sync(self, fd: int) -> None:
        """Make the file's bytes and size durable."""

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file off."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or directory another name in its directory, in place of what bears it."""

    def remove(self, path: Path) -> None:
        """Remove a file; nothing if it is not there."""

    def lock(self, path: Path) -> int:
        """Open a file, made if need be, that no other process has locked; BlockingIOError if one has."""

    def sync_queue(self) -> SyncQueue | None:
        """A way to sync without a thread that waits, if there is one."""


class SyncQueue(Protocol):
    """Syncs that run by themselves. Nothing here blocks."""

    @property
    def ready_fd(self) -> int:
        """Readable while there are ended syncs to be heard of."""

    def submit(self, syncs: Sequence[tuple[int, int]]) -> int:
        """Begin syncs, each a number of the caller's and a file descriptor; gives how many were begun, from
        the first on.

        The others were not tried at all.
        """

    def ended(self) -> list[tuple[int, int]]:
        """The syncs that have ended since: their numbers, each with its errno, 0 if it went well."""

    def close(self) -> None:
        """No sync is under way."""


class LocalDisk:
    """The machine's own file system."""

    def names(self, directory: Path) -> list[str]:
        try:
            return os.listdir(directory)
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o750)

    def remove_tree(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)

    def open_write(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def open_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def space(self, directory: Path) -> Space:
        found = os.statvfs(directory)
        return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def identity(self, fd: int) -> tuple[int, int]:
        found = os.fstat(fd)
        return found.st_dev, found.st_ino

    def read(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def read_cached(self, fd: int, size: int, offset: int) -> bytes:
        if not _READ_NOWAIT:
            raise BlockingIOError
        buffer = bytearray(size)
        try:
            got = os.preadv(fd, [buffer], offset, _READ_NOWAIT)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                raise BlockingIOError from error
            raise
        if got < size:
            raise BlockingIOError
        return bytes(buffer)

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        return os.pwritev(fd, buffers[:_IOV_MAX], offset)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def lock(self, path: Path) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

    def sync_queue(self) -> SyncQueue | None:
        return open_sync_queue()


def write_all(disk: Disk, fd: int, buffers: Sequence[bytes], offset: int) -> None:
    """Write every byte of the buffers at `offset`; a short write goes on where it stopped. Raises OSError."""
    for first in range(0, len(buffers), _IOV_MAX):
        some = buffers[first : first + _IOV_MAX]
        _write_some(disk, fd, some, offset)
        offset += sum(map(len, some))


def _write_some(disk: Disk, fd: int, buffers: Sequence[bytes], offset: int) -> None:
    length = sum(map(len, buffers))
    written = disk.write(fd, buffers, offset)
    if written == length:
        return
    rest = memoryview(b"".join(buffers))
    while written < length:
        more = disk.write(fd, [bytes(rest[written:])], offset + written)
        if more <= 0:
            raise OSError(errno.EIO, "a write took no bytes")
        written += more


def read_file(disk: Disk, path: Path) -> bytes:
    """The whole content of a file. Raises OSError."""
    fd = disk.open_read(path)
    try:
        return disk.read(fd, disk.size(fd), 0)
    finally:
        disk.close(fd)


def publish(disk: Disk, path: Path, buffers: Sequence[bytes]) -> int:
    """Make a file appear at `path`, whole and durable or not at all; gives its descriptor, still open for
    writing.

    Raises DiskFull if nothing happened, CommitFailed if the name may or may not be durable.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    fd = -1
    try:
        fd = disk.create(temporary)
        write_all(disk, fd, buffers, 0)
        disk.sync(fd)
        disk.rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            disk.remove(temporary)
        close_quietly(disk, fd)
        raise commit_error(error, path) from error
    try:
        disk.sync_directory(path.parent)
    except OSError as error:
        close_quietly(disk, fd)
        raise CommitFailed(f"{path}: its directory could not be synced: {error.strerror}") from error
    return fd


def publish_together(
    disk: Disk, paths: Sequence[Path], buffers: Sequence[bytes], *, sync_directory: bool = True
) -> None:
    """Make files with the same content appear in one directory, each whole or not at all, and durably.

    With `sync_directory` False the caller syncs the directory. Raises DiskFull if nothing happened,
    CommitFailed if some or all of the files may have been replaced.
    """
    temporaries = [path.with_name(path.name + TEMPORARY_SUFFIX) for path in paths]
    is_changed = False
    try:
        for temporary in temporaries:
            fd = disk.create(temporary)
            try:
                write_all(disk, fd, buffers, 0)
                disk.sync(fd)
            finally:
                close_quietly(disk, fd)
        for temporary, path in zip(temporaries, paths, strict=True):
            disk.rename(temporary, path)
            is_changed = True
        if sync_directory:
            disk.sync_directory(paths[0].parent)
    except OSError as error:
        for temporary in temporaries:
            with contextlib.suppress(OSError):
                disk.remove(temporary)
        if is_changed:
            raise CommitFailed(
                f"{paths[0]}: it or its copy may have been replaced: {error.strerror}"
            ) from error
        raise commit_error(error, paths[0]) from error


def make_directories(disk: Disk, root: Path, names: Iterable[str]) -> None:
    """Make `root/name/name/…` durably; `root` exists. Raises OSError."""
    directory = root
    for name in names:
        parent, directory = directory, directory / name
        disk.make_directory(directory)
        disk.sync_directory(parent)


def make_root(disk: Disk, path: Path) -> None:
    """Make a folder and those above it that are missing, durably. Raises OSError."""
    try:
        disk.make_directory(path)
    except FileNotFoundError:
        make_root(disk, path.parent)
        disk.make_directory(path)
    disk.sync_directory(path.parent)


def close_quietly(disk: Disk, fd: int) -> None:
    """Close a descriptor whose content does not matter any more; -1 is none."""
    if fd >= 0:
        with contextlib.suppress(OSError):
            disk.close(fd)


def commit_error(error: OSError, path: Path) -> StorageError:
    """What a failed write or sync means, provided that nothing of it is kept when the disk was full."""
    if error.errno in FULL_ERRNOS:
        return DiskFull(f"{path}: {error.strerror}")
    return CommitFailed(f"{path}: {error.strerror}")


def disk_error(error: OSError, path: Path) -> DiskFailed:
    """What a failure of anything that is no commit means. `path`: what was at hand, where the error does not
    say itself."""
    return DiskFailed(f"{error.filename or path}: {error.strerror}")
