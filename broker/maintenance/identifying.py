"""Finds out which data folder is which when its file `folder` is damaged or lost.

Each log belongs to one folder, whose number follows from the queue's description. So the logs in a folder say
which one it is. A folder without logs is the one that is recorded at its path, or the only one that is
missing. Where nothing is certain, the folder stays as it is.

A folder that has lost the file may also be another broker's. It is this broker's only if its logs and
documents all belong to entities that the other folders describe, or if it has none and stands at the recorded
path of a folder that is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from broker.entities.descriptions import EntityDescription
from broker.entities.first_namespace import FIRST_NAMESPACE
from storage.check import CATALOGUE_DIRECTORY, log_folders
from storage.disk import Disk
from storage.document_file import DELETED, LIVE, file_name_of
from storage.folder_identity import (
    UNFINISHED_NAME,
    DamagedIdentity,
    Identity,
    latest,
    read_identity,
)
from storage.folder_survey import FolderSurvey
from storage.folders import has_data
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


def without_identity(disk: Disk, roots: Sequence[Path]) -> list[Path]:
    """Those of these folders that are certainly the broker's and have lost the file that says so. Raises
    WrongFolders; OSError if a folder cannot be listed."""
    identities: dict[Path, Identity] = {}
    bare: list[Path] = []
    for root in roots:
        with contextlib.suppress(DamagedIdentity, OSError):  # damaged or unreadable, and not missing
            identity = read_identity(disk, root)
            if identity is not None:
                identities[root] = identity
            elif has_data(disk, root) and UNFINISHED_NAME not in disk.names(root):
                bare.append(root)
    if not bare or len({each.set for each in identities.values()}) != 1:
        return []
    known = {stem for root in identities for stem in _documents(disk, root)}
    listed = dict(latest(identities.values()).folders)
    for identity in identities.values():
        listed.pop(identity.id, None)
    places = {path.absolute() for path in listed.values()}
    found: list[Path] = []
    for root in bare:
        held = _documents(disk, root) - {_stem(FIRST_NAMESPACE)}
        held |= {_stem(log.entity) for log in log_folders(disk, root, [])}
        if listed and (held <= known if held else root.absolute() in places):
            found.append(root)
    return found


def _documents(disk: Disk, root: Path) -> set[str]:
    """The stems of the documents in the catalogue of a folder."""
    names = disk.names(root / CATALOGUE_DIRECTORY) if CATALOGUE_DIRECTORY in disk.names(root) else []
    return {Path(name).stem for name in names if name.endswith((*LIVE, *DELETED))}


def _stem(document: str) -> str:
    return Path(file_name_of(document)).stem


def _numbers_of_logs(disk: Disk, path: Path, described: Mapping[str, EntityDescription]) -> set[int]:
    """The numbers of the folders to which the logs in this one belong."""
    return {
        place(log.entity, log.partition, described[log.entity].folders)
        for log in log_folders(disk, path, [])
        if log.entity in described
    }
