"""storage/disk.py and storage/kernel_sync.py on the real file system."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path

import pytest

from storage.disk import LocalDisk, make_directories, publish, read_file, write_all
from storage.errors import CommitFailed, DiskFull
from storage.kernel_sync import open_sync_queue
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
        assert DISK.read_cached(fd, 3, 2) == b"cde"
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


async def test_the_kernel_syncs_many_files_and_tells_when(tmp_path: Path) -> None:
    queue = open_sync_queue()
    assert queue is not None, "Linux on this machine has kernel AIO"
    fds = [DISK.create(tmp_path / str(number)) for number in range(20)]
    for fd in fds:
        DISK.write(fd, [b"x" * 10_000], 0)
    assert queue.ended() == []
    ready = asyncio.Event()
    ended: list[tuple[int, int]] = []
    asyncio.get_running_loop().add_reader(queue.ready_fd, ready.set)
    assert queue.submit(list(enumerate(fds, start=100))) == 20
    async with asyncio.timeout(10):
        while len(ended) < 20:
            await ready.wait()
            ready.clear()
            ended += queue.ended()
    assert sorted(ended) == [(number, 0) for number in range(100, 120)]
    asyncio.get_running_loop().remove_reader(queue.ready_fd)
    queue.close()
    for fd in fds:
        DISK.close(fd)


def test_a_sync_that_the_kernel_does_not_take_is_not_counted(tmp_path: Path) -> None:
    queue = open_sync_queue()
    assert queue is not None
    fd = DISK.create(tmp_path / "file")
    DISK.close(fd)
    assert queue.submit([(1, fd)]) == 0
    assert queue.ended() == []
    queue.close()


async def test_the_kernel_tells_of_every_sync_however_many_have_ended_before_anybody_asks(
    tmp_path: Path,
) -> None:
    queue = open_sync_queue()
    assert queue is not None
    fd = DISK.create(tmp_path / "file")
    accepted, refused = 0, False
    while accepted < 3_000 and not refused:
        begun = queue.submit([(accepted + number, fd) for number in range(1_500)])
        accepted, refused = accepted + begun, begun < 1_500
    assert accepted > 1_024, "more than one system call reaps"
    async with asyncio.timeout(30):
        while True:  # until all have ended; the count is read and then written back
            with contextlib.suppress(BlockingIOError):
                count = os.eventfd_read(queue.ready_fd)
                os.eventfd_write(queue.ready_fd, count)
                if count == accepted:
                    break
            await asyncio.sleep(0.01)
    assert sorted(queue.ended()) == [(number, 0) for number in range(accepted)]
    assert queue.ended() == []
    queue.close()
    DISK.close(fd)
