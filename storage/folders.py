"""The data folders of a broker: which belong to it, what their numbers are, and which are missing.

A broker may keep its partitions in several folders, usually on several disks. Each folder has a number, which
never changes. An entity records how many folders it is spread over, and from that the number of a partition
determines the folder of its log (`storage/spread_store.py`). So folders can only be added, and
may be listed in any order.

Each folder has a file `folder`: one line, the CRC-32C of the rest in hexadecimal, a space, and JSON:

    4a1f90c2 {"version": 1, "set": …, "id": …, "folders": [{"id": …, "path": …}, …]}

    set       the same in all folders of a broker
    id        this folder's own
    folders   all folders by number; the longest list is the latest; `path` is where each was at that time

A broker with one folder has no such file until a second folder is added; then the first one is number 0.

The folder of a disk that is not mounted looks empty. So a folder counts as new only if no known one is
missing.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from storage.disk import Disk, close_quietly, disk_error, make_root, publish, read_file
from storage.errors import DiskFailed, DiskHangs, StorageError
from storage.partition_index import COPY_NAME, INDEX_NAME
from storage.record import crc32c
from storage.storage_version import check_version

CATALOGUE_DIRECTORY = "catalogue"
FILE_NAME = "folder"
LOCK_NAME = "lock"
_VERSION = 1
TIMEOUT_MS = 5_000
"""How long to wait for the identity of a folder."""

log = structlog.get_logger("folders")


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


@dataclass(slots=True, frozen=True)
class Folder:
    """One data folder. Its index in the list of all folders is its number."""

    path: Path
    id: str = ""
    """Empty for a broker's only folder."""
    is_missing: bool = False
    """Whether it does not exist, another folder is in its place, or its disk does not answer."""


@dataclass(slots=True, frozen=True)
class Identity:
    """What a file `folder` says."""

    set: str
    id: str
    folders: tuple[tuple[str, Path], ...]


def arrange(disk: Disk, paths: Sequence[Path], timeout_ms: int = TIMEOUT_MS) -> list[Folder]:
    """All folders of a broker by number, whatever the order of `paths`. New folders get a number, which is
    written to their files.

    A folder whose identity is lost, damaged or unreadable, or is not read within `timeout_ms`, counts as
    missing if the other folders list it, and so does one that nobody may write to. Raises WrongFolders,
    UnknownFormat, DiskFailed, DiskHangs.
    """
    found: dict[Path, Identity | None] = {}
    unreadable: dict[Path, StorageError] = {}
    for path, answer in _identities(disk, paths, timeout_ms / 1_000).items():
        if isinstance(answer, OSError):
            unreadable[path] = disk_error(answer, path)
        elif isinstance(answer, DamagedIdentity | DiskHangs):
            unreadable[path] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[path] = answer
    unreadable |= _without_identity(disk, found)
    if unreadable:
        found = {path: identity for path, identity in found.items() if path not in unreadable}
        _check_named(found, unreadable)
    if found == {paths[0]: None}:
        return [Folder(paths[0])]
    hanging = [path.absolute() for path, error in unreadable.items() if isinstance(error, DiskHangs)]
    try:
        with contextlib.ExitStack() as locks:
            return _arrange(disk, found, hanging, _lock_each(disk, found, locks))
    except OSError as error:
        raise disk_error(error, paths[0]) from error


def _identities(
    disk: Disk, paths: Sequence[Path], timeout_s: float
) -> dict[Path, Identity | BaseException | None]:
    """The identity of each folder, or the error that reading it has raised. All are read at once, each in a
    thread that ends with the process if the disk never answers; the error is then DiskHangs."""
    asked: dict[Path, Future[Identity | None]] = {path: Future() for path in paths}

    def ask(path: Path, answer: Future[Identity | None]) -> None:
        try:
            check_version(disk, path)
            answer.set_result(read_identity(disk, path))
        except BaseException as error:  # the caller raises it, or turns it into a missing folder
            answer.set_exception(error)

    for each in asked.items():
        threading.Thread(target=ask, args=each, name=f"identity {each[0]}", daemon=True).start()
    wait(asked.values(), timeout=timeout_s)
    return {
        path: (answer.exception() or answer.result())
        if answer.done()
        else DiskHangs(f"{path}: no answer within {timeout_s:g} s")
        for path, answer in asked.items()
    }


