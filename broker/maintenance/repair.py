"""`partibus repair`: repairs a data folder while no broker uses it. Nothing is deleted: files that are
replaced move to `damaged/`.

A damaged log is *rebuilt*: its legible messages are written to a new log beside the old one, with their
sequence numbers, delivery counts and properties, and then the two change places. An older release could not
read the new log, so the data folder states this one's storage version first.
A damaged checkpoint, extent or document with an intact copy, or file `version`, is *moved* to `damaged/`, and
the broker makes a new one. So is a file in the catalogue that is no document's, which needs no new one.
Two damaged files of one document are *merged* if their good parts make a whole one. A damaged or missing
file `folder` is *written again* if the other data folders and the logs in this one leave no doubt which
folder it is.

    damaged/<entity>-<partition>-<n>/
        report.json     what is done, and which sequence numbers are gone; written before the exchange
        log/            the old log
        <…>.extent      its extent
        rebuilt/        the new log while it is written; moved to its place and then removed
    damaged/<file name>     a file that was moved

An interrupted repair does no harm. Until the report exists, the old log is in its place, and the next repair
starts over. After that, the next repair finishes the exchange. A broker that starts in between finds that log
and extent disagree, and leaves that partition alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from broker.entities.descriptions import EntityDescription, subqueues_of
from broker.maintenance.check import Report, check_folders, data_folders_among
from broker.maintenance.identifying import Identification, identify, without_identity
from broker.maintenance.locking import FolderLocks
from broker.partition import records
from broker.partition.doubts import Older
from broker.partition.records import Counters
from broker.partition.salvage import Range, Salvage
from broker.partition.snapshot import Snapshot
from broker.partition.tables import UnreadableRecord
from storage.check import CATALOGUE_DIRECTORY, Progress, log_folders
from storage.checkpoint_blocks import read_blocks
from storage.disk import (
    Disk,
    LocalDisk,
    make_directories,
    publish,
    publish_together,
    read_file,
)
from storage.document_file import merge_files
from storage.errors import StorageError
from storage.extent import EXTENT_SUFFIX
from storage.file_store import EXTENTS_DIRECTORIES, LOGS_DIRECTORY, FileLogStore
from storage.folder_identity import FILE_NAME
from storage.folder_survey import FolderSurvey, survey_folders, write_identity
from storage.index_witness import WITNESS_NAME
from storage.log import Frame
from storage.partition_index import COPY_NAME, INDEX_NAME
from storage.storage_version import FILE_NAME as VERSION_FILE
from storage.storage_version import STORAGE_VERSION, check_version, note_version, what_is_wrong
from storage.survey import Finding, LogFolder, Severity, Survey, frames, survey_files

DAMAGED_DIRECTORY = "damaged"
REPORT_NAME = "report.json"
REBUILT_DIRECTORY = "rebuilt"
OLD_LOG = "log"
COMMIT_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class Rebuilding:
    """What a repair does with one damaged log."""

    entity: str
    partition: int
    queue: str
    why: list[str]
    """What is wrong with the log."""
    gone: list[Range]
    """Sequence numbers whose messages are lost."""
    kept: int
    """The number of messages that remain."""
    commits_gone: int | None
    """The number of commits that cannot be read; None if it is not known. Settlements in them are
    forgotten."""
    next_sequence_number: int
    older: Older | None = None
    """What the commits that cannot be read may have changed besides; None if nothing."""
    moved_to: str = ""
    """The folder with the old log, once the log was rebuilt."""
    refused: str = ""
    """Why the log cannot be rebuilt; empty if it can."""

    def as_json(self) -> dict[str, Any]:
        """For programs, and for `report.json`."""
        return {
            "queue": self.queue,
            "entity": self.entity,
            "partition": self.partition,
            "why": self.why,
            "gone": [{"first": each.first, "last": each.last} for each in self.gone],
            "kept": self.kept,
            "commits_gone": self.commits_gone,
            "next_sequence_number": self.next_sequence_number,
            "older": None if self.older is None else self.older.as_json(),
            "moved_to": self.moved_to or None,
            "refused": self.refused or None,
        }


@dataclass(slots=True)
class Plan:
    """Everything that a repair does, or would do."""

    report: Report
    logs: list[Rebuilding] = field(default_factory=list)
    moved: list[Finding] = field(default_factory=list)
    """Files to move to `damaged/`, because an intact copy exists or because they are no document's."""
    merged: list[tuple[list[Path], bytes]] = field(default_factory=list)
    """Documents that can be restored by merging the good parts of their two files: the files, and the content
    for both."""
    hopeless: list[Finding] = field(default_factory=list)
    """Findings that this command cannot repair."""
    identities: list[Identification] = field(default_factory=list)
    """Files `folder` that can be written again."""
    finished: list[str] = field(default_factory=list)
    """Folders of earlier, interrupted repairs that this repair finishes."""
    done: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to repair."""
        return not (self.can_help or self.logs or self.hopeless)

    @property
    def can_help(self) -> bool:
        """Whether anything can be repaired."""
        done = self.moved or self.merged or self.identities or self.finished
        return bool(done or any(not log.refused for log in self.logs))

    @property
    def is_complete(self) -> bool:
        """Whether everything can be repaired."""
        return not self.hopeless and not any(log.refused for log in self.logs)

    def as_json(self) -> dict[str, Any]:
        """The plan for programs; see docs/operations.md."""
        return {
            "folders": list(map(str, self.report.roots)),
            "done": self.done,
            "finished": self.finished,
            "logs": [log.as_json() for log in self.logs],
            "moved": [each.path for each in self.moved],
            "merged": [str(path) for paths, _ in self.merged for path in paths],
            "identities": [{"path": str(each.path), "number": each.number} for each in self.identities],
            "not_repaired": [{"path": each.path, "why": each.why} for each in self.hopeless],
        }


class Repair:
    """One repair of the data folders of one broker. Holds their locks from `open` to `close`."""

    def __init__(self, roots: Sequence[Path], disk: Disk | None = None) -> None:
        self._named = self._roots = roots
        self._disk: Disk = disk or LocalDisk()
        self._locks = FolderLocks(self._disk)
        self._folders: dict[tuple[str, int], LogFolder] = {}
        self._survey = FolderSurvey()
        self._described: Mapping[str, EntityDescription] = {}

    def open(self) -> None:
        """Take the locks of all folders. Raises NoDataFolder, InUse, UnknownFormat, OSError."""
        self._roots, _ = data_folders_among(self._disk, self._named)
        for root in self._roots:
            # The check reports a folder in the place of this file. Each file states its own version as well.
            with contextlib.suppress(IsADirectoryError):
                check_version(self._disk, root)
        self._locks.take(self._roots)

    def close(self) -> None:
        """Release the locks."""
        self._locks.release()

    # --- the plan -------------------------------------------------------------------------------------------

    def plan(self, progress: Progress | None = None) -> Plan:
        """Check the folder and plan its repair; changes nothing. Raises NoDataFolder, OSError."""
        plan = Plan(check_folders(self._named, progress, self._disk))
        plan.finished = [str(folder) for folder in self._unfinished()]
        if plan.finished:
            return plan  # the findings there come from an unfinished exchange
        folders = [folder for root in self._roots for folder in log_folders(self._disk, root)]
        self._folders = {(each.entity, each.partition): each for each in folders}
        self._described = plan.report.descriptions
        by_log: dict[tuple[str, int], list[Finding]] = {}
        for finding in plan.report.findings:
            if finding.path in plan.report.strays:
                plan.moved.append(finding)
            elif finding.severity is Severity.NOTE:
                continue
            elif finding.partition is not None and finding.entity is not None:
                by_log.setdefault((finding.entity, finding.partition), []).append(finding)
            elif finding.severity in (Severity.UNUSABLE, Severity.UNREAD):
                plan.hopeless.append(finding)
            else:
                plan.moved.append(finding)
        self._plan_merges(plan)
        self._plan_identities(plan)
        for (entity, partition), findings in by_log.items():
            if any(finding.severity is Severity.UNUSABLE for finding in findings):
                plan.logs.append(self._plan_log(plan.report, self._folders[entity, partition], findings))
            else:
                plan.moved += _files_to_move(findings)
        plan.moved = [
            each for each in plan.moved if Path(each.path).name in self._disk.names(Path(each.path).parent)
        ]
        return plan

    def _plan_merges(self, plan: Plan) -> None:
        """Move documents that can be merged from the hopeless findings to the merges."""
        damaged: dict[str, list[Path]] = {}
        for finding in plan.hopeless:
            if finding.size and finding.entity is not None:
                damaged.setdefault(Path(finding.path).stem, []).append(Path(finding.path))
        for paths in damaged.values():
            merged = None
            if len(paths) == 2:
                with contextlib.suppress(OSError):  # the check has reported that they cannot be read
                    merged = merge_files([read_file(self._disk, path) for path in paths], paths[0])
            if merged is not None:
                plan.merged.append((paths, merged))
                plan.hopeless = [finding for finding in plan.hopeless if Path(finding.path) not in paths]

    def _plan_identities(self, plan: Plan) -> None:
        """Move files `folder` that are damaged or missing and can be written again from the hopeless findings
        to the identities."""
        if not any(Path(each.path).name == FILE_NAME for each in plan.hopeless):
            return
        self._survey = survey_folders(self._disk, self._roots)
        self._survey.damaged += without_identity(self._disk, self._roots)
        plan.identities = identify(self._disk, self._survey, plan.report.descriptions)
        known = {str(each.path / FILE_NAME) for each in plan.identities}
        plan.hopeless = [finding for finding in plan.hopeless if finding.path not in known]

    def _plan_log(self, report: Report, folder: LogFolder, findings: Sequence[Finding]) -> Rebuilding:
        why = [f"{Path(each.path).name}, byte {each.offset}: {each.why}" for each in findings]
        planned = Rebuilding(
            folder.entity, folder.partition, report.name_of(folder.entity), why, [], 0, None, 0
        )
        try:
            survey, salvage, commits_gone = self._salvage(folder)
        except UnreadableRecord as error:
            planned.refused = f"it holds records that this release cannot read: {error}"
            return planned
        except OSError as error:
            planned.refused = f"it cannot be read: {error.strerror}"
            return planned
        if survey.is_of_later_release:
            planned.refused = "a later release wrote it"
        planned.gone, planned.kept, planned.commits_gone = salvage.gone, salvage.messages.count, commits_gone
        planned.next_sequence_number, planned.older = salvage.messages.next_number, salvage.older
        return planned

    def _salvage(self, folder: LogFolder) -> tuple[Survey, Salvage, int | None]:
        """Read what is left of a log. The number is the count of missing commits, None if it is not known.
        Raises UnreadableRecord, OSError."""
        survey = survey_files(self._disk, folder)
        salvage = Salvage(folder.partition, subqueues_of(self._described.get(folder.entity)))
        checkpoints = read_blocks(self._disk, folder.directory, survey.checkpoints)
        salvage.begin(checkpoints, survey.start, is_start_known=survey.extent is not None)
        expected: int | None = 0 if survey.start == 0 else None
        missing: int | None = 0 if survey.start == 0 or salvage.since is not None else None
        for each in frames(self._disk, survey):
            if isinstance(each, Frame):
                salvage.frame(each)
                header = survey.codec.parse_header(each.data[:64]) if survey.codec else None
                if header is not None:
                    if missing is not None and expected is not None:
                        missing += header.sequence - expected
                    expected = header.sequence + 1
            else:
                salvage.gap(each)
                if each.end is None or expected is None:
                    missing = None
        extent = survey.extent
        durable = extent.durable if extent is not None else 0
        salvage.finish(durable, self._numbers_before(folder), is_end_known=extent is not None)
        return survey, salvage, missing if extent is not None else None

    def _numbers_before(self, folder: LogFolder) -> int:
        """The next sequence number that earlier repairs of this log have recorded; 0 if there were none."""
        reports = map(self._read_report, self._earlier(folder))
        return max((int(report.get("next_sequence_number", 0)) for report in reports), default=0)

    def _earlier(self, folder: LogFolder) -> list[Path]:
        stem = _stem(folder)
        damaged = _root_of(folder) / DAMAGED_DIRECTORY
        return [
            damaged / name for name in sorted(self._disk.names(damaged)) if name.rpartition("-")[0] == stem
        ]

    def _read_report(self, directory: Path) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(read_file(self._disk, directory / REPORT_NAME))
        except (OSError, ValueError):
            return {}
        return found

    # --- carrying it out ------------------------------------------------------------------------------------

    def carry_out(self, plan: Plan) -> None:
        """Carry out the plan. Raises StorageError or OSError; everything done before that stays, and the rest
        is untouched."""
        self._remove_copies()
        for name in plan.finished:
            self._state_version(_data_folder_of(Path(name)))
            self._exchange(Path(name), self._read_report(Path(name)))
        for finding in plan.moved:  # before a rebuilt log needs a new file `version`
            self._move_to_damaged(Path(finding.path))
        for log in plan.logs:
            if not log.refused:
                self._rebuild(log)
        for paths, content in plan.merged:
            for path in paths:
                self._move_to_damaged(path)
            for path in paths:  # the files may be in different folders
                publish_together(self._disk, [path], [content])
        for each in plan.identities:
            if FILE_NAME in self._disk.names(each.path):
                self._move_to_damaged(each.path / FILE_NAME)
            write_identity(self._disk, each.path, self._survey, each.number)
        plan.done = True

    def _move_to_damaged(self, path: Path) -> None:
        root = next(root for root in self._roots if path.is_relative_to(root))
        damaged = root / DAMAGED_DIRECTORY
        make_directories(self._disk, root, [DAMAGED_DIRECTORY])
        taken = set(self._disk.names(damaged))
        name = next(
            name for number in range(len(taken) + 1) if (name := f"{path.name}-{number}") not in taken
        )
        self._disk.rename(path, damaged / name)
        self._disk.sync_directory(damaged)
        self._disk.sync_directory(path.parent)

    def _state_version(self, root: Path) -> None:
        """Have a data folder state the storage version of this release, durably, before it gets a log that an
        older release would take for damaged: neither its broker nor its repair may touch that log."""
        with contextlib.suppress(IsADirectoryError):  # it is in the plan, and keeps all brokers out
            if check_version(self._disk, root) == STORAGE_VERSION:
                return
            if VERSION_FILE in self._disk.names(root) and what_is_wrong(self._disk, root) is not None:
                self._move_to_damaged(root / VERSION_FILE)
            note_version(self._disk, root)

    def _rebuild(self, log: Rebuilding) -> None:
        folder = self._folders[log.entity, log.partition]
        number = 1 + max((int(each.name.rpartition("-")[2]) for each in self._earlier(folder)), default=0)
        directory = _root_of(folder) / DAMAGED_DIRECTORY / f"{_stem(folder)}-{number}"
        make_directories(self._disk, _root_of(folder), [DAMAGED_DIRECTORY, directory.name, REBUILT_DIRECTORY])
        try:
            asyncio.run(self._write_log(folder, directory / REBUILT_DIRECTORY))
            self._state_version(_root_of(folder))
        except BaseException:
            self._disk.remove_tree(directory)  # it holds only the unfinished copy
            raise
        log.moved_to = str(directory)
        self._disk.close(
            publish(self._disk, directory / REPORT_NAME, [json.dumps(log.as_json(), indent=1).encode()])
        )
        self._exchange(directory, log.as_json())

    def _move_index(self, changed: Path) -> None:
        """Move the index of partitions, which describes the old logs. Without it the next start opens all
        partitions and counts again.

        If the index is in a folder that was not named, only the witness in the folder `changed` can tell the
        broker that the index is out of date.
        """
        for catalogue in [root / CATALOGUE_DIRECTORY for root in self._roots]:
            for name in sorted({INDEX_NAME, COPY_NAME} & set(self._disk.names(catalogue))):
                self._move_to_damaged(catalogue / name)
        if WITNESS_NAME in self._disk.names(changed):
            self._move_to_damaged(changed / WITNESS_NAME)

    async def _write_log(self, folder: LogFolder, root: Path) -> None:
        """Write what can be saved of a log to a new log below `root`, durably."""
        survey, salvage, _ = self._salvage(folder)
        messages = salvage.messages
        store = FileLogStore(root, self._disk, fsync="never", reserve_bytes=0)
        try:
            log = store.log(folder.entity, folder.partition)
            await log.acquire(survey.epoch + 1)
            commit = log.begin()
            counters = Counters(messages.next_number, messages.latest_enqueued_ms)
            commit.add(records.COUNTERS, [records.encode_counters(counters)], records.VERSION)
            await log.append(commit)
            commit = log.begin()
            for record in messages.states.as_records():
                commit.add(record.kind, [record.body], record.version)
                if commit.bytes >= COMMIT_BYTES_MAX:
                    await log.append(commit)
                    commit = log.begin()
            if commit:
                await log.append(commit)
            copied = 0
            for frame in frames(self._disk, survey_files(self._disk, folder)):
                candidates = deque(messages.living_in(frame) if isinstance(frame, Frame) else ())
                while candidates:
                    commit = log.begin()
                    relocated = messages.relocate(candidates, commit, COMMIT_BYTES_MAX)
                    if relocated is None:
                        break
                    await log.append(commit)
                    messages.apply_relocated(commit.start, relocated)
                    copied += len(relocated.sequence_numbers)
            if copied != messages.count:
                raise StorageError(
                    f"{folder.directory}: {messages.count - copied} messages could be read once and "
                    "not a second time"
                )
            taking = Snapshot(messages).take(log.checkpoint_base)
            deque(taking.steps(), maxlen=0)
            await log.save_checkpoint(taking.checkpoint(log.end))
            await log.close()
        finally:
            await store.close()

    def _exchange(self, directory: Path, report: dict[str, Any]) -> None:
        """Put the new log in the place of the old one. The process may end after any step, so each step first
        checks whether it is already done."""
        disk, root, entity = self._disk, _data_folder_of(directory), _directory_name(report["entity"])
        self._move_index(root)
        partition = f"{report['partition']:04x}"
        rebuilt = directory / REBUILT_DIRECTORY
        for parents, name, old in (
            ((LOGS_DIRECTORY, entity), partition, OLD_LOG),
            ((*EXTENTS_DIRECTORIES, entity), f"{partition}{EXTENT_SUFFIX}", f"{partition}{EXTENT_SUFFIX}"),
        ):
            source, target = rebuilt.joinpath(*parents) / name, root.joinpath(*parents) / name
            if name not in disk.names(source.parent):
                continue  # already in its place
            make_directories(disk, root, parents)
            if name in disk.names(target.parent) and old not in disk.names(directory):
                disk.rename(target, directory / old)
                disk.sync_directory(directory)
                disk.sync_directory(target.parent)
            disk.rename(source, target)
            disk.sync_directory(target.parent)
            disk.sync_directory(source.parent)
        disk.remove_tree(rebuilt)
        disk.sync_directory(directory)

    def _unfinished(self) -> list[Path]:
        """Repairs that were interrupted after their report was written."""
        return [directory for directory, names in self._with_copies() if REPORT_NAME in names]

    def _remove_copies(self) -> None:
        """Remove the copies of repairs that were interrupted before their report was written: the old logs
        are in place."""
        for directory, names in self._with_copies():
            if REPORT_NAME not in names:
                self._disk.remove_tree(directory / REBUILT_DIRECTORY)

    def _with_copies(self) -> list[tuple[Path, list[str]]]:
        damaged = [root / DAMAGED_DIRECTORY for root in self._roots]
        folders = [
            each / name for each in damaged for name in sorted(self._disk.names(each)) if "." not in name
        ]
        found: list[tuple[Path, list[str]]] = []
        for folder in folders:
            with contextlib.suppress(NotADirectoryError):  # a file that was moved, such as `folder`
                found.append((folder, self._disk.names(folder)))
        return [(folder, names) for folder, names in found if REBUILT_DIRECTORY in names]


def _files_to_move(findings: Sequence[Finding]) -> list[Finding]:
    """The damaged files, each once. An extent is included only if neither slot is whole, because the broker
    mends a single slot by itself."""
    slots = [finding for finding in findings if finding.path.endswith(EXTENT_SUFFIX)]
    others = [finding for finding in findings if finding not in slots]
    both = slots[:1] if len(slots) == 2 else []
    return list({finding.path: finding for finding in [*both, *others]}.values())


def _root_of(folder: LogFolder) -> Path:
    """The data folder that contains a log."""
    return folder.directory.parents[2]


def _data_folder_of(directory: Path) -> Path:
    """The data folder that contains `damaged/<entity>-<partition>-<n>`."""
    return directory.parents[1]


def _stem(folder: LogFolder) -> str:
    return f"{_directory_name(folder.entity)}-{folder.partition:04x}"


def _directory_name(entity: str) -> str:
    return quote(entity, safe="")
