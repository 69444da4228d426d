"""storage/open_files.py: few descriptors for many files."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.open_files import OpenFiles
from tests.support.recording_disk import RecordingDisk

WITHIN_S = 30.0


def disk_with(count: int) -> tuple[RecordingDisk, list[Path]]:
    disk, paths = RecordingDisk(), [Path(f"/{number}") for number in range(count)]
    for path in paths:
        fd = disk.create(path)
        disk.write(fd, [path.name.encode()], 0)
        disk.close(fd)
    return disk, paths


def test_no_more_than_so_many_stay_open_and_the_longest_unused_goes_first() -> None:
    disk, paths = disk_with(10)
    files = OpenFiles(disk, 3)
    fds = {}
    for path in [*paths, paths[8], paths[0]]:
        with files.reading(path) as fd:
            assert disk.read(fd, 10, 0) == path.name.encode()
            fds[path] = fd
        assert disk.open_files <= 3
    with files.reading(paths[8]) as fd:
        assert fd == fds[paths[8]], "used before the last one, it was kept"
    with files.reading(paths[7]) as fd:
        assert fd != fds[paths[7]]
    files.close()
    assert disk.open_files == 0


def test_a_file_that_is_read_is_closed_only_afterwards() -> None:
    disk, paths = disk_with(3)
    files = OpenFiles(disk, 1)
    with files.reading(paths[0]) as first, files.reading(paths[0]) as again:
        assert first == again
        with files.reading(paths[1]):
            pass
        files.forget(paths[0])
        files.forget(paths[2])
        assert disk.read(first, 10, 0) == b"0"
        files.close()
        assert disk.read(again, 10, 0) == b"0"
    assert disk.open_files == 0


def test_a_file_that_cannot_be_opened_is_not_kept() -> None:
    disk, paths = disk_with(1)
    files = OpenFiles(disk, 1)
    with pytest.raises(FileNotFoundError), files.reading(Path("/nothing")):
        pass
    with files.reading(paths[0]) as fd:
        assert disk.read(fd, 10, 0) == b"0"
    files.close()


class SlowDisk(RecordingDisk):
    """Opening a file waits until `may_open` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.opening, self.may_open = threading.Event(), threading.Event()
        self.may_open.set()

    def open_read(self, path: Path) -> int:
        self.opening.set()
        assert self.may_open.wait(WITHIN_S)
        return super().open_read(path)


def test_while_a_disk_takes_long_to_open_a_file_nobody_else_waits() -> None:
    disk = SlowDisk()
    for name in ("/a", "/b"):
        disk.close(disk.create(Path(name)))
    files = OpenFiles(disk, 1)
    with files.reading(Path("/a")):
        pass
    disk.opening.clear()
    disk.may_open.clear()
    with ThreadPoolExecutor(1) as threads:

        def read() -> int:
            with files.reading(Path("/b")) as fd:
                return fd

        reading = threads.submit(read)
        assert disk.opening.wait(WITHIN_S)
        with files.reading_if_open(Path("/a")) as fd:
            assert fd >= 0
        with pytest.raises(BlockingIOError), files.reading_if_open(Path("/b")):
            pass
        files.forget(Path("/b"))
        disk.may_open.set()
        assert reading.result(WITHIN_S) >= 0
    with pytest.raises(BlockingIOError), files.reading_if_open(Path("/b")):
        pass
    files.close()
    assert disk.open_files == 0


def test_two_threads_that_open_the_same_file_leave_one_descriptor() -> None:
    disk = SlowDisk()
    disk.close(disk.create(Path("/a")))
    files = OpenFiles(disk, 5)
    disk.may_open.clear()
    both = threading.Barrier(2)

    def read() -> int:
        with files.reading(Path("/a")) as fd:
            both.wait(WITHIN_S)
            return fd

    with ThreadPoolExecutor(2) as threads:
        readings = [threads.submit(read) for _ in range(2)]
        assert disk.opening.wait(WITHIN_S)
        disk.may_open.set()
        assert all(each.result(WITHIN_S) >= 0 for each in readings)
    assert disk.open_files == 1
    files.close()
    assert disk.open_files == 0


def test_the_event_loop_is_lent_only_what_is_open() -> None:
    disk, paths = disk_with(2)
    files = OpenFiles(disk, 1)
    with pytest.raises(BlockingIOError), files.reading_if_open(paths[0]):
        pass
    with files.reading(paths[0]), files.reading_if_open(paths[0]) as fd:
        files.forget(paths[0])
        assert disk.read(fd, 10, 0) == b"0"
    assert disk.open_files == 0
