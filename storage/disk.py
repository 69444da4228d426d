"""Disk: the file operations of storage. Only this file opens, writes, syncs, renames and removes files.

`LocalDisk` makes one system call per method, so that a test's disk can make each of them fail, or record what
was synced (`tests/support/faulty_disk.py`, `tests/support/recording_disk.py`). The functions below the
classes combine them: `read_file`, `write_all`, and `publish`, the only way in which a file gets its final
name.

Everything here relies on these rules of Linux file systems:
- Data is durable once `sync` has returned, and not before. After a failed sync it never is: the failure marks
  the pages as clean, so a second sync succeeds without writing anything. So a sync is never repeated on the
  same file (durability rule 4).
- A new, renamed or removed name is durable once `sync_directory` has returned.

Where the system supports it, `commit_queue` and `read_cached` avoid a hop to a thread of the interpreter
(`commit_queue.py`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from storage.commit_queue import CommitQueue, open_commit_queue
from storage.errors import CommitFailed, DiskFailed, DiskFull, StorageError

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})

TEMPORARY_SUFFIX = ".tmp"
"""The end of the name of an unpublished file. A file left with this name after a crash may be removed."""

_READ_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
"""The flag of preadv2 that reads only what is in memory (Linux 4.14)."""

_IOV_MAX = 1024
"""Buffers per write (Linux: UIO_MAXIOV)."""
_WRITTEN_BYTES = 4 << 20
"""Bytes per write, unless one buffer is larger."""

_SCRATCH_BYTES_MAX = 2 << 20


class _Scratch(threading.local):
    """A buffer that is read into again and again, because new memory costs as much as the reading."""

    buffer = bytearray(0)


_scratch = _Scratch()


class Space(NamedTuple):
    """A file system's size, and the part of it that the broker can still use, in bytes."""

    total: int
    free: int


