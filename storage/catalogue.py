"""Catalogue: a durable set of named small documents, such as the broker's entities and settings.

Each document is a file of its own, replaced as a whole or not at all. All numbers are little endian.

    offset  size  field
         0     8  magic "PbDocmnt"
         8     4  CRC-32C of everything behind
        12     2  format version, 1
        14     2  length of the name in bytes
        16     4  length of the document in bytes
        20     …  name, UTF-8
         …     …  document

The file's name begins with that of the document, as far as it is plain, and goes on with a digest of it: `….document`. A
deletion renames it to `….deleted`, which asks a full disk for nothing, and stays as the record that the document was deleted
and not lost, until the owner has cleared away what belonged to it (`forget`). Where both are, the document was put again later.

*An unknown outcome.* When the folder cannot be synced, its last change may be on the disk or not. It is made known by making it
anew: the next sync then has something to write, and is no mere repetition of the one that failed (durability rule 4).
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from storage.disk import TEMPORARY_SUFFIX, Disk, close_quietly, disk_error, make_directories, publish
from storage.errors import CommitFailed, CorruptRecord, DiskFull, UnknownFormat
from storage.record import crc32c
from storage.threads import run_to_end

FORMAT_VERSION = 1
DOCUMENT_SUFFIX = ".document"
DELETED_SUFFIX = ".deleted"
NAME_BYTES_MAX = 65_535
ATTEMPTS = 3
"""How often a change is made whose outcome is not known, before the caller hears of it."""

_MAGIC = b"PbDocmnt"
_HEAD = struct.Struct("<8sI")
_TAIL = struct.Struct("<HHI")
_NAME_AT = _HEAD.size + _TAIL.size


class Catalogue:
    """The documents in one folder, whose parent exists. One caller at a time; the others wait."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._turn = asyncio.Lock()
        self._unknown: set[str] = set()
        """Documents whose last change has an outcome that is not known."""

    async def load_all(self) -> dict[str, bytes]:
        """All documents by name, durably as they are read; removes what a crash has left half done.

        Raises CorruptRecord, which names the file, UnknownFormat, DiskFailed.
        """
        async with self._turn:
            return await run_to_end(None, self._load_all)

    async def load_deleted(self) -> list[str]:
        """The names of the documents that were deleted and not forgotten yet. Raises as `load_all`, which comes first."""
        async with self._turn:
            return await run_to_end(None, self._load_deleted)

    async def put(self, name: str, document: bytes) -> None:
        """Keep the document in place of the one of that name; durable when it returns.

        Raises DiskFull (nothing happened), CommitFailed: the outcome is not known, now and after a restart there may be the old
        one or the new one, until a `put` or `delete` of that name has returned.
        """
        async with self._turn:
            await run_to_end(None, lambda: self._until_known(name, lambda: self._put(name, document)))

    async def delete(self, name: str) -> None:
        """Delete the document, if there is one, and remember that it was deleted; durable when it returns.

        Raises CommitFailed: the outcome is not known, as with `put`.
        """
        async with self._turn:
            await run_to_end(None, lambda: self._until_known(name, lambda: self._delete(name)))

    async def forget(self, name: str) -> None:
        """A deleted document need not be remembered any longer. After a crash it may still be. Raises DiskFailed."""
        async with self._turn:
            await run_to_end(None, lambda: self._forget(name))

    def _load_all(self) -> dict[str, bytes]:
        documents: dict[str, bytes] = {}
        try:
            names = sorted(self._disk.names(self._directory))
            for file_name in names:
                path = self._directory / file_name
                if file_name.endswith(TEMPORARY_SUFFIX):
                    self._disk.remove(path)
                elif file_name.endswith(DOCUMENT_SUFFIX):
                    name, document = _decode(self._read(path), path)
                    documents[name] = document
            if names:
                # Whoever was here before may have died between a change and its sync. What is read is acted upon: an entity is
                # served, another one's logs are removed. So it must not be otherwise after a power cut (durability rule 3).
                self._disk.sync_directory(self._directory)
        except OSError as error:
            raise disk_error(error, self._directory) from error
        return documents

    def _load_deleted(self) -> list[str]:
        try:
            names = set(self._disk.names(self._directory))
            paths = [self._directory / name for name in sorted(names) if name.endswith(DELETED_SUFFIX)]
            return [_decode(self._read(path), path)[0] for path in paths if path.with_suffix(DOCUMENT_SUFFIX).name not in names]
        except OSError as error:
            raise disk_error(error, self._directory) from error

    def _read(self, path: Path) -> bytes:
        fd = self._disk.open_read(path)
        try:
            return self._disk.read(fd, self._disk.size(fd), 0)
        finally:
            self._disk.close(fd)

    def _put(self, name: str, document: bytes) -> None:
        try:
            make_directories(self._disk, self._directory.parent, [self._directory.name])
        except OSError as error:
            raise CommitFailed(f"{self._directory}: {error.strerror}") from error
        fd = publish(self._disk, self._directory / file_name_of(name), _encode(name, document))
        close_quietly(self._disk, fd)

    def _delete(self, name: str) -> None:
        path = self._directory / file_name_of(name)
        deleted = path.with_suffix(DELETED_SUFFIX)
        try:
            names = self._disk.names(self._directory)
            if path.name not in names:
                if deleted.name not in names or name not in self._unknown:
                    return
                self._disk.rename(deleted, path)  # durability rule 4: only what is changed anew is written by the next sync
            self._disk.rename(path, deleted)
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise CommitFailed(f"{self._directory}: {error.strerror}") from error

    def _until_known(self, name: str, change: Callable[[], None]) -> None:
        """Make a change, and make it anew while its outcome is not known. Raises DiskFull (nothing happened), CommitFailed."""
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
        path = (self._directory / file_name_of(name)).with_suffix(DELETED_SUFFIX)
        try:
            self._disk.remove(path)
        except OSError as error:
            raise disk_error(error, path) from error


def file_name_of(name: str) -> str:
    """The file that holds the document of this name."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]
    return f"{plain}-{blake2b(name.encode(), digest_size=16).hexdigest()}{DOCUMENT_SUFFIX}"


def _encode(name: str, document: bytes) -> list[bytes]:
    encoded = name.encode()
    assert len(encoded) <= NAME_BYTES_MAX
    rest = _TAIL.pack(FORMAT_VERSION, len(encoded), len(document)) + encoded + document
    return [_HEAD.pack(_MAGIC, crc32c(rest)), rest]


def _decode(data: bytes, path: Path) -> tuple[str, bytes]:
    if len(data) < _NAME_AT:
        raise CorruptRecord(str(path), len(data), "the document is cut off")
    magic, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or crc != crc32c(data[_HEAD.size :]):
        raise CorruptRecord(str(path), 0, "the document's checksum does not match")
    version, name_length, length = _TAIL.unpack_from(data, _HEAD.size)
    if version != FORMAT_VERSION:
        raise UnknownFormat(f"{path}: document format version {version} is not known, only {FORMAT_VERSION}")
    name = data[_NAME_AT : _NAME_AT + name_length].decode()
    document = data[_NAME_AT + name_length :]
    if len(document) != length or path.with_suffix(DOCUMENT_SUFFIX).name != file_name_of(name):
        raise CorruptRecord(str(path), 0, f"the file is not the document {name!r} that it says it is")
    return name, document
