"""storage/folder_survey.py: what there is of a broker's data folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.disk import LocalDisk
from storage.errors import DiskHangs
from storage.folder_identity import FILE_NAME, GivenUpFolder, WrongFolders
from storage.folder_survey import replace_folder, survey_folders, write_identity
from storage.folders import arrange
from tests.support.faulty_disk import FaultyDisk
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


def test_a_folder_whose_disk_hangs_is_not_waited_for(tmp_path: Path) -> None:
    """Symptom: giving up a folder on a network disk that was gone never ended."""
    disk, folders = FaultyDisk(LocalDisk()), [tmp_path / name for name in "ab"]
    arrange(disk, folders)
    found = survey_folders(disk, folders[:1])
    disk.hang("names", str(folders[1]))
    try:
        with pytest.raises(DiskHangs, match="Unmount"):
            found.is_there(disk, folders[1], 50)
    finally:
        disk.release()


def test_folders_of_two_brokers_are_refused(tmp_path: Path) -> None:
    disk = LocalDisk()
    arrange(disk, [tmp_path / "a", tmp_path / "b"])
    arrange(disk, [tmp_path / "c", tmp_path / "d"])
    with pytest.raises(WrongFolders, match="different brokers"):
        survey_folders(disk, [tmp_path / "a", tmp_path / "d"])
    assert not survey_folders(disk, [tmp_path / "e"]).folders


def test_a_folder_is_replaced_in_the_files_of_all_others_and_twice_does_no_harm(tmp_path: Path) -> None:
    disk, (a, b, c, d) = LocalDisk(), [tmp_path / name for name in "abcd"]
    known = arrange(disk, [a, b, c])
    d.mkdir()
    for _ in range(2):
        replace_folder(disk, survey_folders(disk, [a, b]), 2, "e" * 32, d)
        found = survey_folders(disk, [a, b, d])
        assert found.named == {0: a, 1: b, 2: d} and not found.missing()
        assert found.given_up == ((known[2].id, c, 2),)
        assert [found.folders[number][0] for number in range(3)] == [known[0].id, known[1].id, "e" * 32]
        (d / FILE_NAME).unlink()
    with pytest.raises(GivenUpFolder, match="data folder 2"):
        survey_folders(disk, [a, c])
