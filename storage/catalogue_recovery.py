"""Catalogue recovery: reads all documents at a start, and repairs what a crash or a failing disk has left.

- Each document has two files. Of two whole files, the one with the higher number is valid. The other is
  written again if it is older, damaged or missing. If the disk refuses, the next start or change does it.
- A document without a whole file is `Damaged`: it is reported, and its files stay as they are.
- A deletion that was cut short before both files were renamed did not happen: the document still exists.
- Unfinished files (`*.tmp`) are removed.
- The folders are synced before anything that was read takes effect: the previous process may have been killed
  between a change and its sync, and a power cut must not bring back another state (durability rule 3).

With several data folders, either of the two is enough to read everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import structlog

from storage.catalogue_folders import CatalogueFolders
from storage.disk import TEMPORARY_SUFFIX, disk_error, make_directories, publish_together, read_file
from storage.document_file import (
    COPY_DELETED_SUFFIX,
    COPY_SUFFIX,
    DELETED,
    LIVE,
    DocumentFile,
    decode_document,
    document_of,
    encode_document,
    stems,
)
from storage.errors import CorruptRecord, DiskFull, StorageError

_log = structlog.get_logger("catalogue")


@dataclass(slots=True, frozen=True)
class Damaged:
    """A document without a readable file. Its files are left as they are."""

    name: str | None
    """The document's name if the names of its files contain all of it, which takes plain characters."""
    files: list[Path]
    remains: list[bytes]
    """The contents of its files, as far as they are readable."""


@dataclass(slots=True)
class Recovered:
    """The documents found at a start."""

    documents: dict[str, bytes] = field(default_factory=dict)
    """By the document's name."""
    numbers: dict[str, int] = field(default_factory=dict)
    """The number of the valid file, by the document's name."""
    damaged: list[Damaged] = field(default_factory=list)


def recover(folders: CatalogueFolders) -> Recovered:
    """Read all documents, make durable what was read, and repair their files. Blocks. Raises UnknownFormat,
    DiskFailed."""
    found = Recovered()
    outdated: list[tuple[DocumentFile, list[Path]]] = []
    try:
        names = folders.names(tolerant=True)
        for directory in folders.directories():
            for file_name in sorted(folders.names_in(directory, tolerant=True)):
                if file_name.endswith(TEMPORARY_SUFFIX):
                    _remove_unpublished(folders, directory / file_name)
        for stem in stems(names, LIVE):
            valid = _read_valid(folders, stem, names, found.damaged)
            if valid is None:
                continue
            file, others = valid
            found.documents[file.name] = file.document
            found.numbers[file.name] = file.number
            if others:
                outdated.append((file, others))
        _repair(folders, outdated)
        _remove_moved(folders)
        for directory in folders.directories():
            if folders.names_in(directory, tolerant=True):
                folders.disk.sync_directory(directory)  # durability rule 3
    except OSError as error:
        raise disk_error(error, folders.directory) from error
    return found


def deleted_documents(folders: CatalogueFolders) -> list[str]:
    """The names of the documents whose deletion is still recorded. Blocks. Raises UnknownFormat,
    DiskFailed."""
    try:
        names = folders.names(tolerant=True)
        deleted: list[str] = []
        for stem in stems(names, DELETED):
            if any(f"{stem}{suffix}" in names for suffix in LIVE):
                continue
            name = document_of(stem)
            if name is None:
                paths = [folders.path(stem, suffix) for suffix in DELETED if f"{stem}{suffix}" in names]
                files = [read_document(folders, path) for path in paths]
                name = next((file.name for file in files if isinstance(file, DocumentFile)), None)
            if name is not None:
                deleted.append(name)
        return deleted
    except OSError as error:
        raise disk_error(error, folders.directory) from error


def read_document(folders: CatalogueFolders, path: Path) -> DocumentFile | bytes:
    """A file of a document; if it is damaged, its bytes, after reporting that. Raises UnknownFormat."""
    data = b""
    try:
        data = read_file(folders.disk, path)
        return decode_document(data, path)
    except CorruptRecord as error:
        _log.error("document.damaged", path=error.path, why=error.why)
    except OSError as error:
        _log.error("document.unreadable", path=str(path), why=error.strerror)
    return data


def _remove_unpublished(folders: CatalogueFolders, path: Path) -> None:
    """Remove an unfinished file. Nobody reads it, so a failure does no harm."""
    try:
        folders.disk.remove(path)
    except OSError as error:
        _log.warning("catalogue.not_removed", path=str(path), error=error.strerror)


def _read_valid(
    folders: CatalogueFolders, stem: str, names: set[str], damaged: list[Damaged]
) -> tuple[DocumentFile, list[Path]] | None:
    """The whole file with the highest number, and the paths that lack its content. If no file is whole, adds
    the document to `damaged` and returns None."""
    paths = [folders.path(stem, suffix) for suffix in LIVE]
    present = [path for path in paths if path.name in names]
    files = [read_document(folders, path) for path in present]
    whole = [file for file in files if isinstance(file, DocumentFile)]
    if not whole:
        remains = [file for file in files if isinstance(file, bytes)]
        damaged.append(Damaged(document_of(stem), present, remains))
        return None
    valid = max(whole, key=lambda file: file.number)
    alike = {file.path for file in whole if (file.number, file.document) == (valid.number, valid.document)}
    others = [path for path in paths if path not in alike]
    if valid.version > 1 and any(path.name not in names for path in others):
        _log.warning("document.copy_missing", document=valid.name, paths=[str(path) for path in others])
    return valid, others


def _repair(folders: CatalogueFolders, outdated: list[tuple[DocumentFile, list[Path]]]) -> None:
    """Write each document again at its paths, as far as the disk allows."""
    if outdated and folders.are_two:
        try:
            folders.admit()
            for directory in folders.directories():
                make_directories(folders.disk, directory.parent, [directory.name])
        except (OSError, StorageError) as error:
            _log.warning("document.not_repaired", documents=len(outdated), error=str(error))
            return
    failed, failure = 0, ""
    for number, (file, paths) in enumerate(outdated):
        content = encode_document(file.name, file.number, file.document)
        try:
            for path in paths:
                publish_together(folders.disk, [path], content, sync_directory=False)
        except DiskFull as error:
            failed, failure = failed + len(outdated) - number, str(error)
            break
        except StorageError as error:
            failed, failure = failed + 1, failure or str(error)
    if failed:
        _log.warning("document.not_repaired", documents=failed, error=failure)
    if len(outdated) > failed:
        _log.info("document.repaired", documents=len(outdated) - failed)


def _remove_moved(folders: CatalogueFolders) -> None:
    """Remove copies from the documents' folder that have been moved to a folder of their own. Raises
    OSError."""
    if not folders.are_two:
        return
    moved = folders.names_in(folders.copies, tolerant=True)
    for name in folders.names_in(folders.directory, tolerant=True):
        suffix = Path(name).suffix
        if suffix == COPY_DELETED_SUFFIX or (suffix == COPY_SUFFIX and name in moved):
            folders.disk.remove(folders.directory / name)
