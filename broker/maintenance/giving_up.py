"""`partibus repair --give-up`: puts an empty data folder in the place of one that is lost for good, while no
broker uses the others.

The broker never does this by itself: a lost folder may be a disk that is not mounted. The plan lists every
partition that may have lost messages, and how many, as far as the index of partitions knows.

The new folder gets the number of the lost one and an identifier of its own, which all other folders record,
so that a broker refuses the lost folder if it turns up again. It also gets a log for each partition that may
have been used, so that no sequence number comes back: nobody knows which ones the lost logs have used, so the
new logs begin far above them (`first_number`).

    1  <new folder>/giving-up      the new identifier, while the folder is being made
    2  <new folder>/logs, and <new folder>/damaged/given-up-<number>.json: what was given up
    3  <other folders>/folder      the new identifier in the place of the lost folder's
    4  <new folder>/folder         its identity, so no broker uses half a folder
    5  <new folder>/giving-up      removed, by the next start at the latest

Each step is durable before the next one begins. An attempt that was interrupted before step 3 is begun anew,
and one that was interrupted later is finished.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.base.clock import SystemClock
from broker.entities.descriptions import EntityDescription
from broker.entities.documents import decode_description
from broker.entities.first_namespace import FIRST_NAMESPACE
from broker.identifiers import PARTITION_SHIFT
from broker.maintenance.check import NoDataFolder, data_folders_among
from broker.maintenance.locking import FolderLocks
from broker.partition import records
from broker.partition.records import Counters
from broker.partition.summary import is_readable, survey
from storage.check import CATALOGUE_DIRECTORY, Progress, check_documents
from storage.disk import Disk, LocalDisk, close_quietly, make_directories, make_root, publish, read_file
from storage.file_store import LOGS_DIRECTORY, FileLogStore
from storage.folder_identity import FILE_NAME, UNFINISHED_NAME, WrongFolders
from storage.folder_survey import FolderSurvey, replace_folder, survey_folders
from storage.partition_index import PartitionIndex
from storage.spread_store import place
from storage.survey import Severity

REPORT_DIRECTORY = "damaged"
NUMBERS_PER_SECOND = 1 << 15
"""More sequence numbers than a partition uses in a second, on average. A new log begins with as many as the
lost one could have used since 1970."""


class CannotGiveUp(WrongFolders):
    """The folder cannot be given up. The text says why, and what to do."""


@dataclass(slots=True, frozen=True)
class LostPartition:
    """A partition of the lost folder that may have held messages."""

    queue: str
    entity: str
    partition: int
    messages: int | None
    """How many messages it held; None if nobody knows."""
    last_known: int | None
    """How many it held when it was last closed or at rest, if `messages` is None; None if that is not known
    either."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "queue": self.queue,
            "entity": self.entity,
            "partition": self.partition,
            "messages": self.messages,
            "last_known": self.last_known,
        }


@dataclass(slots=True)
class GivenUp:
    """What giving up a folder costs."""

    lost: Path
    """Where the folder was."""
    number: int
    place: Path
    """The folder that takes its place."""
    partitions: list[LostPartition] = field(default_factory=list)
    """The partitions that have lost messages, or may have."""
    used: list[tuple[str, int]] = field(default_factory=list)
    """Entity and number of each partition that needs a log, because it may have used sequence numbers."""
    done: bool = False

    @property
    def messages(self) -> int:
        """How many messages are lost at least, as far as it is known."""
        return sum(each.messages or 0 for each in self.partitions)

    @property
    def uncertain(self) -> int:
        """The number of partitions of which nobody knows what they held."""
        return sum(each.messages is None for each in self.partitions)

    def as_json(self) -> dict[str, Any]:
        """The plan for programs, and the report; see docs/operations.md."""
        return {
            "given_up": str(self.lost),
            "number": self.number,
            "place": str(self.place),
            "done": self.done,
            "messages": self.messages,
            "uncertain_partitions": self.uncertain,
            "partitions": [each.as_json() for each in self.partitions],
        }


