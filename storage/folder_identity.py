"""The identity of a data folder: which one of which broker's it is, and which folders were given up.

If a broker has several data folders, each has a file `folder`: one line, the CRC-32C of the rest in
hexadecimal, a space, and JSON:

    4a1f90c2 {"version": 1, "set": …, "id": …, "folders": [{"id": …, "path": …}, …]}

    set       the same in all folders of a broker
    id        this folder's own
    folders   all folders by number; `path` is where each was at that time

A folder that takes the place of one that was given up (`partibus repair --give-up`) has the number of that
one, and an identifier of its own. From then on, all files have version 2 and list what was given up, so that
a broker refuses such a folder if it turns up again:

    4a1f90c2 {"version": 2, …, "given_up": [{"id": …, "path": …, "number": …}, …]}

The files may differ, because a crash may come between two of them, and a folder may be away. `latest` is what
all of them say together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from storage.disk import Disk, close_quietly, disk_error, publish, read_file
from storage.errors import DiskFailed, StorageError
from storage.record import crc32c

FILE_NAME = "folder"
UNFINISHED_NAME = "giving-up"
"""A file in a folder that is being made to take the place of one that is given up."""
_VERSION = 1
_VERSION_WITH_GIVEN_UP = 2
"""A broker that does not know what was given up would serve it, so it must not read such a file."""


class WrongFolders(StorageError):
    """The given folders cannot all belong to one broker."""


class DamagedIdentity(WrongFolders):
    """A folder's file no longer tells which folder it is."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is damaged, so this data folder does not say whose it is. Run 'partibus repair' with "
            "all data folders of the broker named: it says whether it can write the file again, and does so "
            "with --yes"
        )
        self.path = path


class MissingIdentity(DamagedIdentity):
    """A folder has data and no file that tells which folder it is, although its broker has several."""

    def __init__(self, path: Path) -> None:
        WrongFolders.__init__(
            self,
            f"the data folders do not belong together: another broker's data is in {path.parent}, or the "
            f"file {path.name!r} is missing there. If it is missing, run 'partibus repair' with all data "
            "folders of the broker named: it says whether it can write the file again, and does so with "
            "--yes",
        )
        self.path = path


class UnfinishedFolder(WrongFolders):
    """A folder was being made to take the place of one that is given up, and is not complete."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} was to take the place of a data folder that is given up, but the command was "
            "interrupted: stop the broker and run it again ('partibus repair --give-up … --yes'), with the "
            "same folders named"
        )


class GivenUpFolder(WrongFolders):
    """A named folder was given up, and another one took its place."""


class GivenUp(NamedTuple):
    """A folder that was given up."""

    id: str
    path: Path
    """Where it was."""
    number: int


class Identity(NamedTuple):
    """What a file `folder` says."""

    set: str
    id: str
    folders: tuple[tuple[str, Path], ...]
    given_up: tuple[GivenUp, ...] = ()


class Latest(NamedTuple):
    """What the files of several folders say together."""

    folders: tuple[tuple[str, Path], ...] = ()
    """The identifier and the recorded path of each folder, by number."""
    given_up: tuple[GivenUp, ...] = ()

    def refuse_given_up(self, places: Mapping[Path, Identity]) -> None:
        """Raise GivenUpFolder if one of these folders was given up, WrongFolders if one is not listed."""
        gone = {each.id: each for each in self.given_up}
        listed = {id_ for id_, _ in self.folders}
        for path, identity in places.items():
            if (found := gone.get(identity.id)) is not None:
                raise GivenUpFolder(
                    f"{path} is data folder {found.number} of this broker as it was before it was given up "
                    "('partibus repair --give-up'). Another one has taken its place, at "
                    f"{self.folders[found.number][1]}: name that one, and no longer {path}. What is in "
                    f"{path} is out of date, and no broker uses it again; nothing was changed"
                )
            if identity.id not in listed:
                raise WrongFolders(
                    f"the other data folders of this broker do not list {path}: it may belong to a copy of it"
                )


def latest(identities: Iterable[Identity]) -> Latest:
    """What these identities say together: the longest list of folders is the latest, and what one of them
    calls given up is so for all."""
    ordered = sorted(identities, key=lambda each: (len(each.folders), len(each.given_up)), reverse=True)
    if not ordered:
        return Latest()
    given_up = {entry.id: entry for identity in ordered for entry in identity.given_up}
    folders = tuple(
        next((each.folders[number] for each in ordered if _is_current(each, number, given_up)), recorded)
        for number, recorded in enumerate(ordered[0].folders)
    )
    return Latest(folders, tuple(given_up.values()))


def _is_current(identity: Identity, number: int, given_up: Mapping[str, GivenUp]) -> bool:
    return number < len(identity.folders) and identity.folders[number][0] not in given_up


def read_identity(disk: Disk, path: Path) -> Identity | None:
    """A folder's identity; None if the folder or its file is missing. Raises WrongFolders, OSError."""
    if FILE_NAME not in disk.names(path):
        return None
    crc, _, content = read_file(disk, path / FILE_NAME).rstrip(b"\n").partition(b" ")
    if crc != b"%08x" % crc32c(content):
        raise DamagedIdentity(path / FILE_NAME)
    fields: dict[str, Any] = json.loads(content)
    if fields["version"] not in (_VERSION, _VERSION_WITH_GIVEN_UP):
        raise WrongFolders(
            f"{path / FILE_NAME} has version {fields['version']}; only versions up to "
            f"{_VERSION_WITH_GIVEN_UP} are known"
        )
    return Identity(
        fields["set"],
        fields["id"],
        tuple((each["id"], Path(each["path"])) for each in fields["folders"]),
        tuple(GivenUp(each["id"], Path(each["path"]), each["number"]) for each in fields.get("given_up", ())),
    )


def write_identity_file(disk: Disk, path: Path, identity: Identity) -> None:
    """Write the file `folder` of an existing folder, durably. Raises StorageError, OSError."""
    close_quietly(disk, publish(disk, path / FILE_NAME, [line_of(identity)]))


def line_of(identity: Identity) -> bytes:
    """The content of the file `folder`."""
    fields: dict[str, Any] = {
        "version": _VERSION_WITH_GIVEN_UP if identity.given_up else _VERSION,
        "set": identity.set,
        "id": identity.id,
        "folders": [{"id": id_, "path": str(each)} for id_, each in identity.folders],
    }
    if identity.given_up:
        fields["given_up"] = [
            {"id": each.id, "path": str(each.path), "number": each.number} for each in identity.given_up
        ]
    content = json.dumps(fields).encode()
    return b"%08x %s\n" % (crc32c(content), content)


def check_identity(disk: Disk, path: Path, id_: str) -> None:
    """Raise DiskFailed unless the folder exists and has this identity. An empty `id_` accepts anything."""
    if not id_:
        return
    try:
        identity = read_identity(disk, path)
    except OSError as error:
        raise disk_error(error, path) from error
    except DamagedIdentity as error:
        raise DiskFailed(str(error)) from error
    if identity is None or identity.id != id_:
        raise DiskFailed(
            f"{path}: the data folder is missing" + (", and another one is in its place" if identity else "")
        )
