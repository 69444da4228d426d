"""Checks a data folder: every frame of every log, every checkpoint, extent and document. Reads only.

It takes no lock, so a broker may be working in the folder, and its files may change during a look: a commit
is half written, a segment is trimmed, an extent is replaced. So a log with findings is surveyed again after a
pause, and only what is found at the same place each time is reported. Real damage stays where it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from storage.disk import Disk
from storage.document_file import (
    COPY_SUFFIX,
    DOCUMENT_SUFFIX,
    Misnamed,
    decode_document,
    document_of,
    file_name_of,
    why_stray,
)
from storage.errors import CorruptRecord, UnknownFormat
from storage.extent import EXTENT_SUFFIX
from storage.file_store import DELETED_SUFFIX, EXTENTS_DIRECTORIES, LOGS_DIRECTORY
from storage.index_witness import damage
from storage.partition_index import PartitionIndex
from storage.survey import Finding, LogFolder, Severity, frames, survey_files

CATALOGUE_DIRECTORY = "catalogue"
LOOKS_MAX = 5
"""How many times a place is looked at before it counts as damaged. While something changes, it is looked at
again."""
PAUSE_S = 0.3
"""The pause between two looks. By then a commit being written is whole, or remains a torn tail."""

_MISSING = "the file is missing"
_PARTITION = re.compile(rf"([0-9a-f]{{4}})(?:{re.escape(EXTENT_SUFFIX)})?")


@dataclass(slots=True)
class Progress:
    """How far a check has come. The check calls `report` after each step."""

    report: Callable[[], None] = lambda: None
    logs: int = 0
    logs_read: int = 0
    bytes_read: int = 0
    files: int = 0
    """How many documents were read."""

    def add(self, size: int) -> None:
        """Count more bytes of frames that were read."""
        self.bytes_read += size
        self.report()


@dataclass(slots=True)
class Documents:
    """The documents of the catalogue, as far as they can be read."""

    contents: dict[str, bytes] = field(default_factory=dict)
    """By the document's name."""
    findings: list[Finding] = field(default_factory=list)
    strays: set[str] = field(default_factory=set)
    """The paths among the findings that are no document's files (`why_stray`). They do no harm."""


def log_folders(disk: Disk, root: Path, findings: list[Finding] | None = None) -> list[LogFolder]:
    """All logs in a data folder, including those that only an extent mentions. Raises OSError if the folder
    of all logs cannot be listed.

    Other folders that cannot be listed are added to `findings`.
    """

    def names_in(directory: Path) -> list[str]:
        try:
            return disk.names(directory)
        except NotADirectoryError:
            problem = Finding(
                Severity.NOTE, None, None, str(directory), 0, 0, "it is a file where only folders belong"
            )
        except OSError as error:
            problem = Finding(
                Severity.UNUSABLE, None, None, str(directory), 0, 0, f"it cannot be listed: {error.strerror}"
            )
        if findings is not None:
            findings.append(problem)
        return []

    logs, extents = root / LOGS_DIRECTORY, root.joinpath(*EXTENTS_DIRECTORIES)
    in_logs = disk.names(logs)
    deleted = {name.removesuffix(DELETED_SUFFIX) for name in in_logs if name.endswith(DELETED_SUFFIX)}
    found: list[LogFolder] = []
    for name in sorted(
        {name for name in in_logs if not name.endswith(DELETED_SUFFIX)} | (set(names_in(extents)) - deleted)
    ):
        names = [*names_in(logs / name), *names_in(extents / name)]
        partitions = sorted({int(match[1], 16) for match in map(_PARTITION.fullmatch, names) if match})
        found += [
            LogFolder(logs / name / f"{partition:04x}", extents, unquote(name), partition)
            for partition in partitions
        ]
    return found


def check_log(
    disk: Disk, folder: LogFolder, pause: Callable[[float], None], progress: Progress
) -> list[Finding]:
    """Read every frame of one log; gives what is damaged, missing or unfinished in it."""
    found = _check_log_once(disk, folder, progress)
    for _ in range(LOOKS_MAX - 1):
        if not found:
            break
        pause(PAUSE_S)
        before, found = set(found), _check_log_once(disk, folder, progress)
        if before == set(found):
            break
        found = [finding for finding in found if finding in before]
    progress.logs_read += 1
    progress.report()
    return found


def _check_log_once(disk: Disk, folder: LogFolder, progress: Progress) -> list[Finding]:
    try:
        survey = survey_files(disk, folder)
        for _ in frames(disk, survey, progress.add):
            pass
    except OSError as error:
        path = error.filename or folder.directory
        return [
            Finding(
                Severity.UNUSABLE,
                folder.entity,
                folder.partition,
                str(path),
                0,
                0,
                f"it cannot be read: {error.strerror}",
            )
        ]
    return survey.findings


