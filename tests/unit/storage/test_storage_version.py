"""The storage version that a data folder states."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.disk import LocalDisk
from storage.errors import UnknownFormat
from storage.folders import arrange
from storage.storage_version import (
    FILE_NAME,
    STORAGE_VERSION,
    check_version,
    note_version,
    what_is_wrong,
)

DISK = LocalDisk()


def test_a_folder_states_the_version_of_the_broker_that_used_it_last(tmp_path: Path) -> None:
    check_version(DISK, tmp_path / "not-there")
    check_version(DISK, tmp_path)
    for before in (None, b"2\n", b"", b"no number"):
        if before is not None:
            (tmp_path / FILE_NAME).write_bytes(before)
        check_version(DISK, tmp_path)
        note_version(DISK, tmp_path)
        assert (tmp_path / FILE_NAME).read_bytes() == b"%d\n" % STORAGE_VERSION
    assert [each.name for each in tmp_path.iterdir()] == [FILE_NAME]


def test_a_folder_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"%d\n" % (STORAGE_VERSION + 1))
    for check in (lambda: check_version(DISK, tmp_path), lambda: arrange(DISK, [tmp_path])):
        with pytest.raises(UnknownFormat, match=f"version is {STORAGE_VERSION + 1}, and this one knows"):
            check()
    assert [each.name for each in tmp_path.iterdir()] == [FILE_NAME]


def test_one_newer_folder_among_several_is_enough(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    (folders[1] / FILE_NAME).write_bytes(b"999\n")
    with pytest.raises(UnknownFormat, match="second was written by a newer version"):
        arrange(DISK, folders)
    assert not list(folders[0].iterdir())


def test_what_is_wrong_with_the_file_is_said_with_what_to_do(tmp_path: Path) -> None:
    texts = {None: "missing", b"": "empty", b"\0\0": "2 bytes are zeros", b"x" * 50: "holds b'xxxx"}
    for content, text in texts.items():
        if content is not None:
            (tmp_path / FILE_NAME).write_bytes(content)
        found = what_is_wrong(DISK, tmp_path)
        assert found is not None and text in found and "start none that is older" in found
    note_version(DISK, tmp_path)
    assert what_is_wrong(DISK, tmp_path) is None
