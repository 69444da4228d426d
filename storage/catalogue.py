"""Catalogue: a durable set of named small documents, such as the broker's entities and settings.

Each document is kept twice, in two files that are replaced as a whole or not at all: `….document` and
`….copy`. All numbers are little endian.

    offset  size  field
         0     8  magic "PbDocmnt"
         8     4  CRC-32C of everything behind
        12     2  format version, 2 14     2  length of the name in bytes 16     4  length of the document in
        bytes 20     8  number: rises with each change of the document; of two whole files the one with the
        higher number counts 28     …  name, UTF-8
         …     …  document

Files of version 1 have no number, which counts as 0, and the name follows at 20.

With several data folders the copies are in the second one (`folders.py`). Then either folder is enough to
read all documents, and both are needed to change one.

A file's name begins with the plain characters of the document's name and ends with a digest of it. A change
is acknowledged once both files are durable. So a crash leaves two old files, two new ones or one of each, and
a damaged or missing file costs nothing: the other serves, and the next load writes the file again. A document
without a readable file is `damaged`: reported and left alone.

A deletion renames both files, to `….deleted` and `….copy-deleted`, which needs no room on a full disk. The
renamed files stay as the record that the document was deleted and not lost, until the owner has cleared away
what belonged to it (`forget`). A deletion is acknowledged once neither file has its old name. If one still
has, the document exists: it was put again later, or the deletion was cut short.

*An unknown outcome.* When the folder cannot be synced, its last change may be on the disk or not. It is made
known by making it anew: the next sync then has something to write, and is no mere repetition of the one that
failed (durability rule 4).

*A disk that hangs.* A change that takes longer than the timeout has an unknown outcome, too. It keeps its
turn until the disk has answered. Meanwhile every other change is refused at once, without being begun
(DiskHangs).
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import structlog

from storage.disk import TEMPORARY_SUFFIX, Disk, disk_error, make_directories, publish_together, read_file
from storage.errors import (
    CommitFailed,
    CorruptRecord,
    DiskFailed,
    DiskFull,
    DiskHangs,
    StorageError,
    UnknownFormat,
)
from storage.folders import check_identity
from storage.record import crc32c
from storage.threads import UnderWay, run_to_end, take_note, within

FORMAT_VERSION = 2
DOCUMENT_SUFFIX = ".document"
COPY_SUFFIX = ".copy"
DELETED_SUFFIX = ".deleted"
COPY_DELETED_SUFFIX = ".copy-deleted"
NAME_BYTES_MAX = 65_535
PLAIN_NAME_MAX = 96
"""How many characters of a document's name its file name shows. Enough for a namespace (50) and an identifier
(32)."""
TIMEOUT_MS = 5_000
"""How long a change may take."""
ATTEMPTS = 3
"""How often a change is made whose outcome is not known, before the caller hears of it."""
MERGED_PLACES_MAX = 12
"""In so many bytes two damaged files of a document may differ: all combinations are tried."""

_MAGIC = b"PbDocmnt"
_HEAD = struct.Struct("<8sI")
_TAIL = struct.Struct("<HHI")
_NUMBER = struct.Struct("<Q")
_NUMBER_AT = _HEAD.size + _TAIL.size
_LIVE = (DOCUMENT_SUFFIX, COPY_SUFFIX)
_DELETED = (DELETED_SUFFIX, COPY_DELETED_SUFFIX)
_DIGEST_BYTES = 16
_PLAIN = re.compile(r"[^A-Za-z0-9_-]")

_log = structlog.get_logger("catalogue")


@dataclass(slots=True, frozen=True)
class Damaged:
    """A document without a readable file. Its files are left as they are."""

    name: str | None
    """The document's name, if the names of its files contain all of it: all its characters are plain."""
    files: list[Path]
    remains: list[bytes]
    """The contents of the files, as far as they can be read."""


@dataclass(slots=True, frozen=True)
class _Copy:
    """One whole file of a document."""

    path: Path
    version: int
    number: int
    name: str
    document: bytes