def check_documents(
    disk: Disk, roots: Sequence[Path], pause: Callable[[float], None], progress: Progress
) -> Documents:
    """Read both files of every document of the catalogue, in whichever data folders they are. Raises
    OSError."""
    found = _check_documents_once(disk, roots, progress)
    for _ in range(LOOKS_MAX - 1):
        if not found.findings:
            break
        pause(PAUSE_S)
        before, found = set(found.findings), _check_documents_once(disk, roots, progress)
        if before == set(found.findings):
            break
        found.findings = [finding for finding in found.findings if finding in before]
    return found


def _check_documents_once(disk: Disk, roots: Sequence[Path], progress: Progress) -> Documents:
    directories = [root / CATALOGUE_DIRECTORY for root in roots]
    documents = Documents()
    places: dict[str, list[Path]] = {suffix: [] for suffix in (DOCUMENT_SUFFIX, COPY_SUFFIX)}
    """The folders that hold files with each suffix."""
    stems: dict[str, dict[str, Path]] = {}
    for directory in directories:
        for name in disk.names(directory):
            stem, suffix = Path(name).stem, Path(name).suffix
            if suffix in places:
                stems.setdefault(stem, {})[suffix] = directory / name
                if places[suffix][-1:] != [directory]:
                    places[suffix].append(directory)
    misnamed: dict[str, str] = {}
    """The documents that files with other names hold, by the paths of these files."""
    for stem, paths in sorted(stems.items()):
        for suffix, holding in places.items():
            paths.setdefault(suffix, (holding or directories)[-1] / f"{stem}{suffix}")
        _check_document(disk, stem, paths, documents, misnamed, progress)
    _find_strays(documents, misnamed)
    for directory in directories:
        for path, offset, why in PartitionIndex(directory, disk).damage():
            documents.findings.append(Finding(Severity.SPARE, None, None, str(path), offset, 0, why))
    for root in roots:
        for path, offset, why in damage(disk, root):
            documents.findings.append(Finding(Severity.SPARE, None, None, str(path), offset, 0, why))
    return documents


def _check_document(
    disk: Disk,
    stem: str,
    paths: Mapping[str, Path],
    documents: Documents,
    misnamed: dict[str, str],
    progress: Progress,
) -> None:
    newest = -1
    entity, is_old = document_of(stem), False
    broken: list[tuple[Path, int, int, str]] = []
    for path in map(paths.__getitem__, (DOCUMENT_SUFFIX, COPY_SUFFIX)):
        size = 0
        try:
            fd = disk.open_read(path)
            try:
                size = disk.size(fd)
                data = disk.read(fd, size, 0)
            finally:
                disk.close(fd)
            progress.files += 1
            copy = decode_document(data, path)
        except CorruptRecord as error:
            broken.append((path, error.position, size, error.why))
            if isinstance(error, Misnamed):
                misnamed[str(path)] = error.name
        except UnknownFormat as error:
            broken.append((path, 0, size, str(error)))
        except FileNotFoundError:
            broken.append((path, 0, 0, _MISSING))
        except OSError as error:
            broken.append((path, 0, size, f"it cannot be read: {error.strerror}"))
        else:
            entity, is_old = copy.name, is_old or copy.version == 1
            if copy.number > newest:
                newest, documents.contents[copy.name] = copy.number, copy.document
    for path, offset, size, why in broken:
        if is_old and not size:
            continue  # written by a version that kept only one file of each document
        severity = Severity.SPARE if newest >= 0 else Severity.UNUSABLE
        documents.findings.append(Finding(severity, entity, None, str(path), offset, size, why))
    progress.report()


def _find_strays(documents: Documents, misnamed: Mapping[str, str]) -> None:
    """Find the files that are no document's, and report nothing as missing beside them."""
    by_stem: dict[str, list[Finding]] = {}
    for finding in documents.findings:
        by_stem.setdefault(Path(finding.path).stem, []).append(finding)
    documents.findings.clear()
    for stem, findings in by_stem.items():
        there = [finding for finding in findings if finding.why != _MISSING]
        named = [misnamed.get(finding.path) for finding in there]
        is_lost = all(finding.severity is Severity.UNUSABLE for finding in findings)
        why = why_stray(stem, named, documents.contents) if is_lost and there else None
        if why is not None:
            documents.strays.update(finding.path for finding in there)
            documents.findings += [
                replace(finding, severity=Severity.NOTE, why=f"{why} ({finding.why})") for finding in there
            ]
        elif is_lost and document_of(stem) is None and any(named):
            documents.findings += [
                finding
                if name is None
                else replace(
                    finding,
                    entity=name,
                    why=f"it is the document {name!r} under another name, and nothing else is left of that: "
                    f"rename it to {file_name_of(name)!r}",
                )
                for finding, name in zip(there, named, strict=True)
            ]
        else:
            documents.findings += findings