def _without_identity(disk: Disk, found: Mapping[Path, Identity | None]) -> dict[Path, StorageError]:
    """The folders that have data and no identity although others have one, with the error of each."""
    errors: dict[Path, StorageError] = {}
    if any(found.values()):
        for path in [path for path, identity in found.items() if identity is None]:
            try:
                if has_data(disk, path):
                    errors[path] = MissingIdentity(path / FILE_NAME)
            except OSError as error:
                errors[path] = disk_error(error, path)
    return errors


def _check_named(found: Mapping[Path, Identity | None], unreadable: Mapping[Path, StorageError]) -> None:
    """Raise the error of an unreadable folder, unless the other folders list it: then it counts as missing,
    and they serve."""
    latest = max(
        (each for each in found.values() if each is not None),
        key=lambda each: len(each.folders),
        default=None,
    )
    lost = {} if latest is None else dict(latest.folders)
    for each in found.values():
        lost.pop(each.id if each is not None else "", None)
    for path, error in unreadable.items():
        ids = [id_ for id_, place in lost.items() if place.absolute() == path.absolute()]
        if latest is None or not ids:
            raise error
        if isinstance(error, DamagedIdentity):
            line = _line(Identity(latest.set, ids[0], latest.folders)).decode().rstrip()
            log.error(
                "folder.damaged",
                path=str(path / FILE_NAME),
                advice="Its partitions are unavailable until the file has this line. 'partibus repair' can "
                "write it, with the broker stopped.",
                line=line,
            )
        else:
            log.error("folder.unreadable", path=str(path), error=str(error))


def unnamed(disk: Disk, paths: Sequence[Path]) -> list[Path]:
    """The recorded paths of folders that belong to the same broker but are not among `paths`. Changes
    nothing. Raises WrongFolders, OSError."""
    identities = [
        identity for identity in (read_identity(disk, path) for path in paths) if identity is not None
    ]
    known = max((identity.folders for identity in identities), key=len, default=())
    named = {identity.id for identity in identities}
    return [path for id_, path in known if id_ not in named]


def _lock_each(
    disk: Disk, found: Mapping[Path, Identity | None], locks: contextlib.ExitStack
) -> dict[Path, OSError]:
    """Lock the folders that a broker has used. Returns those that the system lets nobody write to: a file
    system that met an error may have been mounted read-only."""
    refused: dict[Path, OSError] = {}
    for path, identity in found.items():
        try:
            if identity is not None or has_data(disk, path):
                _lock(disk, path, locks)
        except OSError as error:
            refused[path] = error
    return refused


def _lock(disk: Disk, path: Path, locks: contextlib.ExitStack) -> None:
    try:
        fd = disk.lock(path / LOCK_NAME)
    except BlockingIOError as error:
        raise DiskFailed(f"{path}: another process uses this folder") from error
    locks.callback(close_quietly, disk, fd)