class Catalogue:
    """The documents in one folder, whose parent exists. One caller at a time; the others wait."""

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        copies: Path | None = None,
        identities: tuple[str, str] = ("", ""),
        *,
        timeout_ms: int = TIMEOUT_MS,
        executor: Executor | None = None,
    ) -> None:
        """`copies`: the folder of the copies, if it is another one; then each folder's parent must be the one
        with this identity.

        `executor`: whose threads do the work; the event loop's own unless given.
        """
        self._directory = directory
        self._copies = copies or directory
        self._identities = identities
        self._disk = disk
        self._timeout_s = timeout_ms / 1_000
        self._executor = executor
        self._turn = asyncio.Lock()
        self._under_way = UnderWay()
        self._is_late = False
        """The change that has its turn has not ended in time."""
        self._unknown: set[str] = set()
        """Documents whose last change has an outcome that is not known."""
        self._numbers: dict[str, int] = {}
        """The highest number of each document that was read or written."""
        self._has_directory = False
        """The last document was put there."""
        self.damaged: list[Damaged] = []
        """What the last `load_all` could not read."""

    async def load_all(self) -> dict[str, bytes]:
        """All documents by name, durable as read. Removes what a crash has left half done, and repairs files
        that have a good copy.

        Documents that cannot be read are in `damaged` afterwards. Raises UnknownFormat, DiskFailed.
        """
        async with self._turn:
            return await run_to_end(self._executor, self._load_all, self._under_way)

    async def load_deleted(self) -> list[str]:
        """The names of the documents that were deleted and not forgotten yet. Raises as `load_all`, which
        comes first."""
        async with self._turn:
            return await run_to_end(self._executor, self._load_deleted, self._under_way)

    async def put(self, name: str, document: bytes) -> None:
        """Keep the document in place of the one of that name; durable when it returns.

        Raises DiskFull and DiskHangs (nothing happened), CommitFailed: the outcome is not known, now and
        after a restart there may be the old one or the new one, until a `put` or `delete` of that name has
        returned.
        """
        await self._change(lambda: self._until_known(name, lambda: self._put(name, document)))

    async def delete(self, name: str) -> None:
        """Delete the document, if there is one, and remember that it was deleted; durable when it returns.

        Raises DiskHangs (nothing happened), CommitFailed: the outcome is not known, as with `put`.
        """
        await self._change(lambda: self._until_known(name, lambda: self._delete(name)))

    async def forget(self, name: str) -> None:
        """A deleted document need not be remembered any longer. After a crash it may still be. Raises
        DiskFailed, CommitFailed."""
        await self._change(lambda: self._forget(name))

    async def close(self) -> None:
        """Wait for the change that is under way, but not for a disk that hangs: then the process may end
        without it."""
        try:
            if not self._is_late:
                await within(self._timeout_s, self._under_way.ended())
        except TimeoutError:
            self._is_late = True
        if self._under_way.let_go():
            _log.error(
                "catalogue.left",
                path=str(self._directory),
                reason="The disk does not answer: the last change may be lost.",
            )

    async def _change(self, change: Callable[[], None]) -> None:
        """Make a change in its turn, in a thread. Raises what it raises; DiskHangs, CommitFailed if it is
        late."""
        if self._is_late:
            raise DiskHangs(f"{self._directory}: the disk has not answered an earlier change yet")
        has_turn = False

        async def in_turn() -> None:
            nonlocal has_turn
            async with self._turn:
                has_turn = True
                try:
                    await run_to_end(self._executor, change, self._under_way)
                finally:
                    self._is_late = False

        task = asyncio.create_task(in_turn(), name="catalogue-change")
        task.add_done_callback(take_note)
        try:
            await asyncio.wait([task], timeout=self._timeout_s)
        finally:
            if not has_turn:
                task.cancel()
        if task.done():
            task.result()
        elif has_turn:
            self._is_late = True
            _log.error(
                "catalogue.hangs",
                path=str(self._directory),
                reason="Nothing can be changed until the disk answers.",
            )
            raise CommitFailed(f"{self._directory}: the disk has not answered within {self._timeout_s:g} s")
        else:
            raise DiskHangs(f"{self._directory}: the disk has not answered earlier changes in time")

    def _load_all(self) -> dict[str, bytes]:
        documents: dict[str, bytes] = {}
        self.damaged = []
        self._numbers.clear()
        broken: list[tuple[_Copy, list[Path]]] = []
        try:
            names = self._names(tolerant=True)
            for directory in self._directories():
                for file_name in sorted(self._names_in(directory, tolerant=True)):
                    if file_name.endswith(TEMPORARY_SUFFIX):
                        self._remove_unpublished(directory / file_name)
            for stem in _stems(names, _LIVE):
                found = self._read_newest(stem, names)
                if found is None:
                    continue
                newest, others = found
                documents[newest.name] = newest.document
                self._numbers[newest.name] = newest.number
                if others:
                    broken.append((newest, others))
            self._repair(broken)
            self._remove_moved()
            for directory in self._directories():
                if not self._names_in(directory, tolerant=True):
                    continue
                # Whoever was here before may have died between a change and its sync. What is read is acted
                # upon: an entity is served, another one's logs are removed. So it must not be otherwise after
                # a power cut (durability rule 3).
                self._disk.sync_directory(directory)
        except OSError as error:
            raise disk_error(error, self._directory) from error
        return documents

    def _remove_unpublished(self, path: Path) -> None:
        """Nothing reads such a file, so one that cannot be removed, or is a folder, costs nothing."""
        try:
            self._disk.remove(path)
        except OSError as error:
            _log.warning("catalogue.not_removed", path=str(path), error=error.strerror)

    # --- where the files are ---

    def _directories(self) -> list[Path]:
        return [self._directory] if self._copies == self._directory else [self._directory, self._copies]

    def _directory_of(self, suffix: str) -> Path:
        return self._copies if suffix in (COPY_SUFFIX, COPY_DELETED_SUFFIX) else self._directory

    def _path(self, stem: str, suffix: str) -> Path:
        return self._directory_of(suffix) / f"{stem}{suffix}"

    def _names_in(self, directory: Path, *, tolerant: bool = False) -> set[str]:
        """The names in one directory. With two, a tolerant caller does with what one of them has. Raises
        OSError."""
        try:
            return set(self._disk.names(directory))
        except OSError as error:
            if not tolerant or self._copies == self._directory:
                raise
            _log.error("catalogue.folder_failed", directory=str(directory), error=error.strerror)
            return set()

    def _names(self, *, tolerant: bool = False) -> set[str]:
        """The names of all files that stand where they belong. Raises OSError."""
        names: set[str] = set()
        for directory in self._directories():
            for name in self._names_in(directory, tolerant=tolerant):
                if self._directory_of(Path(name).suffix) == directory:
                    names.add(name)
        return names

    def _admit(self) -> None:
        """Raise DiskFailed unless all folders are there: a change that reached one of two alone would be
        undone when the other is back."""
        for directory, identity in zip((self._directory, self._copies), self._identities, strict=True):
            check_identity(self._disk, directory.parent, identity)

    def _read_newest(self, stem: str, names: set[str]) -> tuple[_Copy, list[Path]] | None:
        """The whole file with the highest number, and the paths that need a file like it; None if no file is
        whole (`damaged`)."""
        paths = [self._path(stem, suffix) for suffix in _LIVE]
        found = [self._read_copy(path) for path in paths if path.name in names]
        whole = [copy for copy in found if isinstance(copy, _Copy)]
        if not whole:
            files = [path for path in paths if path.name in names]
            self.damaged.append(
                Damaged(document_of(stem), files, [copy for copy in found if isinstance(copy, bytes)])
            )
            return None
        newest = max(whole, key=lambda copy: copy.number)
        as_newest = {
            copy.path for copy in whole if (copy.number, copy.document) == (newest.number, newest.document)
        }
        others = [path for path in paths if path not in as_newest]
        if newest.version > 1 and any(path.name not in names for path in others):
            _log.warning("document.copy_missing", document=newest.name, paths=[str(path) for path in others])
        return newest, others

    def _repair(self, broken: list[tuple[_Copy, list[Path]]]) -> None:
        """Write the missing or older files of these documents again. Where the disk refuses, the next load or
        put does it."""
        if broken and self._copies != self._directory:
            try:
                self._admit()
                for directory in self._directories():
                    make_directories(self._disk, directory.parent, [directory.name])
            except (OSError, StorageError) as error:
                _log.warning("document.not_repaired", documents=len(broken), error=str(error))
                return
        failed, failure = 0, ""
        for number, (copy, paths) in enumerate(broken):
            try:
                for path in paths:
                    publish_together(
                        self._disk,
                        [path],
                        _encode(copy.name, copy.number, copy.document),
                        sync_directory=False,
                    )
            except DiskFull as error:
                failed, failure = failed + len(broken) - number, str(error)
                break
            except StorageError as error:
                failed, failure = failed + 1, failure or str(error)
        if failed:
            _log.warning("document.not_repaired", documents=failed, error=failure)
        if len(broken) > failed:
            _log.info("document.repaired", documents=len(broken) - failed)

    def _remove_moved(self) -> None:
        """Remove copies from the documents' folder that have moved to a folder of their own since. Raises
        OSError."""
        if self._copies == self._directory:
            return
        moved = self._names_in(self._copies, tolerant=True)
        for name in self._names_in(self._directory, tolerant=True):
            if Path(name).suffix in (COPY_SUFFIX, COPY_DELETED_SUFFIX) and (
                name in moved or name.endswith(COPY_DELETED_SUFFIX)
            ):
                self._disk.remove(self._directory / name)

    def _load_deleted(self) -> list[str]:
        try:
            names = self._names(tolerant=True)
            deleted: list[str] = []
            for stem in _stems(names, _DELETED):
                if any(f"{stem}{suffix}" in names for suffix in _LIVE):
                    continue
                name = document_of(stem)
                if name is None:
                    found = [
                        self._read_copy(self._path(stem, suffix))
                        for suffix in _DELETED
                        if f"{stem}{suffix}" in names
                    ]
                    name = next((copy.name for copy in found if isinstance(copy, _Copy)), None)
                if name is not None:
                    deleted.append(name)
            return deleted
        except OSError as error:
            raise disk_error(error, self._directory) from error

    def _read_copy(self, path: Path) -> _Copy | bytes:
        """The document in a file; if the file is damaged, which is reported, its bytes. Raises
        UnknownFormat."""
        data = b""
        try:
            data = read_file(self._disk, path)
            return decode_document(data, path)
        except CorruptRecord as error:
            _log.error("document.damaged", path=error.path, why=error.why)
        except OSError as error:
            _log.error("document.unreadable", path=str(path), why=error.strerror)
        return data

    def _put(self, name: str, document: bytes) -> None:
        try:
            self._admit()
            if not self._has_directory:
                for directory in self._directories():
                    make_directories(self._disk, directory.parent, [directory.name])
            number = self._numbers[name] = self._last_number(name) + 1
        except OSError as error:
            raise CommitFailed(f"{self._directory}: {error.strerror}") from error
        except DiskFailed as error:
            raise CommitFailed(str(error)) from error
        stem = Path(file_name_of(name)).stem
        paths = [self._path(stem, suffix) for suffix in _LIVE]
        self._has_directory = False
        self._publish(paths, _encode(name, number, document))
        self._has_directory = True

    def _publish(self, paths: list[Path], content: list[bytes]) -> None:
        """Write both files of a document. Raises DiskFull (nothing happened), CommitFailed."""
        if self._copies == self._directory:
            publish_together(self._disk, paths, content)
            return
        publish_together(self._disk, paths[:1], content)
        try:
            publish_together(self._disk, paths[1:], content)
        except DiskFull as error:
            raise CommitFailed(f"{paths[0]} was replaced, but not its copy: {error}") from error

    def _last_number(self, name: str) -> int:
        """The highest number of the document so far. Raises OSError."""
        if name not in self._numbers:
            stem = Path(file_name_of(name)).stem
            paths = [
                self._path(stem, suffix) for suffix in _LIVE
            ]  # asked for by name: a list would take longer with each document
            found = [self._read_copy(each) for each in paths if self._exists(each)]
            self._numbers[name] = max((copy.number for copy in found if isinstance(copy, _Copy)), default=0)
        return self._numbers[name]

    def _exists(self, path: Path) -> bool:
        """Whether there is such a file. Raises OSError."""
        try:
            self._disk.close(self._disk.open_read(path))
        except FileNotFoundError:
            return False
        return True

    def _delete(self, name: str) -> None:
        stem = Path(file_name_of(name)).stem
        is_changed = False
        try:
            self._admit()
            for live, deleted in zip(
                *([self._path(stem, each) for each in suffixes] for suffixes in (_LIVE, _DELETED)),
                strict=True,
            ):
                if not self._exists(live):
                    if name not in self._unknown or not self._exists(deleted):
                        continue
                    self._disk.rename(
                        deleted, live
                    )  # durability rule 4: the next sync writes only what is changed again
                self._disk.rename(live, deleted)
                is_changed = True
            if is_changed:
                for directory in self._directories():
                    self._disk.sync_directory(directory)
        except OSError as error:
            raise CommitFailed(f"{self._directory}: {error.strerror}") from error
        except DiskFailed as error:
            raise CommitFailed(str(error)) from error

    def _until_known(self, name: str, change: Callable[[], None]) -> None:
        """Make a change, and make it anew while its outcome is not known. Raises DiskFull (nothing happened),
        CommitFailed."""
        for _ in range(ATTEMPTS):
            try:
                change()
            except DiskFull as full:
                if name not in self._unknown:
                    raise
                failure = CommitFailed(f"{full}; what came of the change before is not known")
            except CommitFailed as error:
                self._unknown.add(name)
                failure = error
            else:
                self._unknown.discard(name)
                return
        raise failure

    def _forget(self, name: str) -> None:
        stem = Path(file_name_of(name)).stem
        self._admit()
        try:
            for suffix in _DELETED:
                self._disk.remove(self._path(stem, suffix))
        except OSError as error:
            raise disk_error(error, self._directory) from error