class GivingUp:
    """Gives up one data folder of a broker. Holds the locks of the others from `open` to `close`."""

    def __init__(self, roots: Sequence[Path], lost: Path, disk: Disk | None = None) -> None:
        """`roots`: the other folders, and an empty one that takes the place of `lost`."""
        self._roots, self._lost = roots, lost
        self._disk: Disk = disk or LocalDisk()
        self._locks = FolderLocks(self._disk)
        self._folders: FolderSurvey | None = None

    def open(self) -> None:
        """Lock the folders that are there. Raises InUse, WrongFolders, OSError."""
        self._folders = survey_folders(self._disk, self._roots)
        self._locks.take(list(self._folders.named.values()))

    def close(self) -> None:
        """Release the locks."""
        self._locks.release()

    # --- the plan -------------------------------------------------------------------------------------------

    def plan(self) -> GivenUp:
        """Say what is lost. Changes nothing. Raises CannotGiveUp, DiskHangs, OSError."""
        folders = self._folders
        assert folders is not None, "it is open"
        if (carried_out := self._carried_out(folders)) is not None:
            return carried_out
        number = self._number(folders)
        plan = GivenUp(self._lost, number, self._place(folders))
        described = self._descriptions(folders)
        index = self._index(folders, number)
        for generation, description in sorted(described.items(), key=lambda each: each[1].name):
            rows = {} if index is None else {each: rest for each, *rest in index.partitions(generation)}
            for partition in range(description.partitions):
                if place(generation, partition, description.folders) != number:
                    continue
                if index is not None and partition not in rows:
                    continue  # it was never opened
                plan.used.append((generation, partition))
                held, last_known = _held(rows.get(partition), description.subqueues.end)
                if held != 0:
                    lost = LostPartition(description.name, generation, partition, held, last_known)
                    plan.partitions.append(lost)
        return plan

    def _carried_out(self, folders: FolderSurvey) -> GivenUp | None:
        """What an earlier attempt has given up, if it got as far as writing the new folder's identity; None
        if there was none. If the new folder is where the lost one was, this is known only until the file
        `giving-up` is removed."""
        lost = self._lost.absolute()
        was = {each.number for each in folders.given_up if each.path.absolute() == lost}
        for number in was & folders.named.keys():
            place = folders.named[number]
            if place.absolute() != lost or UNFINISHED_NAME in self._disk.names(place):
                partitions = self._reported(place, number)
                return GivenUp(self._lost, number, place, partitions, done=True)
        return None

    def _reported(self, place: Path, number: int) -> list[LostPartition]:
        try:
            report = json.loads(read_file(self._disk, place / REPORT_DIRECTORY / _report_name(number)))
            return [LostPartition(**each) for each in report["partitions"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []  # nothing but this command reads it, and it may have been removed

    def _number(self, folders: FolderSurvey) -> int:
        if folders.damaged:
            raise CannotGiveUp(
                f"{folders.damaged[0] / FILE_NAME} is damaged, so nobody knows which folder this is. "
                "Repair it first: run the command without --give-up."
            )
        if not folders.folders:  # they may be misspelt
            try:
                data_folders_among(self._disk, self._roots)
            except NoDataFolder as error:
                raise CannotGiveUp(str(error)) from error
        if len(folders.folders) < 2:
            raise CannotGiveUp(
                "The broker has one data folder, and without it there is nothing left. Start with a new one."
            )
        lost = self._lost.absolute()
        missing = folders.missing()
        if lost in (path.absolute() for path in folders.named.values()) or folders.is_there(self._disk, lost):
            raise CannotGiveUp(f"{self._lost} is there: it is a data folder of this broker. Nothing is lost.")
        for number, path in missing.items():
            if path.absolute() == lost or self._is_begun(folders, number, lost):
                self._refuse_others_there(folders, number)
                return number
        names = ", ".join(map(str, missing.values())) or "none"
        raise CannotGiveUp(
            f"{self._lost} is not a data folder that this broker misses. Give its path as the broker knew "
            f"it. Missing: {names}"
        )

    def _is_begun(self, folders: FolderSurvey, number: int, lost: Path) -> bool:
        """Whether an earlier attempt to give up this folder has begun to record the new identifier."""
        was = [each for each in folders.given_up if each.number == number]
        return any(each.path.absolute() == lost for each in was) and any(
            self._mark(path) == folders.folders[number][0] for path in folders.blank
        )

    def _refuse_others_there(self, folders: FolderSurvey, lost: int) -> None:
        """All other folders must record the new identifier, or one that is named later would not know it."""
        for number, path in folders.missing().items():
            if number != lost and folders.is_there(self._disk, path):
                raise CannotGiveUp(f"{path} is a data folder of this broker, too: name it with --data-dir.")

    def _mark(self, path: Path) -> str:
        """The identifier that an unfinished folder gets; empty if there is none."""
        if UNFINISHED_NAME not in self._disk.names(path):
            return ""
        return read_file(self._disk, path / UNFINISHED_NAME).decode(errors="replace").strip()

    def _place(self, folders: FolderSurvey) -> Path:
        free = [path for path in folders.blank if not self._has_foreign_data(path)]
        if len(free) != 1:
            which = (
                "None of the named folders is empty" if not free else "More than one named folder is empty"
            )
            raise CannotGiveUp(
                f"{which}. Name one empty folder with --data-dir, beside those that are left: it takes the "
                "place of the lost one. It may have the same path."
            )
        return free[0]

    def _has_foreign_data(self, path: Path) -> bool:
        names = set(self._disk.names(path))
        return UNFINISHED_NAME not in names and bool({LOGS_DIRECTORY, CATALOGUE_DIRECTORY} & names)

    def _descriptions(self, folders: FolderSurvey) -> Mapping[str, EntityDescription]:
        roots = list(folders.named.values())
        if not {0, 1} & folders.named.keys():
            raise CannotGiveUp(
                "The first two data folders hold the descriptions of the queues, and neither is there."
            )
        documents = check_documents(self._disk, roots, time.sleep, Progress())
        unreadable = {
            each.entity: each.path
            for each in documents.findings
            if each.severity is Severity.UNUSABLE
            and each.entity not in {*documents.contents, FIRST_NAMESPACE}
        }
        if unreadable:
            raise CannotGiveUp(
                f"{', '.join(unreadable.values())} cannot be read, so nobody knows what would be lost of "
                "these queues. Repair that first: run the command without --give-up."
            )
        documents.contents.pop(FIRST_NAMESPACE, None)
        return {name: decode_description(content) for name, content in documents.contents.items()}

    def _index(self, folders: FolderSurvey, number: int) -> PartitionIndex | None:
        """The index of partitions, if it knows the lost folder: one that was begun without it does not."""
        home = folders.named.get(0)
        if number == 0 or home is None:
            return None
        index = PartitionIndex(home / CATALOGUE_DIRECTORY, self._disk)
        return index if index.look() else None

    # --- carrying it out ------------------------------------------------------------------------------------

    def carry_out(self, plan: GivenUp) -> None:
        """Carry out the plan. Raises StorageError or OSError; the next attempt goes on."""
        disk, root, folders = self._disk, plan.place, self._folders
        assert folders is not None, "it is open"
        if not plan.done:
            new_id = self._mark(root)
            if new_id != folders.folders[plan.number][0]:  # otherwise all is there but the identities
                new_id = uuid.uuid4().hex
                self._fill(plan, new_id)
            replace_folder(disk, folders, plan.number, new_id, root)
            plan.done = True
        if UNFINISHED_NAME in disk.names(root):
            disk.remove(root / UNFINISHED_NAME)
            disk.sync_directory(root)

    def _fill(self, plan: GivenUp, new_id: str) -> None:
        """Make everything in the new folder but its identity."""
        disk, root = self._disk, plan.place
        make_root(disk, root)
        close_quietly(disk, publish(disk, root / UNFINISHED_NAME, [f"{new_id}\n".encode()]))
        for name in (LOGS_DIRECTORY, CATALOGUE_DIRECTORY):  # what an earlier attempt has left
            disk.remove_tree(root / name)
        asyncio.run(self._write_logs(root, plan.used))
        make_directories(disk, root, [REPORT_DIRECTORY])
        report = json.dumps(plan.as_json() | {"done": True}, indent=1).encode()
        close_quietly(disk, publish(disk, root / REPORT_DIRECTORY / _report_name(plan.number), [report]))

    async def _write_logs(self, root: Path, used: Sequence[tuple[str, int]]) -> None:
        store = FileLogStore(root, self._disk, fsync="never", reserve_bytes=0)
        now_ms = SystemClock().now_ms()
        try:
            for entity, partition in used:
                log = store.log(entity, partition)
                await log.acquire()
                commit = log.begin()
                counters = Counters(first_number(partition, now_ms), now_ms)
                commit.add(records.COUNTERS, [records.encode_counters(counters)], records.VERSION)
                await log.append(commit)
                await log.close()
        finally:
            await store.close()


def _report_name(number: int) -> str:
    return f"given-up-{number}.json"


def first_number(partition: int, now_ms: int) -> int:
    """The first sequence number of a partition whose log was given up: above all that the lost log can have
    used."""
    return partition << PARTITION_SHIFT | now_ms * NUMBERS_PER_SECOND // 1_000


def _held(row: Sequence[Any] | None, subqueues: int) -> tuple[int | None, int | None]:
    """How many messages a partition held according to its row in the index; None if that is not known, and
    how many it held before."""
    if row is None:
        return None, None
    is_open, note = row
    counts = survey([note], subqueues).total if note and is_readable(note, subqueues) else None
    if counts is None:
        return None, None
    messages = sum(each.active + each.deferred + each.scheduled for each in counts.values())
    return (None, messages) if is_open else (messages, None)
