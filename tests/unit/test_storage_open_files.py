"""storage/open_files.py: few descriptors for many files."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.open_files import OpenFiles
from tests.support.recording_disk import RecordingDisk


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
