"""`partibus check`: checks a data folder and reports by queue name. It only reads, and a broker may be using
the folder.

`storage/check.py` reads the files. This module adds the names of queues, and finds catalogue entries that do
not describe a queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from broker.entities.descriptions import NAMESPACE, EntityDescription, namespace_of, subqueues_of
from broker.entities.documents import decode_description, salvage_name
from broker.entities.first_namespace import FIRST_NAMESPACE
from broker.entities.roles import SubqueueTable
from broker.maintenance.identifying import without_identity
from broker.partition.salvage import Salvage
from broker.partition.tables import UnreadableRecord
from storage.check import CATALOGUE_DIRECTORY, Documents, Progress, check_documents, check_log, log_folders
from storage.checkpoint_blocks import read_blocks
from storage.disk import Disk, LocalDisk, read_file
from storage.document_file import LIVE, deleted_stems, document_of, file_name_of, why_copy
from storage.errors import UnknownFormat
from storage.file_store import LOGS_DIRECTORY
from storage.folder_identity import FILE_NAME, DamagedIdentity, WrongFolders, read_identity
from storage.folders import check_together, unnamed
from storage.log import Frame
from storage.storage_version import FILE_NAME as VERSION_FILE
from storage.storage_version import check_version, what_is_wrong
from storage.survey import Finding, LogFolder, Severity, frames, survey_files


class NoDataFolder(Exception):
    """The folder holds nothing to check."""


@dataclass(slots=True)
class Report:
    """The findings of a check."""

    roots: Sequence[Path]
    """The data folders, usually each on its own disk."""
    queues: dict[str, str] = field(default_factory=dict)
    """Names by generation; a damaged entry's name only if it is legible."""
    descriptions: dict[str, EntityDescription] = field(default_factory=dict)
    """The descriptions of queues that are legible, by generation."""
    findings: list[Finding] = field(default_factory=list)
    strays: set[str] = field(default_factory=set)
    """The paths among them of files in the catalogue that are no document's."""
    absent: set[str] = field(default_factory=set)
    """The paths among them of named folders that could not be used."""
    not_named: set[str] = field(default_factory=set)
    """The paths among them of data folders that were not named."""
    progress: Progress = field(default_factory=Progress)

    @property
    def damaged(self) -> bool:
        """Whether anything is damaged, missing or unread, even if it is only one of two copies."""
        return any(finding.severity is not Severity.NOTE for finding in self.findings)

    @property
    def is_unknown_version(self) -> bool:
        """Whether a folder's storage version is newer than this release or cannot be read: `partibus repair`
        refuses such a folder."""
        places = {str(root / VERSION_FILE) for root in self.roots}
        return any(each.severity is Severity.UNUSABLE and each.path in places for each in self.findings)

    def name_of(self, entity: str | None) -> str:
        """An entity's name in reports: the queue's name, or its generation if the name is not known."""
        return self.queues.get(entity or "", entity or "?")

    def shorten(self, path: str) -> str:
        """A path relative to the data folder, if there is only one."""
        inside = Path(path)
        return (
            str(inside.relative_to(self.roots[0]))
            if len(self.roots) == 1 and inside.is_relative_to(self.roots[0])
            else path
        )

    def as_json(self) -> dict[str, Any]:
        """The report for programs; see docs/operations.md."""
        return {
            "folders": list(map(str, self.roots)),
            "damaged": self.damaged,
            "partitions": self.progress.logs_read,
            "documents": self.progress.files,
            "bytes": self.progress.bytes_read,
            "findings": [
                {"queue": self.queues.get(each.entity or ""), **asdict(each), "severity": each.severity.value}
                for each in self.findings
            ],
        }


