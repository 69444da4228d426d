"""The data folders of a broker: which belong to it, what their numbers are, and which are missing.

A broker may keep its partitions in several folders, usually on several disks. Each folder has a number, which
never changes. An entity records how many folders it is spread over, and from that the number of a partition
determines the folder of its log (`storage/spread_store.py`). So folders can only be added, and may be listed
in any order.

The file `folder` in each of them says which one it is (`storage/folder_identity.py`). A broker with one
folder has no such file until a second folder is added; then the first one is number 0.

The folder of a disk that is not mounted looks empty. So a folder counts as new only if no known one is
missing.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from storage.disk import Disk, close_quietly, disk_error, make_root
from storage.errors import DiskFailed, DiskHangs, StorageError
from storage.folder_identity import (
    FILE_NAME,
    UNFINISHED_NAME,
    DamagedIdentity,
    Identity,
    Latest,
    MissingIdentity,
    UnfinishedFolder,
    WrongFolders,
    latest,
    line_of,
    read_identity,
    write_identity_file,
)
from storage.partition_index import COPY_NAME, INDEX_NAME
from storage.storage_version import check_version
from storage.threads import ask_each

CATALOGUE_DIRECTORY = "catalogue"
LOCK_NAME = "lock"
TIMEOUT_MS = 5_000
"""How long to wait for the identity of a folder."""

log = structlog.get_logger("folders")


@dataclass(slots=True, frozen=True)
class Folder:
    """One data folder. Its index in the list of all folders is its number."""

    path: Path
    id: str = ""
    """Empty for a broker's only folder."""
    is_missing: bool = False
    """Whether it does not exist, another folder is in its place, or its disk does not answer."""


def arrange(disk: Disk, paths: Sequence[Path], timeout_ms: int = TIMEOUT_MS) -> list[Folder]:
    """All folders of a broker by number, whatever the order of `paths`. New folders get a number, which is
    written to their files.

    A folder whose identity is lost, damaged or unreadable, or is not read within `timeout_ms`, counts as
    missing if the other folders list it, and so does one that nobody may write to. Raises WrongFolders,
    UnknownFormat, DiskFailed, DiskHangs.
    """
    found: dict[Path, Identity | None] = {}
    unreadable: dict[Path, StorageError] = {}
    timeout_s = timeout_ms / 1_000
    for path, answer in ask_each(paths, lambda path: _look(disk, path), timeout_s, "identity").items():
        if isinstance(answer, TimeoutError):
            unreadable[path] = DiskHangs(f"{path}: {answer}")
        elif isinstance(answer, OSError):
            unreadable[path] = disk_error(answer, path)
            unreadable[path].__cause__ = answer  # as if raised from it
        elif isinstance(answer, DamagedIdentity):
            unreadable[path] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[path] = answer
    unreadable |= _without_identity(disk, found)
    found = {path: identity for path, identity in found.items() if path not in unreadable}
    named = {path: identity for path, identity in found.items() if identity is not None}
    _sets(named, ())
    not_named = _NotNamed(disk, named, paths, timeout_s)
    _refuse_copies(disk, named, paths, timeout_s)
    known = not_named.known
    known.refuse_given_up(named)
    _check_named(named, unreadable, known, timeout_s)
    if found == {paths[0]: None}:
        return [Folder(paths[0])]
    hanging = [path.absolute() for path, error in unreadable.items() if isinstance(error, DiskHangs)]
    try:
        with contextlib.ExitStack() as locks:
            return _arrange(disk, found, not_named, hanging, _lock_each(disk, found, locks))
    except OSError as error:
        raise disk_error(error, paths[0]) from error


def _look(disk: Disk, path: Path) -> Identity | None:
    check_version(disk, path)
    return read_identity(disk, path)


def _without_identity(disk: Disk, found: Mapping[Path, Identity | None]) -> dict[Path, StorageError]:
    """The folders that have data and no identity although others have one, with the error of each."""
    errors: dict[Path, StorageError] = {}
    if any(found.values()):
        for path in [path for path, identity in found.items() if identity is None]:
            try:
                if has_data(disk, path):
                    is_unfinished = UNFINISHED_NAME in disk.names(path)
                    errors[path] = (
                        UnfinishedFolder(path) if is_unfinished else MissingIdentity(path / FILE_NAME)
                    )
            except OSError as error:
                errors[path] = disk_error(error, path)
    return errors


