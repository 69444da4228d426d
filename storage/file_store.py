"""FileLogStore: all logs of a broker below one folder, and what they share.

    <root>/lock                             held by the process that uses the folder
    <root>/reserve, reserve-upkeep          room for settlements and upkeep on a full disk (`full_disk.py`)
    <root>/logs/<entity>/<partition>/       segments and checkpoints of one log
    <root>/catalogue/logs/<entity>/<partition>.extent
                                            what that log is known to hold (`extent.py`)
    <root>/logs/<entity>#deleted/           an unfinished deletion; removed at the next start

The names of entities are percent-encoded. A log's files are not opened before the log is acquired, so ten
thousand idle entities cost nothing but their names.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote, unquote

import structlog

from storage import store_defaults
from storage.committer import Committer
from storage.disk import Disk, LocalDisk, close_quietly, disk_error, make_directories, make_root
from storage.drain_room import DrainRoom
from storage.end_record import INTERVAL_MS, EndRecord
from storage.errors import DiskFailed, DiskHangs, StorageError, UnknownFormat
from storage.extent import EXTENT_SUFFIX
from storage.file_log import FileLog
from storage.folder_identity import check_identity
from storage.folders import LOCK_NAME
from storage.full_disk import Reserves
from storage.log import RoomLock
from storage.open_files import OpenFiles
from storage.open_segments import OpenSegments
from storage.pools import Pools
from storage.segment import ENTITY_BYTES_MAX, SALT_BYTES
from storage.shared import Fsync, Shared
from storage.sizing import RESERVE_BYTES_MAX, reserve_bytes_of
from storage.space_watch import SpaceWatch
from storage.storage_version import (
    FILE_NAME,
    STORAGE_VERSION,
    check_version,
    note_version,
    what_is_wrong,
)
from storage.threads import OwnerFailed, UnderWay, report_to_loop, run_to_end, start_background, within

T = TypeVar("T")

LOGS_DIRECTORY = "logs"
EXTENTS_DIRECTORIES = ("catalogue", "logs")
"""The folder of extents below the root, beside the catalogue's documents."""
DELETED_SUFFIX = "#deleted"
"""The end of the name of a folder being deleted. No percent-encoded name contains `#`."""
_PARTITION = re.compile(rf"([0-9a-f]{{4}})(?:{re.escape(EXTENT_SUFFIX)})?")
TIDY_DELAY_MS = 1_000
"""How soon to try again after the disk refused to remove a trimmed file. The delay doubles while no log's
files can be removed."""
TIDY_DELAY_MS_MAX = 600_000
"""The longest delay before trying again to remove trimmed files."""
LOOK_MS = 5_000
"""How often to look whether the folder is still there, at least."""
LATE_S = 0.25
"""How long a round of syncs waits for a log that does not answer before the other logs have the next one."""
LISTED_AT_ONCE = 64
"""How many entities' folders are listed before the disk has to have answered."""
CLOSE_WITHIN_S = 5.0
"""How long closing the store waits for work under way."""
NAME_BYTES_MAX = 240
"""The longest percent-encoded name of an entity; file systems allow 255 bytes, and the suffix needs some."""

_ADVICE = (
    "Its partitions are unavailable. Mount its disk again where it was. If the folder stays lost then, "
    "restart the broker."
)

_log = structlog.get_logger()


class FolderState(enum.StrEnum):
    """A data folder's state, as far as it is known without asking its disk."""

    OK = "ok"
    FULL = "full"
    """Hardly anything is left besides what draining needs, messages were refused for lack of space within the
    last minute and none has come free since, or the reserve is in use."""
    MISSING = "missing"
    """It cannot be used: it was missing or unreadable at the start or at the last look, or another folder is
    in its place."""
    HANGS = "hangs"
    """It did not answer the last look in time."""
    STALLS = "stalls"
    """It has answered the last look, perhaps from memory, but not something else in time, such as a
    commit."""


LOST = frozenset({FolderState.MISSING, FolderState.HANGS})
"""Partitions in such a folder cannot be opened."""


class FolderInUse(DiskFailed):
    """Another process has locked the folder."""