def check_folders(
    roots: Sequence[Path], progress: Progress | None = None, disk: Disk | None = None
) -> Report:
    """Check everything below the data folders of one broker. Raises NoDataFolder, WrongFolders, OSError."""
    disk = disk or LocalDisk()
    report = Report(roots, progress=progress or Progress())
    roots, absent = data_folders_among(disk, roots)
    lost = without_identity(disk, roots)
    check_together(disk, roots, lost)
    report.absent = {each.path for each in absent}
    identities, report.not_named = _check_identities(disk, roots, lost, [Path(each.path) for each in absent])
    elsewhere = absent + identities
    report.findings += elsewhere
    report.findings += [finding for root in roots for finding in _check_version(disk, root)]
    documents = check_documents(disk, roots, time.sleep, report.progress)
    report.strays = documents.strays
    report.findings += [
        # the next start writes the name of the first namespace again
        replace(each, severity=Severity.SPARE) if each.entity == FIRST_NAMESPACE else each
        for each in documents.findings
        if not elsewhere
        or Path(each.path).name
        in disk.names(Path(each.path).parent)  # otherwise a folder that was not read may hold it
    ]
    # before the logs are listed: those of a deleted queue are removed before its file is
    names = _names_in_catalogues(disk, roots)
    described = report.descriptions = _read_descriptions(disk, report, documents)
    folders = [folder for root in roots for folder in log_folders(disk, root, report.findings)]
    report.progress.logs = len(folders)
    for folder in folders:
        found = check_log(disk, folder, time.sleep, report.progress)
        if all(finding.severity is not Severity.UNUSABLE for finding in found):
            found += _messages_missing(disk, folder, subqueues_of(described.get(folder.entity)))
        report.findings += found
    if not elsewhere:  # otherwise a folder that was not read may hold its logs
        _find_copies(report, names, {folder.entity for folder in folders})
    names = _names_in_catalogues(disk, roots)
    report.findings += _without_entry(report, folders, described, names)
    return report


def _check_identities(
    disk: Disk, roots: Sequence[Path], lost: Sequence[Path], absent: Sequence[Path]
) -> tuple[list[Finding], set[str]]:
    """Find data folders of the same broker that were not named, and damage to the files that list its data
    folders. The set has the paths of the former.

    `lost` are the folders without this file, and `absent` the named folders that `data_folders_among` could
    not use.
    """
    named = {path.absolute() for path in absent}
    found = [
        Finding(
            Severity.UNUSABLE,
            None,
            None,
            str(path / FILE_NAME),
            0,
            0,
            f"the file that identifies this data folder is {'missing' if path in lost else 'damaged'}; "
            "`partibus repair` says whether it can write it again",
        )
        for path in roots
        if path in lost or _has_damaged_identity(disk, path)
    ]
    if found:
        return found, set()
    why = (
        "this data folder of the broker was not named, so nothing in it was checked: name "
        "it with --data-dir as well"
    )
    try:
        paths = [str(path) for path in unnamed(disk, roots) if path.absolute() not in named]
    except WrongFolders as error:
        return [Finding(Severity.UNUSABLE, None, None, str(roots[0] / FILE_NAME), 0, 0, str(error))], set()
    return [Finding(Severity.UNREAD, None, None, path, 0, 0, why) for path in paths], set(paths)


def _check_version(disk: Disk, root: Path) -> Iterator[Finding]:
    """Find out whether a data folder states its storage version, and one that this release knows."""
    path = root / VERSION_FILE
    try:
        check_version(disk, root)
        why = what_is_wrong(disk, root)
        # Builds before version 3 wrote no such file.
        severity = Severity.SPARE if VERSION_FILE in disk.names(root) else Severity.NOTE
    except UnknownFormat as error:
        why, severity = str(error), Severity.UNUSABLE
    except IsADirectoryError:
        why = "it is a folder where a file belongs: move it away, and the next start writes the file"
        severity = Severity.UNUSABLE
    except OSError as error:
        why, severity = f"it cannot be read: {error.strerror}", Severity.UNUSABLE
    if why is not None:
        yield Finding(severity, None, None, str(path), 0, 0, why)


def _has_damaged_identity(disk: Disk, path: Path) -> bool:
    try:
        read_identity(disk, path)
    except (DamagedIdentity, OSError):
        return True
    except WrongFolders:
        return False
    return False


def _messages_missing(disk: Disk, folder: LogFolder, subqueues: SubqueueTable) -> list[Finding]:
    """Find out whether messages are missing before the first segment of a log that is otherwise whole.

    The extent would show it, unless the extent is missing too or has been made anew. If the checkpoint refers
    to such messages, the log is read a second time to see whether they have been settled since, as they most
    likely have.
    """
    try:
        survey = survey_files(disk, folder)
        if not survey.segments or survey.start == 0:
            return []
        salvage = Salvage(folder.partition, subqueues)
        salvage.begin(
            read_blocks(disk, folder.directory, survey.checkpoints), survey.start, is_start_known=False
        )
        if not salvage.refers_below(survey.start):
            return []
        for each in frames(disk, survey):
            if isinstance(each, Frame):
                salvage.frame(each)
        salvage.finish()
    except (OSError, UnreadableRecord):
        return []
    why = (
        f"the first segments are missing: the log begins at position {survey.start}, and messages stand "
        "before it"
    )
    return (
        [Finding(Severity.UNUSABLE, folder.entity, folder.partition, str(folder.directory), 0, 0, why)]
        if salvage.gone
        else []
    )


