"""Which data folders of a broker are there, damaged or missing, for repairs. Reads only, apart from
`write_identity` and `replace_folder`.

`folders.py` arranges the folders for a broker and refuses what it cannot be sure about. A survey takes what
there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from storage.disk import Disk
from storage.errors import DiskHangs
from storage.folder_identity import (
    DamagedIdentity,
    GivenUp,
    Identity,
    WrongFolders,
    latest,
    read_identity,
    write_identity_file,
)
from storage.folders import TIMEOUT_MS
from storage.storage_version import check_version
from storage.threads import ask_each


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
    given_up: tuple[GivenUp, ...] = ()
    """The folders that were given up."""

    def missing(self) -> dict[int, Path]:
        """The recorded paths of the folders that were not found, by number."""
        return {number: path for number, (_, path) in enumerate(self.folders) if number not in self.named}

    def is_there(self, disk: Disk, path: Path, timeout_ms: int = TIMEOUT_MS) -> bool:
        """Whether a folder of this broker is at this path. Raises DiskHangs if its disk does not answer."""
        answer = ask_each([path], lambda path: read_identity(disk, path), timeout_ms / 1_000, "identity")[
            path
        ]
        if isinstance(answer, TimeoutError):
            raise DiskHangs(f"{path}: {answer}. Unmount or detach its disk first")
        return isinstance(answer, Identity) and answer.id in dict(self.folders)


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
    if identities:
        known = latest(identities.values())
        known.refuse_given_up(identities)
        found.set = next(iter(identities.values())).set
        found.folders, found.given_up = known
        numbers = {id_: number for number, (id_, _) in enumerate(known.folders)}
        found.named = {numbers[identity.id]: path for path, identity in sorted(identities.items())}
    return found


def write_identity(disk: Disk, path: Path, folders: FolderSurvey, number: int) -> None:
    """Make the folder at `path` the one of this number, durably. Raises StorageError, OSError."""
    entries = _with_place(folders, number, folders.folders[number][0], path)
    write_identity_file(disk, path, Identity(folders.set, entries[number][0], entries, folders.given_up))


def replace_folder(disk: Disk, folders: FolderSurvey, number: int, new_id: str, path: Path) -> None:
    """Give up the folder of this number: the complete folder at `path` takes its place, with the identifier
    `new_id`. Raises StorageError, OSError; calling it again with the same identifier finishes it.

    The named folders come first. As soon as one of them is written, a broker refuses the old folder; and
    until the last one is, it does not use the new one.
    """
    old_id, recorded = folders.folders[number]
    given_up = folders.given_up
    if old_id != new_id:
        given_up += (GivenUp(old_id, recorded, number),)
    entries = _with_place(folders, number, new_id, path)
    for each, place in folders.named.items():
        write_identity_file(disk, place, Identity(folders.set, entries[each][0], entries, given_up))
    write_identity_file(disk, path, Identity(folders.set, new_id, entries, given_up))


def _with_place(folders: FolderSurvey, number: int, id_: str, path: Path) -> tuple[tuple[str, Path], ...]:
    entries = list(folders.folders)
    entries[number] = (id_, path.absolute())
    return tuple(entries)
