"""Catalogue recovery: reads all documents at a start, and repairs what a crash or a failing disk has left.

- Each document has two files. Of two whole files, the one with the higher number is valid. The other is
  written again if it is older, damaged or missing. If the disk refuses, the next start or change does it.
- A document without a whole file is `Damaged`: it is reported, and its files stay as they are. So is a whole
  file under another name, if its document has no other. Whether that document is lost, or was deleted and
  this is a copy, is decided by the caller, which knows the logs (`report_copy`).
- Any other file that is no document's (`document_file.why_stray`) does no harm: it is reported and ignored.
- A deletion that was cut short before both files were renamed did not happen: the document still exists.
- Unfinished files (`*.tmp`) are removed.
- The folders are synced before anything that was read takes effect: the previous process may have been killed
  between a change and its sync, and a power cut must not bring back another state (durability rule 3).

With several data folders, either of the two is enough to read everything.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    Misnamed,
    decode_document,
    deleted_stems,
    document_of,
    encode_document,
    stems,
    why_stray,
)
from storage.errors import CorruptRecord, DiskFull, StorageError

_log = structlog.get_logger("catalogue")


@dataclass(slots=True, frozen=True)
class Damaged:
    """A document that cannot be read from a file of its name. Its files are left as they are."""

    name: str
    """The document's name."""
    files: list[Path]
    remains: list[bytes]
    """The contents of its files, as far as they are readable; nothing for another document's content."""
    is_misnamed: bool = False
    """Whether the files hold it whole, under another name, and no file of its own name is there. It may be a
    copy of what was deleted."""


@dataclass(slots=True, frozen=True)
class Broken:
    """A file that cannot be used as a document."""

    path: Path
    data: bytes
    """Its content, as far as it is readable."""
    error: CorruptRecord | OSError

    @property
    def held(self) -> str | None:
        """The document that it holds whole under the wrong name, if it does."""
        return self.error.name if isinstance(self.error, Misnamed) else None

    @property
    def why(self) -> str:
        """What is wrong with it."""
        return self.error.why if isinstance(self.error, CorruptRecord) else self.error.strerror or "?"

    def report(self) -> None:
        """Report that it is damaged or cannot be read."""
        event = "document.damaged" if isinstance(self.error, CorruptRecord) else "document.unreadable"
        _log.error(event, path=str(self.path), why=self.why)


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
    unusable: list[tuple[str, list[Broken]]] = []
    try:
        names = folders.names(tolerant=True)
        for directory in folders.directories():
            for file_name in sorted(folders.names_in(directory, tolerant=True)):
                if file_name.endswith(TEMPORARY_SUFFIX):
                    _remove_unpublished(folders, directory / file_name)
        for stem in stems(names, LIVE):
            present = [path for each in LIVE if (path := folders.path(stem, each)).name in names]
            files = [read_file_of_document(folders, path) for path in present]
            broken = [file for file in files if isinstance(file, Broken)]
            if len(broken) == len(files):
                unusable.append((stem, broken))
                continue
            for each in broken:
                each.report()
            file, others = _choose(folders, stem, names, files)
            found.documents[file.name] = file.document
            found.numbers[file.name] = file.number
            if others:
                outdated.append((file, others))
        _repair(folders, outdated)
        _remove_moved(folders)
        for stem, broken in [*unusable, *_misplaced(folders)]:
            _judge(stem, broken, found)
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
        for stem in deleted_stems(names):
            name = document_of(stem)
            if name is None:
                paths = [folders.path(stem, suffix) for suffix in DELETED if f"{stem}{suffix}" in names]
                files = [read_document(folders, path) for path in paths]
                name = next((file.name for file in files if file is not None), None)
            if name is not None:
                deleted.append(name)
        return deleted
    except OSError as error:
        raise disk_error(error, folders.directory) from error


def read_document(folders: CatalogueFolders, path: Path) -> DocumentFile | None:
    """A file of a document; None if it is damaged, after reporting that. Raises UnknownFormat."""
    file = read_file_of_document(folders, path)
    if isinstance(file, Broken):
        file.report()
        return None
    return file


def read_file_of_document(folders: CatalogueFolders, path: Path) -> DocumentFile | Broken:
    """A file of a document, or what is wrong with it. Reports nothing. Raises UnknownFormat."""
    data = b""
    try:
        data = read_file(folders.disk, path)
        return decode_document(data, path)
    except (CorruptRecord, OSError) as error:
        return Broken(path, data, error)


def _misplaced(folders: CatalogueFolders) -> list[tuple[str, list[Broken]]]:
    """Files that are no document's, by their names, in the folder where those with their suffix are not
    read."""
    found: list[tuple[str, list[Broken]]] = []
    for directory in folders.directories() if folders.are_two else ():
        for name in sorted(folders.names_in(directory, tolerant=True)):
            path = directory / name
            if (
                path.suffix in LIVE
                and document_of(path.stem) is None
                and path != folders.path(path.stem, path.suffix)
            ):
                file = read_file_of_document(folders, path)
                if isinstance(file, Broken):
                    found.append((path.stem, [file]))
    return found


def _judge(stem: str, broken: list[Broken], found: Recovered) -> None:
    """Report files of which none can be used. Adds them to `damaged` if they may be what is left of a
    document."""
    stray = why_stray(stem, [each.held for each in broken], found.documents)
    is_misnamed = stray is None and document_of(stem) is None
    for each in broken:
        if stray is None:
            if not (is_misnamed and each.held):  # it may be a copy, and whoever knows reports it
                each.report()
        else:
            _report_stray(each.path, f"{stray} ({each.why})")
    if stray is not None:
        return
    name = document_of(stem)
    if name is not None:
        remains = [each.data if each.held in (None, name) else b"" for each in broken]
        found.damaged.append(Damaged(name, [each.path for each in broken], remains))
        return
    held = {each.held for each in broken} - found.documents.keys() - {None}
    assert held, "otherwise they are strays"
    for name in sorted(filter(None, held)):
        of_it = [each for each in broken if each.held == name]
        found.damaged.append(
            Damaged(name, [each.path for each in of_it], [each.data for each in of_it], is_misnamed=True)
        )


def report_copy(copy: Damaged, why: str) -> None:
    """Report files that hold a document which was deleted, under other names (`why_copy`)."""
    for path in copy.files:
        _report_stray(path, why)


def _report_stray(path: Path, why: str) -> None:
    _log.warning(
        "document.stray",
        path=str(path),
        why=why,
        advice="Nothing is out of service because of it. `partibus repair --yes`, with the broker stopped, "
        "moves it aside.",
    )


def _remove_unpublished(folders: CatalogueFolders, path: Path) -> None:
    """Remove an unfinished file. Nobody reads it, so a failure does no harm."""
    try:
        folders.disk.remove(path)
    except OSError as error:
        _log.warning("catalogue.not_removed", path=str(path), error=error.strerror)


def _choose(
    folders: CatalogueFolders, stem: str, names: set[str], files: Sequence[DocumentFile | Broken]
) -> tuple[DocumentFile, list[Path]]:
    """The whole file with the highest number, and the paths that lack its content. At least one file is
    whole."""
    paths = [folders.path(stem, suffix) for suffix in LIVE]
    whole = [file for file in files if isinstance(file, DocumentFile)]
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