def _check_named(
    named: Mapping[Path, Identity],
    unreadable: Mapping[Path, StorageError],
    known: Latest,
    timeout_s: float,
) -> None:
    """Raise the error of an unreadable folder, unless the other folders list it: then it counts as missing,
    and they serve."""
    lost = dict(known.folders)
    for each in named.values():
        lost.pop(each.id, None)
    for path, error in unreadable.items():
        elsewhere = _different([(place, path) for place in lost.values()], timeout_s)
        ids = [id_ for id_, place in lost.items() if (place, path) not in elsewhere]
        if not named or not ids:
            raise error
        if isinstance(error, DamagedIdentity):
            set_id = next(iter(named.values())).set
            log.error(
                "folder.damaged",
                path=str(path / FILE_NAME),
                advice="Its partitions are unavailable until the file has this line. 'partibus repair' can "
                "write it, with the broker stopped.",
                line=line_of(Identity(set_id, ids[0], *known)).decode().rstrip(),
            )
        else:
            log.error("folder.unreadable", path=str(path), error=str(error))


class _NotNamed:
    """The folders that the named ones list but that are not named, and what is at the place of each."""

    def __init__(
        self, disk: Disk, named: Mapping[Path, Identity], paths: Sequence[Path], timeout_s: float
    ) -> None:
        """`named`: those of the named folders that say which they are; `paths`: all named ones."""
        self._disk, self._timeout_s = disk, timeout_s
        self.known = latest(named.values())
        """What all of them say together."""
        self.moved = _moved(self.known, named, timeout_s)
        """Where the named folders were, and are now, if that is another place."""
        self._found: dict[str, Identity] = {}
        self._hanging: set[str] = set()
        asked = {path.absolute() for path in paths}
        while to_ask := self._to_ask(named, asked):
            asked |= {path.absolute() for path in to_ask}
            answers = ask_each(to_ask, lambda path: read_identity(disk, path), timeout_s, "identity")
            for path, answer in answers.items():
                if isinstance(answer, TimeoutError):
                    self._hanging.add(to_ask[path])
                elif isinstance(answer, Identity) and answer.id == to_ask[path]:
                    self._found[answer.id] = answer
            if not self.moved:  # otherwise they may be the original's, and the named ones a copy
                self.known = latest([*named.values(), *self._found.values()])

    def _to_ask(self, named: Mapping[Path, Identity], asked: Collection[Path]) -> dict[Path, str]:
        ids = {identity.id for identity in named.values()}
        return {
            path: id_ for id_, path in self.known.folders if id_ not in ids and path.absolute() not in asked
        }

    def used(self, ids: Collection[str]) -> set[str]:
        """Which of these folders are used although the settings do not name them: those that are where they
        were and can be written to. Raises WrongFolders if one is there, but others were moved: this may be a
        copy of a broker, whose own folder it must not change."""
        places = {path: id_ for id_, path in self.known.folders if id_ in ids and id_ in self._found}
        answers = ask_each(places, self._lock, self._timeout_s, "lock")
        there = {places[path] for path, answer in answers.items() if answer is True}
        self._hanging |= {places[path] for path, each in answers.items() if isinstance(each, TimeoutError)}
        for number, (id_, path) in enumerate(self.known.folders):
            if id_ not in there:
                continue
            if self.moved:
                before, now = self.moved[0]
                raise WrongFolders(
                    f"folder {number} of this broker is not named. There is one in {path}, but it may belong "
                    f"to the broker of which this is a copy, since {before} is {now} now: name that folder, "
                    "its copy, or an empty folder in which the copy will be"
                )
            log.warning(
                "folder.not_named",
                path=str(path),
                number=number,
                advice="The settings do not name this data folder any more, but it belongs to this broker "
                "and has a part of its partitions. The broker uses it where it was. Name it again beside the "
                "others: the broker would not find it in another place.",
            )
        return there

    def report(self, number: int, id_: str, path: Path) -> None:
        """Log that a folder is missing, or does not answer."""
        if id_ in self._hanging:
            error = f"{path}: no answer within {self._timeout_s:g} s"
            log.error("folder.unreadable", path=str(path), error=error)
        else:
            log.error("folder.missing", path=str(path), number=number)

    def _lock(self, path: Path) -> bool:
        try:
            close_quietly(self._disk, self._disk.lock(path / LOCK_NAME))
        except OSError:
            return False
        return True


def _moved(known: Latest, named: Mapping[Path, Identity], timeout_s: float) -> list[tuple[Path, Path]]:
    """Where each folder was and is now, if that is another place and not another name for it."""
    places = {identity.id: path for path, identity in named.items()}
    pairs = [(path, places[id_]) for id_, path in known.folders if id_ in places]
    return _different(pairs, timeout_s)