def _arrange(
    disk: Disk,
    found: dict[Path, Identity | None],
    hanging: Collection[Path],
    refused: Mapping[Path, OSError],
) -> list[Folder]:
    """`refused`: the folders that cannot be written to, with the error of each; they count as missing."""
    identities = {path: identity for path, identity in found.items() if identity is not None}
    blank = [path for path, identity in found.items() if identity is None]
    with_data = [path for path in blank if has_data(disk, path)]
    sets = _sets(identities, with_data)
    known = max((identity.folders for identity in identities.values()), key=len, default=())
    places = {identity.id: path for path, identity in identities.items()}
    usable = {identity.id for path, identity in identities.items() if path not in refused}
    for path, error in refused.items():
        if path not in identities or usable.isdisjoint(id_ for id_, _ in known[:2]):
            raise error
        log.error("folder.unreadable", path=str(path), error=error.strerror)
    if missing := {id_: path for id_, path in known if id_ not in usable}:
        unfound = [
            id_ for id_, path in missing.items() if id_ not in places and path.absolute() not in hanging
        ]
        expected = _expected({id_: missing[id_] for id_ in unfound}, blank)
        not_named = _not_named(
            disk, known, places, {id_: missing[id_] for id_ in unfound if id_ not in expected}
        )
        for number, (id_, path) in enumerate(known):
            if id_ in expected:
                reason = "It is expected in an empty folder that is named, and used once it is there."
                log.error(
                    "folder.missing", path=str(expected[id_]), was=str(path), number=number, reason=reason
                )
            elif id_ in unfound and id_ not in not_named:
                log.error("folder.missing", path=str(path), number=number)
        for path in [path for path in blank if path not in expected.values()]:
            log.warning(
                "folder.not_added", path=str(path), reason="Another folder of this broker is missing."
            )
        if usable.isdisjoint(id_ for id_, _ in known[:2]):
            raise WrongFolders(
                f"the catalogue cannot be read: neither {known[0][1]} nor {known[1][1]} is there"
            )
        there = usable | not_named
        return [
            Folder(places.get(id_, expected.get(id_, path)), id_, id_ not in there) for id_, path in known
        ]
    new = [*with_data, *(path for path in blank if path not in with_data)]
    entries = [(id_, places[id_]) for id_, _ in known] + [(uuid.uuid4().hex, path) for path in new]
    wanted = tuple(entries)
    set_id = next(iter(sets), None) or uuid.uuid4().hex
    # New folders first, so that after a crash the longer list in any of them leads to the same arrangement.
    for id_, path in reversed(entries):
        if found[path] is None or found[path] != Identity(set_id, id_, wanted):
            make_root(disk, path)
            write_identity_file(disk, path, Identity(set_id, id_, wanted))
    for path in new:
        log.info("folder.added", path=str(path), number=len(known) + new.index(path))
    return [Folder(path, id_) for id_, path in entries]


def _expected(missing: Mapping[str, Path], blank: Sequence[Path]) -> dict[str, Path]:
    """In which of the empty folders that are named the missing ones are expected: each where it was, or else
    in the next one."""
    expected = {id_: path for id_, path in missing.items() if path in blank}
    rest = [path for path in blank if path not in expected.values()]
    others = [id_ for id_ in missing if id_ not in expected]
    return expected | dict(zip(others, rest, strict=False))


def _not_named(
    disk: Disk,
    known: Sequence[tuple[str, Path]],
    places: Mapping[str, Path],
    missing: Mapping[str, Path],
) -> set[str]:
    """Which of the missing folders are used although the settings do not name them: those that are where they
    were. Raises WrongFolders if one is there, but others were moved: this may be a copy of a broker, whose
    own folder it must not change."""
    found = {id_ for id_, path in missing.items() if _is_there(disk, path, id_)}
    moved = [
        (path, places[id_])
        for id_, path in known
        if id_ in places and path.absolute() != places[id_].absolute()
    ]
    for number, (id_, path) in enumerate(known):
        if id_ not in found:
            continue
        if moved:
            raise WrongFolders(
                f"folder {number} of this broker is not named. There is one in {path}, but it may belong to "
                f"the broker of which this is a copy, since {moved[0][0]} is {moved[0][1]} now: name that "
                "folder, its copy, or an empty folder in which the copy will be"
            )
        log.warning(
            "folder.not_named",
            path=str(path),
            number=number,
            advice="The settings do not name this data folder any more, but it belongs to this broker and "
            "has a part of its partitions. The broker uses it where it was. Name it again beside the others: "
            "the broker would not find it in another place.",
        )
    return found


