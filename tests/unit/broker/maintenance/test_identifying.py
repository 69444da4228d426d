"""broker/maintenance/identifying.py: which damaged folder is which, and when that is not certain."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.entities.descriptions import QueueDescription
from broker.maintenance.identifying import identify, without_identity
from storage.disk import LocalDisk
from storage.document_file import LIVE, file_name_of
from storage.folder_identity import FILE_NAME, UNFINISHED_NAME
from storage.folder_survey import FolderSurvey
from storage.folders import arrange
from storage.spread_store import place

GENERATION = "a" * 32
DESCRIBED = {GENERATION: QueueDescription("orders", GENERATION, 16, folders=3)}
OF_FOLDER = {place(GENERATION, partition, 3): partition for partition in range(3)}
"""A partition in each folder."""


def survey(root: Path, damaged: list[str], *, named: int = 0) -> FolderSurvey:
    """Three folders that were at a, b and c; the one of number `named` was found elsewhere."""
    folders = tuple((name * 32, root / name) for name in "abc")
    return FolderSurvey("set", folders, {named: root / "elsewhere"}, [root / name for name in damaged], [])


def add_logs(root: Path, *numbers: int) -> None:
    for number in numbers:
        (root / "logs" / GENERATION / f"{OF_FOLDER[number]:04x}").mkdir(parents=True)


@pytest.mark.parametrize("number", [1, 2])
def test_its_logs_say_which_folder_it_is_wherever_it_is(number: int, tmp_path: Path) -> None:
    add_logs(tmp_path / "b", number)
    [found] = identify(LocalDisk(), survey(tmp_path, ["b"]), DESCRIBED)
    assert found == (tmp_path / "b", number)


def test_without_logs_its_path_says_it_or_what_is_missing(tmp_path: Path) -> None:
    disk = LocalDisk()
    assert identify(disk, survey(tmp_path, ["b", "c"]), {}) == [(tmp_path / "b", 1), (tmp_path / "c", 2)]
    assert identify(disk, survey(tmp_path, ["moved"]), {}) == [], "two are missing"
    known = survey(tmp_path, ["moved"])
    known.named[2] = tmp_path / "also elsewhere"
    assert identify(disk, known, {}) == [(tmp_path / "moved", 1)]


def test_what_contradicts_itself_is_not_guessed(tmp_path: Path) -> None:
    add_logs(tmp_path / "b", 1, 2)
    assert identify(LocalDisk(), survey(tmp_path, ["b"]), DESCRIBED) == [], "logs of two folders"
    add_logs(tmp_path / "moved", 0)
    assert identify(LocalDisk(), survey(tmp_path, ["moved"]), DESCRIBED) == [], "that folder is there"
    add_logs(tmp_path / "c", 1)
    add_logs(tmp_path / "copy", 1)
    assert identify(LocalDisk(), survey(tmp_path, ["c", "copy"]), DESCRIBED) == [], "two claim one number"


def folders_on_disk(root: Path) -> list[Path]:
    """Two data folders of a broker, with a document and logs."""
    places = [root / "a", root / "b"]
    arrange(LocalDisk(), places)
    for path, suffix in zip(places, LIVE, strict=True):
        (path / "catalogue").mkdir()
        (path / "catalogue" / file_name_of(GENERATION)).with_suffix(suffix).touch()
        (path / "logs" / GENERATION / "0000").mkdir(parents=True)
    return places


@pytest.mark.parametrize("number", [0, 1])
def test_a_folder_without_identity_is_the_brokers_if_the_others_describe_all_that_it_holds(
    number: int, tmp_path: Path
) -> None:
    places = folders_on_disk(tmp_path)
    assert without_identity(LocalDisk(), places) == []
    (places[number] / FILE_NAME).unlink()
    assert without_identity(LocalDisk(), places) == [places[number]]
    moved = places[number].rename(tmp_path / "moved")
    places[number] = moved
    assert without_identity(LocalDisk(), places) == [moved]
    (moved / UNFINISHED_NAME).touch()
    assert without_identity(LocalDisk(), places) == [], "it is being made for a folder that was given up"


def test_another_brokers_folder_is_never_taken_for_one_that_lost_its_identity(tmp_path: Path) -> None:
    places = folders_on_disk(tmp_path)
    (places[1] / FILE_NAME).unlink()
    (places[1] / "logs" / ("b" * 32) / "0000").mkdir(parents=True)
    assert without_identity(LocalDisk(), places) == [], "a log that the broker does not know"
    (tmp_path / "empty" / "logs").mkdir(parents=True)
    assert without_identity(LocalDisk(), [places[0], tmp_path / "empty"]) == []
    (places[0] / FILE_NAME).unlink()
    assert without_identity(LocalDisk(), places) == [], "nobody knows the folders"