def data_folders_among(disk: Disk, roots: Sequence[Path]) -> tuple[list[Path], list[Finding]]:
    """Split the named folders into data folders, and a finding for each of the others: a disk may have
    failed, or may not be mounted.

    Raises NoDataFolder if no broker has used any of them, OSError if the only one cannot be listed.
    """
    found: list[Path] = []
    reasons: dict[Path, str] = {}
    for root in roots:
        try:
            names = set(disk.names(root))
        except NotADirectoryError:
            reasons[root] = "this is a file, not a data folder"
        except OSError as error:
            if len(roots) == 1:
                raise
            reasons[root] = f"it cannot be listed: {error.strerror}"
        else:
            if {LOGS_DIRECTORY, CATALOGUE_DIRECTORY} & names:
                found.append(root)
            else:
                neither = f"it holds neither {LOGS_DIRECTORY}/ nor {CATALOGUE_DIRECTORY}/"
                reasons[root] = (
                    f"there is no data folder of a broker here ({neither})"
                    if names or root.exists()
                    else "there is no such folder"
                )
    if not found:
        raise NoDataFolder("; ".join(f"{root}: {why}" for root, why in reasons.items()))
    return found, [
        Finding(Severity.UNUSABLE, None, None, str(root), 0, 0, why) for root, why in reasons.items()
    ]


def _read_descriptions(disk: Disk, report: Report, documents: Documents) -> dict[str, EntityDescription]:
    """Read the queues by generation. Adds entries that describe no queue to the report's findings, and names
    to its queues."""
    described: dict[str, EntityDescription] = {}
    for document, content in documents.contents.items():
        if document == FIRST_NAMESPACE:
            continue
        try:
            description = decode_description(content)
            assert document == description.generation
        except Exception as error:
            path = report.roots[0] / CATALOGUE_DIRECTORY / file_name_of(document)
            why = f"its content describes no queue: {error!r}"
            report.findings.append(
                Finding(Severity.UNUSABLE, document, None, str(path), 0, len(content), why)
            )
        else:
            described[document] = description
            report.queues[document] = _name_of(document, description.name)
    for finding in documents.findings:
        if not finding.entity or finding.entity == FIRST_NAMESPACE:
            continue
        if finding.severity is Severity.UNUSABLE and finding.size:
            name = salvage_name(_read(disk, Path(finding.path)))
            if name is not None:
                report.queues.setdefault(finding.entity, _name_of(finding.entity, name))
    return described


def _name_of(generation: str, name: str) -> str:
    """The name of an entity in reports, with its namespace if that is not the first one."""
    namespace = namespace_of(generation)
    return name if namespace == NAMESPACE else f"{name} (namespace {namespace})"


def _read(disk: Disk, path: Path) -> bytes:
    try:
        return read_file(disk, path)
    except OSError:
        return b""


def _names_in_catalogues(disk: Disk, roots: Sequence[Path]) -> set[str]:
    return {name for root in roots for name in disk.names(root / CATALOGUE_DIRECTORY)}


def _find_copies(report: Report, names: Set[str], with_logs: Set[str]) -> None:
    """Find copies of the documents of deleted queues: files under other names. `names` are the catalogue's
    files, `with_logs` the entities that have logs."""
    there = {document_of(Path(each.path).stem) for each in report.findings}
    deleted = set(map(document_of, deleted_stems(names)))
    for number, each in enumerate(report.findings):
        path, entity = Path(each.path), each.entity
        if (
            entity is None
            or each.severity is not Severity.UNUSABLE
            or each.partition is not None
            or path.suffix not in LIVE
            or document_of(path.stem) is not None
        ):
            continue
        why = why_copy(
            entity, has_files=entity in there, is_deleted=entity in deleted, has_logs=entity in with_logs
        )
        if why is not None:
            report.findings[number] = replace(each, severity=Severity.NOTE, why=why)
            report.strays.add(each.path)


def _without_entry(
    report: Report, folders: list[LogFolder], described: dict[str, EntityDescription], names: set[str]
) -> list[Finding]:  # fmt: skip
    """Logs whose entity has no file in the catalogue; `names` are its files."""
    why = (
        "the logs belong to no queue of the catalogue, and nothing says that the queue was deleted: they "
        "are kept, and not served"
    )
    stems = {name.partition(".")[0] for name in names}
    unknown = {folder.entity: folder.directory.parent for folder in folders if folder.entity not in described}
    return [
        Finding(Severity.UNUSABLE, entity, None, str(directory), 0, 0, why)
        for entity, directory in unknown.items()
        if Path(file_name_of(entity)).stem not in stems
    ]