def _sets(identities: Mapping[Path, Identity], with_data: Sequence[Path]) -> set[str]:
    """The one set of all these folders, if they have one. `with_data`: folders with data that have no
    identity. Raises WrongFolders if the folders cannot belong to one broker."""
    sets = {identity.set for identity in identities.values()}
    if len(sets) > 1 or len(with_data) > (not sets):
        strangers = with_data if sets else with_data[1:]
        names = ", ".join(map(str, strangers or identities))
        raise WrongFolders(
            f"the data folders do not belong together: another broker's data is in {names}"
            + (f", or the file {FILE_NAME!r} is missing there" if strangers else "")
        )
    if len({identity.id for identity in identities.values()}) < len(identities):
        raise WrongFolders(f"one data folder is a copy of another one: {', '.join(map(str, identities))}")
    return sets


def check_together(disk: Disk, paths: Sequence[Path], lost: Collection[Path] = ()) -> None:
    """Raise WrongFolders if these folders, all of which have data, cannot belong to one broker. Those that
    do not say whose they are, because their file is damaged, unreadable or `lost`, are left out."""
    identities: dict[Path, Identity] = {}
    with_data: list[Path] = []
    for path in [path for path in paths if path not in lost]:
        with contextlib.suppress(DamagedIdentity, OSError):
            identity = read_identity(disk, path)
            if identity is None:
                with_data.append(path)
            else:
                identities[path] = identity
    _sets(identities, with_data)


def _is_there(disk: Disk, path: Path, id_: str) -> bool:
    """Whether a folder that was not named is where it was, and can be written to."""
    try:
        check_identity(disk, path, id_)
        close_quietly(disk, disk.lock(path / LOCK_NAME))
    except (StorageError, OSError):
        return False
    return True


def has_data(disk: Disk, path: Path) -> bool:
    """Whether a broker has used this folder. Raises OSError."""
    return not {CATALOGUE_DIRECTORY, "logs"}.isdisjoint(disk.names(path))


def write_identity_file(disk: Disk, path: Path, identity: Identity) -> None:
    """Write the file `folder` of an existing folder, durably. Raises StorageError, OSError."""
    close_quietly(disk, publish(disk, path / FILE_NAME, [_line(identity)]))


def _line(identity: Identity) -> bytes:
    fields = {
        "version": _VERSION,
        "set": identity.set,
        "id": identity.id,
        "folders": [{"id": id_, "path": str(each)} for id_, each in identity.folders],
    }
    content = json.dumps(fields).encode()
    return b"%08x %s\n" % (crc32c(content), content)


def read_identity(disk: Disk, path: Path) -> Identity | None:
    """A folder's identity; None if the folder or its file is missing. Raises WrongFolders, OSError."""
    if FILE_NAME not in disk.names(path):
        return None
    crc, _, content = read_file(disk, path / FILE_NAME).rstrip(b"\n").partition(b" ")
    if crc != b"%08x" % crc32c(content):
        raise DamagedIdentity(path / FILE_NAME)
    fields: dict[str, Any] = json.loads(content)
    if fields["version"] != _VERSION:
        raise WrongFolders(f"{path / FILE_NAME} has version {fields['version']}; only {_VERSION} is known")
    return Identity(
        fields["set"], fields["id"], tuple((each["id"], Path(each["path"])) for each in fields["folders"])
    )


def home_of(disk: Disk, folders: Sequence[Folder]) -> Path:
    """The folder of the partition index and the generated certificate: folder 0, or folder 1 while that is
    missing.

    Once the broker has run without folder 0, the index in folder 0 is out of date. An index in folder 1
    shows that this happened; then both are removed, and the index is made anew. Raises DiskFailed.
    """
    if len(folders) == 1:
        return folders[0].path
    first, second = folders[:2]
    if first.is_missing:
        return second.path
    try:
        if not second.is_missing and not {INDEX_NAME, COPY_NAME}.isdisjoint(
            disk.names(second.path / CATALOGUE_DIRECTORY)
        ):
            for folder in (first, second):
                if CATALOGUE_DIRECTORY not in disk.names(folder.path):
                    continue
                for name in (INDEX_NAME, COPY_NAME):
                    disk.remove(folder.path / CATALOGUE_DIRECTORY / name)
                disk.sync_directory(folder.path / CATALOGUE_DIRECTORY)
    except OSError as error:
        raise disk_error(error, first.path) from error
    return first.path


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
