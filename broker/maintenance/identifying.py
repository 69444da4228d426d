"""Finds out which data folder is which when its file `folder` is damaged.

Each log belongs to one folder, whose number follows from the queue's description. So the logs in a folder say
which one it is. A folder without logs is the one that is recorded at its path, or the only one that is
missing. Where nothing is certain, the folder stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from broker.entities.descriptions import EntityDescription
from storage.check import log_folders
from storage.disk import Disk
from storage.folder_survey import FolderSurvey
from storage.spread_store import place


class Identification(NamedTuple):
    """A data folder that does not say which one it is, and which one it is."""

    path: Path
    number: int


def identify(
    disk: Disk, folders: FolderSurvey, described: Mapping[str, EntityDescription]
) -> list[Identification]:
    """The damaged folders that are certain. Raises OSError."""
    missing = folders.missing()
    found: list[Identification] = []
    for path in folders.damaged:
        numbers = _numbers_of_logs(disk, path, described)
        if not numbers:
            numbers = {each for each, recorded in missing.items() if recorded.absolute() == path.absolute()}
        if not numbers and len(folders.damaged) == 1:
            numbers = set(missing)
        if len(numbers) == 1 and numbers <= missing.keys():
            found.append(Identification(path, numbers.pop()))
    taken = [each.number for each in found]
    return [each for each in found if taken.count(each.number) == 1]


def _numbers_of_logs(disk: Disk, path: Path, described: Mapping[str, EntityDescription]) -> set[int]:
    """The numbers of the folders to which the logs in this one belong."""
    return {
        place(log.entity, log.partition, described[log.entity].folders)
        for log in log_folders(disk, path, [])
        if log.entity in described
    }
