"""Which data folders of a broker are there, damaged or missing, for repairs. Reads only, apart from
`write_identity`.

`folders.py` arranges the folders for a broker and refuses what it cannot be sure about. A survey takes what
there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from storage.disk import Disk
from storage.folders import (
    DamagedIdentity,
    Identity,
    WrongFolders,
    read_identity,
    write_identity_file,
)
from storage.storage_version import check_version


@dataclass(slots=True)
class FolderSurvey:
    """The data folders of one broker."""

    set: str = ""
    """The identifier of the broker's set of folders; empty if it has one folder only."""
    folders: tuple[tuple[str, Path], ...] = ()
    """The identifier and the recorded path of each folder, by number."""
    named: dict[int, Path] = field(default_factory=dict)
    """The named folders that say which they are, by number."""
    damaged: list[Path] = field(default_factory=list)
    """The named folders whose identity is damaged or cannot be read."""
    blank: list[Path] = field(default_factory=list)
    """The named folders without an identity."""

    def missing(self) -> dict[int, Path]:
        """The recorded paths of the folders that were not found, by number."""
        return {number: path for number, (_, path) in enumerate(self.folders) if number not in self.named}

    def is_there(self, disk: Disk, path: Path) -> bool:
        """Whether a folder of this broker is at this path."""
        try:
            identity = read_identity(disk, path)
        except (OSError, WrongFolders):
            return False
        return identity is not None and identity.id in dict(self.folders)


def survey_folders(disk: Disk, paths: Sequence[Path]) -> FolderSurvey:
    """Look at the named folders. Raises WrongFolders if they do not belong to one broker, UnknownFormat,
    OSError."""
    found = FolderSurvey()
    identities: dict[Path, Identity] = {}
    for path in paths:
        check_version(disk, path)
        try:
            identity = read_identity(disk, path)
        except (DamagedIdentity, OSError):
            found.damaged.append(path)
            continue
        if identity is None:
            found.blank.append(path)
        else:
            identities[path] = identity
    if len({identity.set for identity in identities.values()}) > 1:
        raise WrongFolders(
            f"these data folders belong to different brokers: {', '.join(map(str, identities))}"
        )
    latest = max(identities.values(), key=lambda each: len(each.folders), default=None)
    if latest is not None:
        found.set, found.folders = latest.set, latest.folders
        numbers = {id_: number for number, (id_, _) in enumerate(latest.folders)}
        found.named = {numbers[identity.id]: path for path, identity in sorted(identities.items())}
    return found


def write_identity(disk: Disk, path: Path, folders: FolderSurvey, number: int) -> None:
    """Make the folder at `path` the one of this number, durably. Raises StorageError, OSError."""
    entries = tuple(
        (id_, path if each == number else recorded) for each, (id_, recorded) in enumerate(folders.folders)
    )
    write_identity_file(disk, path, Identity(folders.set, entries[number][0], entries))