def file_name_of(name: str) -> str:
    """The file that holds the document of this name."""
    digest = blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{_PLAIN.sub('_', name)[:PLAIN_NAME_MAX]}-{digest}{DOCUMENT_SUFFIX}"


def _stems(names: set[str], suffixes: tuple[str, str]) -> list[str]:
    """The names of files with one of these suffixes, without it, each once."""
    return sorted(
        {name.removesuffix(suffix) for name in names for suffix in suffixes if name.endswith(suffix)}
    )


def document_of(stem: str) -> str | None:
    """The document's name, if the name of its files (without suffix) contains all of it."""
    name = stem[: -(2 * _DIGEST_BYTES + 1)]
    return name if file_name_of(name) == f"{stem}{DOCUMENT_SUFFIX}" else None


def _encode(name: str, number: int, document: bytes) -> list[bytes]:
    encoded = name.encode()
    assert len(encoded) <= NAME_BYTES_MAX
    rest = _TAIL.pack(FORMAT_VERSION, len(encoded), len(document)) + _NUMBER.pack(number) + encoded + document
    return [_HEAD.pack(_MAGIC, crc32c(rest)), rest]


def merge_files(contents: Sequence[bytes], path: Path) -> bytes | None:
    """A whole file out of two damaged ones of the same document, in `path`; None if no combination of them is
    whole.

    They hold the same bytes, so wherever they differ one of them is damaged. The checksum says which.
    """
    longer, shorter = sorted(contents, key=len, reverse=True)
    places = [place for place, (one, other) in enumerate(zip(longer, shorter, strict=False)) if one != other]
    if len(places) > MERGED_PLACES_MAX:
        return None
    for choice in range(1 << len(places)):
        merged = bytearray(longer)
        for number, place in enumerate(places):
            if choice >> number & 1:
                merged[place] = shorter[place]
        try:
            decode_document(bytes(merged), path)
        except (CorruptRecord, UnknownFormat):
            continue
        return bytes(merged)
    return None


def decode_document(data: bytes, path: Path) -> _Copy:
    """What a file of a document holds. Raises CorruptRecord, UnknownFormat."""
    if len(data) < _NUMBER_AT:
        raise CorruptRecord(str(path), len(data), "the document is cut off")
    magic, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or crc != crc32c(data[_HEAD.size :]):
        raise CorruptRecord(str(path), 0, "the document's checksum does not match")
    version, name_length, length = _TAIL.unpack_from(data, _HEAD.size)
    if version not in (1, FORMAT_VERSION):
        raise UnknownFormat(
            f"{path}: document format version {version} is not known, only 1 and {FORMAT_VERSION}"
        )
    number, name_at = (
        (0, _NUMBER_AT)
        if version == 1
        else (_NUMBER.unpack_from(data, _NUMBER_AT)[0], _NUMBER_AT + _NUMBER.size)
    )
    name = data[name_at : name_at + name_length].decode()
    document = data[name_at + name_length :]
    if len(document) != length or path.with_suffix(DOCUMENT_SUFFIX).name != file_name_of(name):
        raise CorruptRecord(str(path), 0, f"the file is not the document {name!r} that it says it is")
    return _Copy(path, version, number, name, document)