def _refuse_copies(
    disk: Disk, named: Mapping[Path, Identity], paths: Sequence[Path], timeout_s: float
) -> None:
    """Raise WrongFolders if a folder is still where it was, but another one that says the same of itself is
    named: one of the two is a copy, perhaps an old one. If that goes for all named folders, they are a copy
    of the whole broker, and may be used as a broker of its own. A folder that is named where it was belongs
    to the original, even if it does not say whose it is: its disk may not be mounted.

    Once a copy was used, the files differ in where the folder was: each of their lists is looked at.
    """
    now = {identity.id: path for path, identity in named.items()}
    silent = [path for path in paths if path not in named]
    lists = dict.fromkeys(identity.folders for identity in named.values())
    pairs = [(place, now[id_]) for entries in lists for id_, place in entries if id_ in now]
    moved = _different(dict.fromkeys(pairs), timeout_s)
    found = ask_each(moved, lambda pair: read_identity(disk, pair[0]), timeout_s, "identity")
    for entries in lists:
        twice = [
            (number, place, now[id_])
            for number, (id_, place) in enumerate(entries)
            if isinstance(there := found.get((place, now.get(id_, place))), Identity) and there.id == id_
        ]
        if not twice:
            continue
        places = [(place, path) for _, place in entries for path in silent]
        if len(twice) < len(named) or len(_different(places, timeout_s)) < len(places):
            number, place, path = twice[0]
            raise _is_twice(path, place, number, place)


def _is_twice(one: Path, other: Path, number: int, used: Path) -> WrongFolders:
    """The refusal of two folders that say they have this number; the broker has last used what was in `used`.
    Only its operator knows which of them is the copy."""
    advice = "name only the one to use"
    for kept, left in ((one, other), (other, one)):
        if kept.absolute() == used.absolute():
            advice = f"name {kept} and not {left}, or move {kept} away if {left} is to take its place"
    return WrongFolders(
        f"the data folders {one} and {other} both say that they are folder {number} of this broker, which "
        f"last used {used}: {advice}"
    )


def _different(pairs: Iterable[tuple[Path, Path]], timeout_s: float) -> list[tuple[Path, Path]]:
    """The pairs of paths that do not lead to the same place, as far as that is known within the time-out."""
    others = [pair for pair in pairs if pair[0].absolute() != pair[1].absolute()]
    answers = ask_each(others, lambda pair: _is_one(*pair), timeout_s, "place")
    return [pair for pair in others if answers[pair] is not True]