class Disk(Protocol):
    """Files by descriptor, directories by path. Every method blocks and raises OSError."""

    def names(self, directory: Path) -> list[str]:
        """The names in a directory, in any order; empty if it does not exist."""

    def make_directory(self, path: Path) -> None:
        """Make a directory in an existing one; does nothing if it exists."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all its content; does nothing if it does not exist."""

    def sync_directory(self, path: Path) -> None:
        """Make the directory's names durable."""

    def create(self, path: Path) -> int:
        """Open a new, empty file for writing and reading. An existing file of this name is emptied."""

    def open_write(self, path: Path) -> int:
        """Open an existing file for writing and reading."""

    def open_read(self, path: Path) -> int:
        """Open an existing file for reading."""

    def close(self, fd: int) -> None:
        """Close a descriptor from `create`, `open_write`, `open_read` or `lock`."""

    def space(self, directory: Path) -> Space:
        """The size and free space of the file system that holds an existing directory."""

    def size(self, fd: int) -> int:
        """The file's size in bytes."""

    def identity(self, fd: int) -> tuple[int, int]:
        """Device and inode: the same for two descriptors of one file, different for two files that exist at
        the same time."""

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`; fewer only at the file's end."""

    def read_cached(self, fd: int, size: int, offset: int) -> bytes | memoryview:
        """`size` bytes at `offset` that are in memory already, valid until the next call. Raises
        BlockingIOError if they are not, or if the system cannot tell."""

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """Write the buffers one after the other at `offset`; gives how many bytes were written, which may be
        fewer."""

    def allocate(self, fd: int, offset: int, size: int) -> None:
        """Make room at the file's end, which reads as zeros, without writing it. Where that is impossible,
        the C library writes a byte into each block, or the file only gets longer, and a later write may find
        no space."""

    def sync(self, fd: int) -> None:
        """Make the file's bytes and size durable."""

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to this size."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory within its directory, replacing what has that name."""

    def remove(self, path: Path) -> None:
        """Remove a file; does nothing if it does not exist."""

    def lock(self, path: Path) -> int:
        """Open and lock a file, creating it if needed. Raises BlockingIOError if another process has locked
        it."""

    def commit_queue(self) -> CommitQueue | None:
        """A queue that writes and syncs without a waiting thread; None if the system has none."""


class LocalDisk:
    """The file system of this machine."""

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

    def read_cached(self, fd: int, size: int, offset: int) -> memoryview:
        if not _READ_NOWAIT:
            raise BlockingIOError
        if size > len(_scratch.buffer):
            _scratch.buffer = bytearray(min(2 * size, _SCRATCH_BYTES_MAX))
        buffer = memoryview(_scratch.buffer if size <= len(_scratch.buffer) else bytearray(size))[:size]
        try:
            got = os.preadv(fd, [buffer], offset, _READ_NOWAIT)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                raise BlockingIOError from error
            raise
        if got < size:
            raise BlockingIOError
        return buffer

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        return os.pwritev(fd, buffers[:_IOV_MAX], offset)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        try:
            os.posix_fallocate(fd, offset, size)
        except OSError as error:
            if error.errno in FULL_ERRNOS or error.errno == errno.EIO:
                raise
            os.ftruncate(fd, offset + size)

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

    def commit_queue(self) -> CommitQueue | None:
        return open_commit_queue()


def write_all(disk: Disk, fd: int, buffers: Iterable[bytes], offset: int) -> None:
    """Write every byte of the buffers at `offset`, continuing after short writes. Only some of them need to
    be in memory at once. Raises OSError."""
    for some in _together(buffers):
        _write_some(disk, fd, some, offset)
        offset += sum(map(len, some))


def _together(buffers: Iterable[bytes]) -> Iterator[Sequence[bytes]]:
    """The buffers that one call writes."""
    some: list[bytes] = []
    size = 0
    for each in buffers:
        some.append(each)
        size += len(each)
        if len(some) == _IOV_MAX or size >= _WRITTEN_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


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


def publish(disk: Disk, path: Path, buffers: Iterable[bytes]) -> int:
    """Make a file appear at `path`, durably, and whole or not at all; gives its descriptor, still open for
    writing.

    Raises DiskFull if nothing happened, CommitFailed if the name may or may not be durable. If `buffers`
    raises a StorageError, nothing happened either.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    fd = -1
    try:
        fd = disk.create(temporary)
        write_all(disk, fd, buffers, 0)
        disk.sync(fd)
        disk.rename(temporary, path)
    except (OSError, StorageError) as error:
        with contextlib.suppress(OSError):
            disk.remove(temporary)
        close_quietly(disk, fd)
        if isinstance(error, StorageError):
            raise
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
    """Make files with the same content appear in one directory, durably, each whole or not at all.

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
    """Make `root/name/name/…`, durably. `root` must exist. Raises OSError."""
    directory = root
    for name in names:
        parent, directory = directory, directory / name
        disk.make_directory(directory)
        disk.sync_directory(parent)


def make_root(disk: Disk, path: Path) -> None:
    """Make a folder and its missing parents, durably. Raises OSError."""
    try:
        disk.make_directory(path)
    except FileNotFoundError:
        make_root(disk, path.parent)
        disk.make_directory(path)
    disk.sync_directory(path.parent)


def close_quietly(disk: Disk, fd: int) -> None:
    """Close a descriptor whose content no longer matters; -1 stands for none."""
    if fd >= 0:
        with contextlib.suppress(OSError):
            disk.close(fd)


def commit_error(error: OSError, path: Path) -> StorageError:
    """The error for a failed write or sync. If the disk was full, nothing of the write may have been kept."""
    if error.errno in FULL_ERRNOS:
        return DiskFull(f"{path}: {error.strerror}")
    return CommitFailed(f"{path}: {error.strerror}")


def disk_error(error: OSError, path: Path) -> DiskFailed:
    """The error for a failure outside of commits. `path` is named if the error names no file itself."""
    return DiskFailed(f"{error.filename or path}: {error.strerror}")