class FileLogStore:
    """Logs on local files. See `storage.log.LogStore`. Used from one event loop.

    root: the folder.

    fsync: `always` syncs a commit before it is acknowledged, `interval` some time after, `never` leaves it to
    the system. A full segment, a closed or idle log, and what a checkpoint relies on are synced in any case.

    fsync_interval_ms: the longest time until then, not counting the sync itself.

    segment_bytes_max: how large a segment may become, unless a single frame is larger. `sizing.py` may choose
    less.

    committer_threads, worker_threads: threads that write and sync commits; threads that open, replay, close
    and list logs. `pools.py` has a few more for other work.

    open_files_max: how many files may stay open for reading.

    open_segments_max, segment_idle_ms: how many logs keep their active segment open for writing, and for how
    long without a commit. If more are needed, the log that was unused for longest closes its segment.

    reserve_bytes, reserve_retry_ms: space kept for settlements on a full disk (0: none; None: a size that
    suits the disk, `sizing.py`), and the interval of attempts to take it again after it was released.

    tidy_delay_ms: the pause before another attempt to remove trimmed files that the disk refused to remove.

    end_record_ms: about how often the extents of logs in use are brought up to date (`end_record.py`).

    make_salt: returns 16 random bytes for each new log.

    identity: the identity that this data folder must have, if the broker has several (`folders.py`). Such a
    folder is never created.

    failed: called when a background task has died. Commits may then remain unsynced, so the broker must stop.
    """

    def __init__(
        self,
        root: Path,
        disk: Disk | None = None,
        *,
        fsync: Fsync = store_defaults.FSYNC,
        fsync_interval_ms: int = store_defaults.FSYNC_INTERVAL_MS,
        segment_bytes_max: int = store_defaults.SEGMENT_BYTES_MAX,
        committer_threads: int = store_defaults.COMMITTER_THREADS,
        worker_threads: int = 4,
        open_files_max: int = store_defaults.OPEN_FILES_MAX,
        open_segments_max: int = store_defaults.OPEN_SEGMENTS_MAX,
        segment_idle_ms: int = store_defaults.SEGMENT_IDLE_MS,
        reserve_bytes: int | None = None,
        reserve_retry_ms: int = 1_000,
        tidy_delay_ms: int = TIDY_DELAY_MS,
        end_record_ms: int = INTERVAL_MS,
        make_salt: Callable[[], bytes] = lambda: os.urandom(SALT_BYTES),
        identity: str = "",
        failed: OwnerFailed = report_to_loop,
    ) -> None:
        self.root = root
        """The folder of this store."""
        self._identity = identity
        self._disk: Disk = LocalDisk() if disk is None else disk
        self._fsync_interval_ms = fsync_interval_ms
        self._reserve_retry_ms = reserve_retry_ms
        self._tidy_delay_ms = tidy_delay_ms
        self._failed = failed
        self._reserve_suits_disk = reserve_bytes is None
        self.pools = Pools(worker_threads)
        """The store's threads."""
        self._executor = self.pools.work
        self._under_way = UnderWay()
        self._shared = Shared(
            root=root / LOGS_DIRECTORY,
            extents=root.joinpath(*EXTENTS_DIRECTORIES),
            disk=self._disk,
            committer=Committer(self._disk, committer_threads),
            executor=self._executor,
            pools=self.pools,
            files=OpenFiles(self._disk, open_files_max),
            open_segments=OpenSegments(open_segments_max, segment_idle_ms, self._close_idle_later),
            reserve=Reserves(self._disk, root, RESERVE_BYTES_MAX if reserve_bytes is None else reserve_bytes),
            drain_room=DrainRoom(),
            fsync=fsync,
            segment_bytes_max=segment_bytes_max,
            make_salt=make_salt,
            prepare=self._prepare,
            unsynced=self._sync_later,
            reserve_released=self._hold_reserve_later,
            found_full=lambda is_full: self._space.tell(is_full),
            asked_if_full=lambda: self._space.look(),
            making_room=RoomLock(),
            untidy=self._tidy_later,
            put_away=lambda log: self._ends.put_away(log),
        )
        self._ends = EndRecord(cast(Iterable[FileLog], self._shared.open_segments), end_record_ms)
        self._logs: dict[tuple[str, int], FileLog] = {}
        self._space = SpaceWatch(
            root,
            self._disk,
            self._shared.drain_room,
            self._shared.reserve,
            self.pools.look,
            self._under_way,
            self._logs.values,
            failed,
        )
        self._kept_for: dict[str, set[int]] = {}
        """The partitions of each entity for which `keep_room` has kept room."""
        self._preparing = asyncio.Lock()
        self._lock_fd = -1
        self._unsynced: set[FileLog] = set()
        self._syncing: asyncio.Task[None] | None = None
        self._being_synced: dict[FileLog, asyncio.Task[None]] = {}
        self._holding: asyncio.Task[None] | None = None
        self._untidy: set[FileLog] = set()
        self._tidying: asyncio.Task[None] | None = None
        self._closing_idle: asyncio.Task[None] | None = None
        self._recording: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._lost: FolderState | None = None
        """What the last look found wrong."""
        self._within_s = math.inf
        """How long the folder may take to answer."""

    @property
    def state(self) -> FolderState:
        """The folder's state. Does not ask the disk."""
        if self._lock_fd < 0:
            return FolderState.MISSING
        if self._lost is not None:
            return self._lost
        if self.pools.waiting_s(asyncio.get_running_loop().time()) > self._within_s or self.pools.hanging:
            return FolderState.STALLS
        is_full = not self._shared.reserve.held or self._space.is_full
        return FolderState.FULL if is_full else FolderState.OK

    def log(self, entity: str, partition: int) -> FileLog:
        """See `LogStore.log`. Gives the same object each time. Raises ValueError if the name is empty or too
        long."""
        log = self._logs.get((entity, partition))
        if log is None:
            directory = self._directory(entity) / f"{partition:04x}"
            log = self._logs[entity, partition] = FileLog(self._shared, directory, entity, partition)
        return log

    def _directory(self, entity: str) -> Path:
        name = quote(entity, safe="")
        if name.startswith("."):
            name = f"%2E{name[1:]}"
        if not name or len(name) > NAME_BYTES_MAX or len(entity.encode()) > ENTITY_BYTES_MAX:
            raise ValueError(
                f"an entity's identifier has 1 to {ENTITY_BYTES_MAX} bytes, {NAME_BYTES_MAX} when "
                f"percent-encoded: {entity!r}"
            )
        return self._shared.root / name

    async def entities(self) -> list[str]:
        """The identifiers of all entities that have logs, even if those were lost."""
        await self._prepare()
        logs = await run_to_end(self._executor, lambda: self._names(self._shared.root), self._under_way)
        extents: list[str] = []
        try:
            extents = await run_to_end(
                self._executor, lambda: self._names(self._shared.extents), self._under_way
            )
        except DiskFailed as error:  # a partition without its extent does not open, and reports that itself
            _log.error(
                "extents.unreadable",
                error=str(error),
                reason="A queue whose logs are lost would not be noticed.",
            )
        deleted = {name.removesuffix(DELETED_SUFFIX) for name in logs if name.endswith(DELETED_SUFFIX)}
        with_logs = {name for name in logs if not name.endswith(DELETED_SUFFIX)}
        return sorted(unquote(name) for name in with_logs | (set(extents) - deleted))

    def _names(self, directory: Path) -> list[str]:
        """Runs in a thread. Raises DiskFailed."""
        try:
            return self._disk.names(directory)
        except OSError as error:
            raise disk_error(error, directory) from error

    def _roots(self) -> tuple[Path, Path]:
        return self._shared.root, self._shared.extents

    async def partitions(self, entity: str) -> list[int]:
        """The partitions that have a log, even if it was lost."""
        name = self._directory(entity).name
        try:
            paths = [root / name for root in self._roots()]
            names = await run_to_end(
                self._executor,
                lambda: [each for path in paths for each in self._disk.names(path)],
                self._under_way,
            )
        except OSError as error:
            raise disk_error(error, self._shared.root / name) from error
        return sorted({int(found[1], 16) for found in map(_PARTITION.fullmatch, names) if found})

    async def is_without_logs(self, entity: str) -> bool:
        """See `LogStore.is_without_logs`."""
        return not await self.partitions(entity)

    async def missing(self, within_s: float | None = None) -> dict[str, list[int]]:
        """See `LogStore.missing`. Lists two folders for each entity and opens no file.

        `within_s`: how long the disk may take for the folders of LISTED_AT_ONCE entities; None for no limit.
        Raises DiskFailed, DiskHangs.
        """
        found: dict[str, list[int]] = {}
        names = await self._in_time(within_s, self._with_extents())
        for start in range(0, len(names), LISTED_AT_ONCE):
            some = names[start : start + LISTED_AT_ONCE]
            for name, numbers in await self._in_time(within_s, self._missing_of_some(some)):
                if numbers:
                    found[unquote(name)] = sorted(numbers)
        return found

    async def _in_time(self, within_s: float | None, work: Coroutine[Any, Any, T]) -> T:
        if within_s is None:
            return await work
        try:
            return await within(within_s, work)
        except TimeoutError as error:
            raise DiskHangs(f"{self.root}: {error}") from None

    async def _with_extents(self) -> list[str]:
        """The folder names of entities with extents that are not being deleted. Raises DiskFailed."""
        await self._prepare()
        logs, extents = await run_to_end(
            self._executor, lambda: tuple(map(self._names, self._roots())), self._under_way
        )
        deleted = {name.removesuffix(DELETED_SUFFIX) for name in logs if name.endswith(DELETED_SUFFIX)}
        return [name for name in extents if name not in deleted]

    async def _missing_of_some(self, names: list[str]) -> list[tuple[str, set[int]]]:
        return await run_to_end(
            self._executor, lambda: [(name, self._missing_of(name)) for name in names], self._under_way
        )

    def _missing_of(self, name: str) -> set[int]:
        """The missing logs of one entity. If a folder cannot be listed, only this entity goes unchecked."""
        logs, extents = (self._partitions_in(root / name) for root in self._roots())
        if extents is None:
            return logs or set()  # opening these logs reports what is wrong; a stray file has no logs
        return extents - (logs or set())

    def _partitions_in(self, directory: Path) -> set[int] | None:
        """The partitions with an entry in a folder; None if it cannot be listed, which is logged."""
        try:
            names = self._disk.names(directory)
        except OSError as error:
            _log.warning("entity.logs_not_checked", path=str(directory), error=error.strerror)
            return None
        return {int(found[1], 16) for found in map(_PARTITION.fullmatch, names) if found}

    def keep_room(self, entity: str, needs: Mapping[int, tuple[int, int]], folder: int = 0) -> None:
        """See `EntityLogs.keep_room`. `folder` is for those who have several."""
        logs = self._logs
        self._kept_for.setdefault(entity, set()).update(needs)
        self._shared.drain_room.keep_all(
            (key, need)
            for number, need in needs.items()
            if (log := logs.get(key := (entity, number))) is None or not log.is_acquired
        )
        self._space.weigh()

    async def delete(self, entity: str) -> None:
        await self._prepare()
        room = self._shared.drain_room
        for number in self._kept_for.pop(entity, ()):
            room.forget((entity, number))
        for key in [key for key in self._logs if key[0] == entity]:
            room.forget(self._logs.pop(key).key)
        directory = self._directory(entity)
        await run_to_end(self.pools.deletions, lambda: self._delete(directory), self._under_way)

    def _delete(self, directory: Path) -> None:
        """Rename the entity's folder durably, so that removing it may take its time."""
        logs, deleted = directory.parent, directory.with_name(directory.name + DELETED_SUFFIX)
        try:
            if directory.name in self._disk.names(logs):
                self._disk.remove_tree(deleted)
                self._disk.rename(directory, deleted)
            self._disk.sync_directory(logs)
            self._forget(directory.name)
            self._disk.remove_tree(deleted)
        except OSError as error:
            raise disk_error(error, directory) from error

    def _forget(self, name: str) -> None:
        """Remove the extents of an entity whose logs are about to be removed, so that they do not count as
        missing."""
        if name in self._disk.names(self._shared.extents):
            self._disk.remove_tree(self._shared.extents / name)
            self._disk.sync_directory(self._shared.extents)

    def _finish_deletion(self, name: str) -> None:
        """Remove what an interrupted deletion has left in this folder of logs. If the disk refuses, the next
        start tries again."""
        try:
            self._forget(name.removesuffix(DELETED_SUFFIX))
            self._disk.remove_tree(self._shared.root / name)
        except OSError as error:
            _log.warning(
                "store.not_cleared",
                path=error.filename or str(self._shared.root / name),
                error=error.strerror,
            )

    async def close(self) -> None:
        for task in (
            self._syncing,
            self._holding,
            *self._space.tasks,
            self._tidying,
            self._closing_idle,
            self._recording,
            self._looking,
            *self._being_synced.values(),
        ):
            if task is not None:
                task.cancel()
                await asyncio.wait([task], timeout=CLOSE_WITHIN_S)
        answered = await self._shared.committer.close()
        self.pools.shutdown(cancel_futures=not answered)
        if not self.pools.join(CLOSE_WITHIN_S) or not answered:
            # The lock stays until the process has ended: nobody else may use the folder while writes are
            # under way.
            _log.warning("store.left_open", path=str(self.root))
            self._under_way.let_go()
            return
        self._shared.files.close()
        close_quietly(self._disk, self._lock_fd)
        self._lock_fd = -1
        self._space.is_open = False

    # --- before the first file is touched ---

    async def _prepare(self) -> None:
        """Make and lock the folders, remove what a crash left, and take the reserve. Raises DiskFailed."""
        if self._lock_fd >= 0:
            return
        async with self._preparing:
            if self._lock_fd < 0:
                await run_to_end(self._executor, self._prepare_folder, self._under_way)
                if not self._shared.reserve.held:
                    self._hold_reserve_later()
                self._space.weigh()

    def _prepare_folder(self) -> None:
        disk, fd = self._disk, -1
        check_identity(disk, self.root, self._identity)
        try:
            if not self._identity:
                make_root(disk, self.root)
            was_used = LOGS_DIRECTORY in disk.names(self.root)
            make_directories(disk, self.root, [LOGS_DIRECTORY])
            make_directories(disk, self.root, EXTENTS_DIRECTORIES)
            fd = disk.lock(self.root / LOCK_NAME)
            if check_version(disk, self.root) != STORAGE_VERSION:
                why = what_is_wrong(disk, self.root)
                if was_used and why is not None:
                    _log.warning("folder.version_damaged", path=str(self.root / FILE_NAME), why=why)
                self._note_version()
            for name in disk.names(self._shared.root):
                if name.endswith(DELETED_SUFFIX):
                    self._finish_deletion(name)
        except BlockingIOError as error:
            raise FolderInUse(f"{self.root}: another process uses this folder") from error
        except UnknownFormat:
            close_quietly(disk, fd)
            raise
        except OSError as error:
            close_quietly(disk, fd)
            raise disk_error(error, self.root) from error
        if self._reserve_suits_disk:
            with contextlib.suppress(OSError):
                self._shared.reserve.resize(reserve_bytes_of(disk.space(self.root).total))
        self._shared.reserve.hold()
        with contextlib.suppress(OSError):
            self._space.measure()
        self._lock_fd = fd
        self._space.is_open = True

    def _note_version(self) -> None:
        """Have the folder state the version of the storage format. A disk that is full or fails does not
        keep what it holds from being received; then a later start does it."""
        try:
            note_version(self._disk, self.root)
        except StorageError as error:
            _log.warning("folder.version_not_noted", path=str(self.root), error=str(error))

    # --- in the background ---

    def keep_looking(self, within_ms: int) -> None:
        """Look every few seconds whether the folder is still there, for `state`. A folder that was missing is
        taken into use once it is there.

        `within_ms`: how long it may take to answer.
        """
        self._within_s = within_ms / 1_000
        self._looking = start_background(self._keep_looking(within_ms), "storage-look", self._failed)

    async def _keep_looking(self, within_ms: int) -> None:
        while True:
            await asyncio.sleep(min(within_ms, LOOK_MS) / 1_000)
            look = asyncio.create_task(self._look(), name="storage-look")
            try:
                done, _ = await asyncio.wait([look], timeout=within_ms / 1_000)
                if not done:
                    self._found(DiskHangs(f"{self.root}: no answer within {within_ms / 1_000:g} s"))
                    await asyncio.wait([look])  # a folder that hangs is not asked twice
                self._found(look.result())
            finally:
                look.cancel()

    async def _look(self) -> StorageError | None:
        """What is wrong with the folder."""
        try:
            if self._lock_fd >= 0:
                await run_to_end(self.pools.look, self._check_place, self._under_way)
                self._space.weigh()
            elif self._identity:  # a folder without an identity must not be made in the place of a lost one
                await self._prepare()
        except StorageError as error:
            return error
        return None

    def _check_place(self) -> None:
        """Raise DiskFailed unless the lock that this process holds is the one in the folder.

        If the folder's disk was mounted again and so has become another one for the system, lock it anew: the
        file has the same number there. In a copy of the folder, which also says that it is this one, the file
        has another number.
        """
        disk, path = self._disk, self.root / LOCK_NAME
        try:
            fd = disk.open_read(path)
            try:
                found, locked = disk.identity(fd), disk.identity(self._lock_fd)
                if found == locked:
                    with contextlib.suppress(OSError):
                        self._space.measure()
                    return
            finally:
                close_quietly(disk, fd)
            if not self._identity or found[1] != locked[1]:
                raise DiskFailed(f"{self.root}: another folder is in its place, or a copy of it")
            check_identity(disk, self.root, self._identity)
            before, self._lock_fd = self._lock_fd, disk.lock(path)
        except BlockingIOError as error:
            raise FolderInUse(f"{self.root}: another process uses this folder") from error
        except OSError as error:
            raise disk_error(error, path) from error
        close_quietly(disk, before)

    def _found(self, error: StorageError | None) -> None:
        """Take note of what a look has found."""
        before = self.state
        if error is None:
            self._lost = None
        else:
            self._lost = FolderState.HANGS if isinstance(error, DiskHangs) else FolderState.MISSING
        if self.state is before:
            return
        if error is not None:
            _log.error("folder.lost", path=str(self.root), state=self.state, error=str(error), advice=_ADVICE)
        elif before in LOST:
            _log.info("folder.back", path=str(self.root))

    def _sync_later(self, log: FileLog) -> None:
        """Sync the log within the interval (`fsync: interval`)."""
        if self._shared.fsync != "interval":
            return
        self._unsynced.add(log)
        if self._syncing is None:
            self._syncing = start_background(self._sync_unsynced(), "storage-sync", self._failed)

    async def _sync_unsynced(self) -> None:
        while self._unsynced:
            await asyncio.sleep(self._fsync_interval_ms / 1_000)
            logs = self._unsynced - self._being_synced.keys()
            self._unsynced -= logs
            if begun := [self._begin_sync(log) for log in logs]:
                await asyncio.wait(begun, timeout=LATE_S)
        self._syncing = None

    def _begin_sync(self, log: FileLog) -> asyncio.Task[None]:
        task = self._being_synced[log] = start_background(log.sync_if_open(), "storage-sync", self._failed)
        task.add_done_callback(lambda _: self._being_synced.pop(log))
        return task

    def _hold_reserve_later(self) -> None:
        """Keep trying to take the reserve again, until there is space."""
        if self._holding is None:
            self._space.tell()
            self._holding = start_background(self._hold_reserve(), "storage-reserve", self._failed)

    async def _hold_reserve(self) -> None:
        while not self._shared.reserve.held:
            await asyncio.sleep(self._reserve_retry_ms / 1_000)
            await run_to_end(self._executor, self._shared.reserve.hold, self._under_way)
        self._space.has_room()
        self._holding = None

    def _close_idle_later(self) -> None:
        """Close idle segments and record where logs end, as long as any segment is open."""
        if self._closing_idle is None or self._closing_idle.done():
            self._closing_idle = start_background(
                self._shared.open_segments.close_idle(), "storage-idle", self._failed
            )
        if self._recording is None or self._recording.done():
            self._recording = start_background(self._ends.keep(), "storage-ends", self._failed)

    def _tidy_later(self, log: FileLog) -> None:
        """Keep trying to remove the log's trimmed files, until the disk allows it."""
        self._untidy.add(log)
        if self._tidying is None:
            self._tidying = start_background(self._tidy(), "storage-tidy", self._failed)

    async def _tidy(self) -> None:
        delay_ms = self._tidy_delay_ms
        while self._untidy:
            await asyncio.sleep(delay_ms / 1_000)
            tidied = {log for log in list(self._untidy) if await log.tidy()}
            self._untidy -= tidied
            delay_ms = self._tidy_delay_ms if tidied else min(2 * delay_ms, TIDY_DELAY_MS_MAX)
        self._tidying = None