def _is_one(one: Path, other: Path) -> bool:
    """Whether two paths lead to the same place, through symbolic links or mounts. A folder that an overlay or
    another network mount shows has another device number, so it is not recognized."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def unnamed(disk: Disk, paths: Sequence[Path]) -> list[Path]:
    """The recorded paths of folders that belong to the same broker but are not among `paths`. Changes
    nothing. Raises WrongFolders, OSError."""
    identities = [
        identity for identity in (read_identity(disk, path) for path in paths) if identity is not None
    ]
    named = {identity.id for identity in identities}
    return [path for id_, path in latest(identities).folders if id_ not in named]


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
            if identity is not None and UNFINISHED_NAME in disk.names(path):
                disk.remove(path / UNFINISHED_NAME)  # its identity was written last, so it is complete
                disk.sync_directory(path)
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
    found: Mapping[Path, Identity | None],
    not_named: _NotNamed,
    hanging: Collection[Path],
    refused: Mapping[Path, OSError],
) -> list[Folder]:
    """`refused`: the folders that cannot be written to, with the error of each; they count as missing."""
    known = not_named.known
    identities = {path: identity for path, identity in found.items() if identity is not None}
    blank = [path for path, identity in found.items() if identity is None]
    with_data = [path for path in blank if has_data(disk, path)]
    sets = _sets(identities, with_data)
    usable = _usable(identities, refused, known.folders)
    if not usable.issuperset(id_ for id_, _ in known.folders):
        return _without_missing(identities, blank, usable, not_named, hanging)
    new = [*with_data, *(path for path in blank if path not in with_data)]
    return _with_new(disk, found, new, next(iter(sets), None) or uuid.uuid4().hex, known)


def _usable(
    identities: Mapping[Path, Identity], refused: Mapping[Path, OSError], known: Sequence[tuple[str, Path]]
) -> set[str]:
    """The ids of the folders that can be written to. Raises the error of another one if it has no id, or the
    broker cannot start without it."""
    usable = {identity.id for path, identity in identities.items() if path not in refused}
    for path, error in refused.items():
        if path not in identities or not _have_catalogue(usable, known):
            raise error
        log.error("folder.unreadable", path=str(path), error=error.strerror)
    return usable


def _have_catalogue(ids: Collection[str], known: Sequence[tuple[str, Path]]) -> bool:
    """Whether one of the two folders that have the catalogue is among these."""
    return any(id_ in ids for id_, _ in known[:2])


def _without_missing(
    identities: Mapping[Path, Identity],
    blank: Sequence[Path],
    usable: Collection[str],
    not_named: _NotNamed,
    hanging: Collection[Path],
) -> list[Folder]:
    """The known folders if some of them cannot be used. None is added: a `blank` one may be the mount point
    of one that is missing. Raises WrongFolders if the broker cannot start without these."""
    known = not_named.known.folders
    places = {identity.id: path for path, identity in identities.items()}
    unfound = {
        id_: path
        for id_, path in known
        if id_ not in usable and id_ not in places and path.absolute() not in hanging
    }
    expected = _expected(unfound, blank)
    used = not_named.used([id_ for id_ in unfound if id_ not in expected])
    for number, (id_, path) in enumerate(known):
        if id_ in expected:
            reason = "It is expected in an empty folder that is named, and used once it is there."
            log.error("folder.missing", path=str(expected[id_]), was=str(path), number=number, reason=reason)
        elif id_ in unfound and id_ not in used:
            not_named.report(number, id_, path)
    for path in [path for path in blank if path not in expected.values()]:
        log.warning("folder.not_added", path=str(path), reason="Another folder of this broker is missing.")
    if not _have_catalogue(usable, known):
        raise WrongFolders(f"the catalogue cannot be read: neither {known[0][1]} nor {known[1][1]} is there")
    there = {*usable, *used}
    return [Folder(places.get(id_, expected.get(id_, path)), id_, id_ not in there) for id_, path in known]


def _with_new(
    disk: Disk, found: Mapping[Path, Identity | None], new: Sequence[Path], set_id: str, known: Latest
) -> list[Folder]:
    """The known folders, which are all there, and `new` ones. Writes the list of all of them to each."""
    places = {identity.id: path for path, identity in found.items() if identity is not None}
    entries = [(id_, places[id_]) for id_, _ in known.folders] + [(uuid.uuid4().hex, path) for path in new]
    wanted = tuple((id_, path.absolute()) for id_, path in entries)
    # New folders first, so that after a crash the longer list in any of them leads to the same arrangement.
    for id_, path in reversed(entries):
        identity = Identity(set_id, id_, wanted, known.given_up)
        if found[path] != identity:
            make_root(disk, path)
            write_identity_file(disk, path, identity)
    for number, path in enumerate(new, len(known.folders)):
        log.info("folder.added", path=str(path), number=number)
    return [Folder(path, id_) for id_, path in entries]


def _expected(missing: Mapping[str, Path], blank: Sequence[Path]) -> dict[str, Path]:
    """In which of the empty folders that are named the missing ones are expected: each where it was, or else
    in the next one."""
    expected = {id_: path for id_, path in missing.items() if path in blank}
    rest = [path for path in blank if path not in expected.values()]
    others = [id_ for id_ in missing if id_ not in expected]
    return expected | dict(zip(others, rest, strict=False))


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
    places: dict[str, Path] = {}
    for path, identity in identities.items():
        if (other := places.setdefault(identity.id, path)) is not path:
            raise _is_twice(other, path, *_last_place(identity.id, identities.values()))
    return sets


def _last_place(id_: str, identities: Iterable[Identity]) -> tuple[int, Path]:
    """The number of a folder that is named twice, and where it was. The files of other folders know better
    than its own, each of which may name its own place."""
    return next(
        (number, place)
        for identity in sorted(identities, key=lambda each: each.id == id_)
        for number, (each, place) in enumerate(identity.folders)
        if each == id_
    )


def check_together(disk: Disk, paths: Sequence[Path], lost: Collection[Path] = ()) -> None:
    """Raise WrongFolders if these folders, all of which have data, cannot belong to one broker, or if one is
    unfinished, or a copy of one that is still there. Those that do not say whose they are, because their file
    is damaged, unreadable or `lost`, are left out."""
    identities: dict[Path, Identity] = {}
    with_data: list[Path] = []
    for path in [path for path in paths if path not in lost]:
        with contextlib.suppress(DamagedIdentity, OSError):
            identity = read_identity(disk, path)
            if identity is None and UNFINISHED_NAME in disk.names(path):
                raise UnfinishedFolder(path)
            if identity is None:
                with_data.append(path)
            else:
                identities[path] = identity
    _sets(identities, with_data)
    latest(identities.values()).refuse_given_up(identities)
    _refuse_copies(disk, identities, paths, TIMEOUT_MS / 1_000)


def has_data(disk: Disk, path: Path) -> bool:
    """Whether a broker has used this folder. Raises OSError."""
    return not {CATALOGUE_DIRECTORY, "logs"}.isdisjoint(disk.names(path))


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
