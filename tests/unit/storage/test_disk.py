"""storage/disk.py on the real file system."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from storage.disk import LocalDisk, make_directories, publish, read_file, write_all
from storage.errors import CommitFailed, DiskFull
from tests.support.faulty_disk import FaultyDisk

DISK = LocalDisk()


def test_a_file_is_written_read_cut_off_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    fd = DISK.create(path)
    assert DISK.write(fd, [b"ab", b"", b"cde"], 0) == 5
    assert DISK.write(fd, [b"X"], 8) == 1
    DISK.sync(fd)
    assert DISK.size(fd) == 9
    assert DISK.read(fd, 100, 1) == b"bcde\0\0\0X"
    DISK.truncate(fd, 2)
    DISK.close(fd)
    fd = DISK.open_read(path)
    assert DISK.read(fd, 100, 0) == b"ab"
    with pytest.raises(OSError):
        DISK.write(fd, [b"x"], 0)
    DISK.close(fd)
    fd = DISK.open_write(path)
    DISK.write(fd, [b"z"], 0)
    DISK.close(fd)
    assert path.read_bytes() == b"zb"
    DISK.close(DISK.create(path))
    assert path.read_bytes() == b""
    DISK.remove(path)
    DISK.remove(path)
    with pytest.raises(FileNotFoundError):
        DISK.open_write(path)


def test_a_file_is_read_as_a_whole_and_its_descriptor_closed_whether_that_goes_well_or_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    open_before = len(os.listdir("/proc/self/fd"))
    assert read_file(DISK, path) == b"x" * 100_000
    faulty = FaultyDisk(DISK)
    faulty.fail("read")
    with pytest.raises(OSError):
        read_file(faulty, path)
    with pytest.raises(FileNotFoundError):
        read_file(DISK, tmp_path / "nowhere")
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_directories_are_made_listed_renamed_and_removed(tmp_path: Path) -> None:
    make_directories(DISK, tmp_path, ["a", "b"])
    make_directories(DISK, tmp_path, ["a", "c"])
    DISK.close(DISK.create(tmp_path / "a" / "b" / "file"))
    assert sorted(DISK.names(tmp_path / "a")) == ["b", "c"]
    assert DISK.names(tmp_path / "nowhere") == []
    DISK.rename(tmp_path / "a", tmp_path / "d")
    DISK.sync_directory(tmp_path)
    DISK.remove_tree(tmp_path / "d")
    DISK.remove_tree(tmp_path / "d")
    assert DISK.names(tmp_path) == []


def test_what_was_just_written_is_read_from_memory_and_what_is_not_there_is_not(tmp_path: Path) -> None:
    fd = DISK.create(tmp_path / "file")
    DISK.write(fd, [b"abcdef"], 0)
    try:
        assert bytes(DISK.read_cached(fd, 3, 2)) == b"cde"
    except BlockingIOError:
        pytest.fail("Linux reads what is in memory without waiting")
    with pytest.raises(BlockingIOError):
        DISK.read_cached(fd, 10, 0)
    DISK.close(fd)


def test_more_buffers_than_one_call_takes_are_all_written(tmp_path: Path) -> None:
    fd = DISK.create(tmp_path / "file")
    write_all(DISK, fd, [b"%04d" % number for number in range(3_000)], 0)
    assert DISK.read(fd, 20_000, 0) == b"".join(b"%04d" % number for number in range(3_000))
    DISK.close(fd)


@pytest.mark.parametrize("refused", [None, errno.ENOSYS, errno.EPERM])
def test_allocated_bytes_belong_to_the_file_and_read_as_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int | None
) -> None:
    def refuse(fd: int, offset: int, size: int) -> None:
        assert refused is not None
        raise OSError(refused, os.strerror(refused))

    if refused is not None:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    disk = LocalDisk()
    fd = disk.create(tmp_path / "file")
    disk.write(fd, [b"frame"], 0)
    disk.allocate(fd, 5, 1 << 20)
    assert disk.size(fd) == 5 + (1 << 20)
    assert disk.read(fd, 2 << 20, 0) == b"frame" + bytes(1 << 20)
    disk.write(fd, [b"next"], 5)
    assert disk.read(fd, 10, 0) == b"framenext\0"
    disk.close(fd)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_space_that_cannot_be_allocated_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    disk = LocalDisk()
    fd = disk.create(tmp_path / "file")
    with pytest.raises(OSError, match=re.escape(os.strerror(error))):
        disk.allocate(fd, 0, 4096)
    assert disk.size(fd) == 0
    disk.close(fd)


def test_a_file_is_locked_once(tmp_path: Path) -> None:
    fd = DISK.lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        DISK.lock(tmp_path / "lock")
    DISK.close(fd)
    DISK.close(DISK.lock(tmp_path / "lock"))


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
@pytest.mark.parametrize(("error", "expected"), [(errno.EIO, CommitFailed), (errno.ENOSPC, DiskFull)])
def test_a_file_that_cannot_be_published_leaves_nothing(
    tmp_path: Path, operation: str, error: int, expected: type[Exception]
) -> None:  # fmt: skip
    (tmp_path / "file").write_bytes(b"old")
    faulty = FaultyDisk(DISK)
    faulty.fail(operation, error)
    with pytest.raises(expected):
        publish(faulty, tmp_path / "file", [b"new"])
    assert DISK.names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_published_file_whose_name_may_not_be_durable_has_failed_full_disk_or_not(tmp_path: Path) -> None:
    faulty = FaultyDisk(DISK)
    faulty.fail("sync_directory", errno.ENOSPC)
    with pytest.raises(CommitFailed):
        publish(faulty, tmp_path / "file", [b"new"])
