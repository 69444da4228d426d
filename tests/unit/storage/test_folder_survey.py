"""storage/folder_survey.py: what there is of a broker's data folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.disk import LocalDisk
from storage.folder_survey import survey_folders, write_identity
from storage.folders import FILE_NAME, WrongFolders, arrange
from tests.support.logs import flip


def test_a_survey_takes_what_there_is(tmp_path: Path) -> None:
    disk, folders = LocalDisk(), [tmp_path / name for name in "abc"]
    known = arrange(disk, folders)
    flip(folders[1] / FILE_NAME, 25)
    found = survey_folders(disk, [folders[2], folders[1], tmp_path / "d"])
    assert found.named == {2: folders[2]} and found.missing() == {0: folders[0], 1: folders[1]}
    assert (found.damaged, found.blank) == ([folders[1]], [tmp_path / "d"])
    assert found.is_there(disk, folders[0]) and not found.is_there(disk, folders[1])
    write_identity(disk, folders[1], found, 1)
    assert arrange(disk, folders) == known


def test_folders_of_two_brokers_are_refused(tmp_path: Path) -> None:
    disk = LocalDisk()
    arrange(disk, [tmp_path / "a", tmp_path / "b"])
    arrange(disk, [tmp_path / "c", tmp_path / "d"])
    with pytest.raises(WrongFolders, match="different brokers"):
        survey_folders(disk, [tmp_path / "a", tmp_path / "d"])
    assert not survey_folders(disk, [tmp_path / "e"]).folders
