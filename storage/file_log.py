"""FileLog: `Log` on local files. Knows which segment holds a position, and when a log may be written to.

Invariants:
- `end` moves when a commit's job has succeeded, even if its caller was cancelled meanwhile. Only what lies
  below it is read (durability rules 1 to 3).
- After CommitFailed, everything is refused until `acquire`, which begins a new segment (durability rule 4).
- After DiskFull, nothing has changed (durability rule 6).
- All segments but the active one are entirely durable.
- `fence` turns everything that the disk has not answered into a failure. A commit that succeeds afterwards
  still counts as failed, and nobody touches the log's files until everything under way has ended.

The methods of a job, and functions given to `run_to_end`, run in a thread; everything else runs in the event
loop. `_one_at_a_time` admits one job at a time to the active segment; `_housekeeping` admits one checkpoint
or trim at a time to the older files. To hold both, take `_housekeeping` first.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import structlog

from storage.checkpoints import Anchor
from storage.commit_jobs import Append, Roll, RollAhead, SyncUnsynced
from storage.disk import disk_error, make_directories
from storage.errors import CommitFailed, CorruptRecord, DiskFailed, DiskFull, StorageError
from storage.extent import ExtentFile
from storage.log import FRAME_HEADER_BYTES, Checkpoint, Commit, Ended, Frame, Parts, Position, RoomLock
from storage.log_reader import LogReader
from storage.one_at_a_time import OneAtATime
from storage.recent import RecentPlaces
from storage.record import Chain
from storage.recovery import (
    REWRITTEN_BYTES_MAX,
    OpenLog,
    acquire_log,
    clear_up,
    extent_of,
    reacquire_log,
    remove_strays,
)
from storage.segment import SEGMENT_SUFFIX
from storage.shared import Shared
from storage.sizing import Pace, is_confined, segment_bytes
from storage.threads import UnderWay, run_to_end
from storage.zeros_ahead import ZerosAhead

DEAD_BYTES_MIN = 1 << 20
"""If the active segment holds more than this and all of it was trimmed, it is replaced and removed."""

_log = structlog.get_logger()


class _State(enum.Enum):
    NOT_ACQUIRED = "not acquired"
    OPEN = "open"
    FAILED = "failed"


_OPEN = _State.OPEN  # to find a member of an enumeration takes long beside what a commit does


class FileLog:
    """The log of one partition on local files; made by `FileLogStore.log`. See `storage.log.Log`."""

    def __init__(self, shared: Shared[FileLog], directory: Path, entity: str, partition: int) -> None:
        self._shared, self._directory = shared, directory
        self._entity, self._partition = entity, partition
        self.key = entity, partition  # names it in `DrainRoom`, which keeps its room before the log is made
        self.disk, self.reserves = shared.disk, shared.reserve
        self._drain_room, self.lulls = shared.drain_room, shared.committer
        self.syncs_each_commit = shared.fsync == "always"
        self.extent = ExtentFile(shared.disk, shared.extents, directory.parent.name, entity, partition)
        self._state = _State.NOT_ACQUIRED
        self._opened: OpenLog | None = None
        self._recent = RecentPlaces()
        self._reader = LogReader(shared.disk, shared.files, shared.pools.reads, shared.executor, directory)
        self._one_at_a_time = OneAtATime()
        self._housekeeping = asyncio.Lock()
        self._zeros: ZerosAhead | None = None
        """The zeros being written to the active segment, or the last ones."""
        self.under_way = UnderWay(shared.pools.hanging)
        """Work on the log's files, other than reads, that cannot be cancelled."""
        self._has_begun_at_once = False
        """A commit of `append_at_once` is under way, or the next segment begins behind it."""
        self._is_untidy = False
        """Whether the disk refused to remove a trimmed file, which was logged."""
        self._pace = Pace(float)
        self.on_full: Callable[[], None] = _ignore
        self.need: Callable[[], tuple[int, int] | None] = _ignore

    # --- where it begins and ends ---

    @property
    def end(self) -> Position:
        return self._known().tail.position

    @property
    def start(self) -> Position:
        return self._known().segments[0].base

    @property
    def trim_points(self) -> Sequence[Position]:
        return [segment.base for segment in self._known().segments[1:]]

    @property
    def checkpoints(self) -> Sequence[Position]:
        return self._known().checkpoints.positions

    @property
    def has_damaged_checkpoint(self) -> bool:
        return self._known().checkpoints.is_damaged

    @property
    def checkpoint_base(self) -> Position | None:
        return self._known().checkpoints.base_position

    @property
    def checkpoint_bytes(self) -> int:
        return self._known().checkpoints.stored_bytes

    @property
    def is_full(self) -> bool:
        if self._drain_room.left >= 0 and self.reserves.held:
            return False
        self._shared.asked_if_full()
        return True

    def take_growth(self, each: int, count: int = 1) -> int:
        return self.reserves.take_growth(each, count) if self.is_full else count

    @property
    def is_confined(self) -> bool:
        return self._opened is not None and self._opened.is_confined

    def keep_room(self, lasting: int, passing: int) -> None:
        self._drain_room.keep(self.key, lasting, passing)

    @property
    def is_acquired(self) -> bool:
        return self._opened is not None

    @property
    def is_scarce(self) -> bool:
        return self._drain_room.is_scarce

    @property
    def making_room(self) -> RoomLock:
        return self._shared.making_room

    async def room(self) -> int:
        loop, shared = asyncio.get_running_loop(), self._shared
        try:
            space = await loop.run_in_executor(shared.executor, shared.disk.space, shared.root)
        except OSError as error:
            raise disk_error(error, shared.root) from error
        return space.free + shared.reserve.held_bytes

    def _known(self) -> OpenLog:
        assert self._opened is not None, "the log was acquired"
        return self._opened

    def _open(self) -> OpenLog:
        """The log, if it may be used. Raises CommitFailed if it must be acquired first."""
        opened = self._opened
        if self._state is _OPEN and opened is not None:
            return opened
        assert self._state is _State.FAILED, "the log was acquired"
        raise CommitFailed(
            f"{self._directory}: an earlier commit failed, and the log has not been acquired again"
        )

    # --- acquire and close ---

    async def acquire(self, epoch: int | None = None) -> int:
        await self._shared.prepare()
        async with self._housekeeping, self._one_at_a_time:
            await self.under_way.ended()
            self._zeros, self._pace = None, Pace(asyncio.get_running_loop().time)
            try:
                if self._state is _State.OPEN:
                    # A log that wants this place waits for our job, so we must not wait for the log.
                    await self._close_files(keeps_place=True)
                await self._shared.open_segments.take(self)
                await run_to_end(self._shared.executor, lambda: self._acquire(epoch), self.under_way)
            finally:
                self._mind_the_descriptor()
                self._mind_the_reserve()
            opened = self._known()
            self._state = _State.OPEN
            self._recent.keep_only(opened.tail)
            _log.debug(
                "log.acquired",
                directory=str(self._directory),
                epoch=opened.epoch,
                position=opened.tail.position,
            )
            return opened.epoch

    def _acquire(self, epoch: int | None) -> None:
        """Runs in a thread. It writes a little, so it may use a full disk's reserve (durability rule 6)."""
        try:
            self._acquire_once(epoch, REWRITTEN_BYTES_MAX)
        except DiskFull:
            self._shared.reserve.release()
            self._acquire_once(epoch, 0)

    def _acquire_once(self, epoch: int | None, rewritten_bytes_max: int) -> None:
        shared = self._shared
        try:
            if self._state is _State.FAILED:
                opened = self._known()
                shared.files.forget(opened.active.segment.path)
                reacquire_log(shared.disk, opened, epoch, rewritten_bytes_max)
                self._keep_extent(opened)
            else:
                opened = self._acquire_files(epoch, rewritten_bytes_max)
                try:
                    self._keep_extent(opened)
                except BaseException:
                    opened.active.abandon()
                    raise
                self._opened = opened
            clear_up(shared.disk, opened)
            self.size_segment(opened)
        except OSError as error:
            raise disk_error(error, self._directory) from error

    def size_segment(self, opened: OpenLog) -> None:
        """See `JobLog`."""
        shared = self._shared
        try:
            free = shared.drain_room.measure(lambda: shared.disk.space(shared.root).free)
        except OSError:
            free = 0  # the free space is unknown, so the disk may be full
        log_bytes = opened.tail.position - opened.segments[0].base
        filled = opened.tail.position - opened.active.segment.base
        about = (self._partition, log_bytes, free, shared.segment_bytes_max)
        opened.segment_bytes_max = segment_bytes(*about, self._pace.next(filled))
        opened.is_confined = is_confined(*about)

    def _acquire_files(self, epoch: int | None, rewritten_bytes_max: int) -> OpenLog:
        shared, known = self._shared, None
        try:
            known = self.extent.read()
        except CorruptRecord as error:
            # The extent's file exists, so there was a log. Only the log's own files can now show which log it
            # was and how much it held.
            if not any(name.endswith(SEGMENT_SUFFIX) for name in shared.disk.names(self._directory)):
                raise
            _log.error("extent.damaged", path=error.path, why=error.why, directory=str(self._directory))
        if known is None:
            make_directories(shared.disk, shared.root, [self._directory.parent.name, self._directory.name])
        return acquire_log(
            shared.disk, self._directory, self._entity, self._partition, epoch, shared.make_salt(),
            rewritten_bytes_max, known
        )  # fmt: skip

    def _keep_extent(self, opened: OpenLog) -> None:
        bases, extent = [segment.base for segment in opened.segments], extent_of(opened)
        try:
            self.extent.acquired(bases, extent)
        except DiskFull:
            self._shared.reserve.release()
            self.extent.acquired(bases, extent)

    async def close(self) -> None:
        async with self._housekeeping, self._one_at_a_time:
            if self.under_way.is_let_go:
                raise DiskFailed(f"{self._directory}: the disk has not answered yet, so the files stay open")
            if self._opened is not None:
                await self._close_files()

    async def _close_files(self, *, keeps_place: bool = False) -> None:
        """Sync what is not synced yet, and close. A failed log keeps its state for the next acquisition."""
        await self._zeros_written()
        opened = self._known()
        try:
            if self._state is _State.OPEN:
                await self._sync(opened)
        finally:
            failed = self._state is _State.FAILED
            if not failed:
                self._state, self._opened = _State.NOT_ACQUIRED, None
            try:
                with self.extent.closing() as record_end:
                    release = partial(self._release_files, opened, failed, record_end)
                    await run_to_end(self._shared.executor, release, self.under_way)
            finally:
                if not keeps_place:
                    self._shared.open_segments.give(self)

    def _release_files(self, opened: OpenLog, failed: bool, record_end: Callable[[Position], None]) -> None:
        if failed:
            opened.active.abandon()
        else:
            opened.active.close()
            record_end(opened.durable)
        for segment in opened.segments:
            self._shared.files.forget(segment.path)

    def fence(self) -> None:
        if self._has_begun_at_once:
            self._has_begun_at_once = False
            self._one_at_a_time.give_back()
        if self.under_way.let_go() and self._state is _State.OPEN:
            self._state = _State.FAILED
            _log.error("log.fenced", directory=str(self._directory), position=self._known().tail.position)

    # --- commits ---

    def begin(self) -> Commit:
        return Commit(self._open().tail.position)

    async def append(self, commit: Commit, urgent: bool = False, *, frees: bool = False) -> None:
        async with self._one_at_a_time:
            opened = self._open()
            assert commit.start == opened.tail.position and commit.parts, "one at a time, not empty"
            if not (frees or self.reserves.held):
                self._shared.reserve_released()
                grows_by, executor = commit.grows_by, self._shared.executor
                await self.reserves.admit(self._directory, executor, urgent=urgent, grows_by=grows_by)
            size = FRAME_HEADER_BYTES + commit.bytes
            if not self._drain_room.fits(self.key, size, self.need, urgent=urgent or frees):
                self._shared.found_full(not (urgent or frees))
                if not (urgent or frees):
                    raise DiskFull(f"{self._directory}: the remaining room is kept to drain what is stored")
            self._drain_room.take(self.key, size)
            try:
                await self._use_descriptor(opened)
                if self._zeros is not None:
                    await self._mind_the_zeros(self._zeros, opened, size)
            except BaseException:  # no job begins, so none will end
                self._drain_room.give_back(self.key)
                raise
            spare = self.reserves.spare_for(urgent=urgent, frees=frees, grows_by=commit.grows_by)
            try:
                await self._shared.committer.run(Append(self, opened, commit, spare))
            finally:
                self._mind_the_descriptor()
            self._write_ahead(opened)

    def append_at_once(self, commit: Commit, ended: Ended, *, urgent: bool = False) -> bool:
        size = FRAME_HEADER_BYTES + commit.bytes
        if (
            (opened := self._opened) is None
            or self._state is not _OPEN
            or not opened.active.is_open
            or not self.reserves.held
            or not self._drain_room.fits(self.key, size, self.need, urgent=urgent)
            or not (self._zeros is None or self._zeros.let_pass(size))
            or not self._one_at_a_time.take_if_free()
        ):
            return False
        assert commit.start == opened.tail.position and commit.parts, "one at a time, not empty"
        self._has_begun_at_once = True
        self._drain_room.take(self.key, size)
        spare = self.reserves.spare_for(urgent=urgent, frees=False, grows_by=commit.grows_by)
        job = Append(self, opened, commit, spare)
        self._shared.committer.begin(job, partial(self._commit_ended, opened, ended))
        job.find_end()  # while the disk writes
        if self._has_begun_at_once:
            self._shared.open_segments.used(self)
        return True

    def _commit_ended(self, opened: OpenLog, ended: Ended, error: Exception | None) -> None:
        """A commit of `append_at_once` has ended."""
        if self._has_begun_at_once:  # it was not fenced
            self._has_begun_at_once = False
            more_waits = ended(error)  # first: clients wait for it
            if error is None:
                self._write_ahead(opened)
            is_due = error is None and opened.next_is_due(more_waits=more_waits)
            if not is_due or not self._begins_next(opened):
                self._one_at_a_time.give_back()
        self._mind_the_descriptor()

    def _begins_next(self, opened: OpenLog) -> bool:
        """The next commit will hardly fit into the active segment: begin the next one while nobody waits for
        it. Returns whether that has begun; then the caller's place as the one job is taken until its end."""
        if opened.is_confined or not self.may_fill or self._zeros is not None or self._state is not _OPEN:
            return False
        self._has_begun_at_once = True
        self._shared.committer.begin(RollAhead(self, opened), partial(self._next_begun, opened))
        return True

    def _next_begun(self, opened: OpenLog, error: Exception | None) -> None:
        """The next segment has begun, or that failed; nobody is told."""
        if self._has_begun_at_once:  # it was not fenced
            self._has_begun_at_once = False
            if error is None:
                self._write_ahead(opened)
            self._one_at_a_time.give_back()
        self._mind_the_descriptor()

    async def sync(self) -> None:
        async with self._one_at_a_time:
            await self._sync(self._open())

    async def sync_if_open(self) -> None:
        """Sync what the interval has left unsynced (`fsync: interval`). If this fails, the next append
        raises."""
        if self._state is _State.OPEN:
            async with self._one_at_a_time:
                await self._try_to_sync()

    async def _try_to_sync(self) -> None:
        """Sync what is not synced yet, unless the log has been closed. The caller is the one job."""
        if self._opened is not None and self._state is _State.OPEN:
            try:
                await self._sync(self._opened)
            except CommitFailed as error:
                _log.error("log.sync_failed", directory=str(self._directory), error=str(error))

    async def _sync(self, opened: OpenLog) -> None:
        if opened.durable < opened.tail.position:
            await self._shared.committer.run(SyncUnsynced(self, opened))

    # --- zeros ahead of commits ---

    def _write_ahead(self, opened: OpenLog) -> None:
        """Have the zeros written that are due, if none are being written. The caller is the one job."""
        if self._zeros is not None and self._zeros.has_ended and self._zeros.error is None:
            self._zeros = None
        if self._zeros is not None or not (opened.active.is_low and self.may_fill):
            return
        zeros = opened.active.zeros_due(opened.fill_until)
        if zeros is None or self._state is not _State.OPEN:
            return
        about = opened.active, zeros, self._shared.disk, self._shared.pools.zeros
        with contextlib.suppress(RuntimeError):  # the store was closed while this commit was under way
            self._zeros = ZerosAhead(*about, syncs=self.syncs_each_commit, under_way=self.under_way)

    async def _mind_the_zeros(self, zeros: ZerosAhead, opened: OpenLog, size: int) -> None:
        """Before a commit of `size` bytes, wait for zeros that are late, that it needs, or that could be
        written over it. The caller is the one job. Raises CommitFailed if the zeros have failed."""
        if zeros.is_late or zeros.may_hit_frames or not opened.active.has_room(size):
            zeros.give_up_unbegun()  # no thread may come; a commit that needs room writes its own zeros
            await zeros.wait()
            self._open()  # it may have been fenced meanwhile
        self._check_zeros(zeros)

    def _check_zeros(self, zeros: ZerosAhead) -> None:
        """Forget zeros that have ended. Raises CommitFailed if they have failed."""
        if zeros.error is not None:
            self.ended(zeros.error)
            raise zeros.error
        if zeros.has_ended:
            self._zeros = None

    async def _zeros_written(self) -> None:
        """Wait for the zeros being written, because the file is about to be closed. The caller is the
        one job."""
        if self._zeros is not None:
            await self._zeros.wait()

    # --- its descriptor ---

    @property
    def is_busy(self) -> bool:
        """Whether the active segment is in use."""
        return self._one_at_a_time.is_taken

    async def put_away(self) -> None:
        """Close the active segment's file until the next commit, and the files open for reading. First sync
        commits that were acknowledged before they were synced."""
        async with self._one_at_a_time:
            opened = self._opened
            try:
                if opened is None or not opened.active.is_open:
                    return
                if self.under_way.is_let_go:  # the file stays open without a place until that work has ended
                    self._shared.open_segments.give(self)
                    return
                await self._zeros_written()
                active = opened.active
                await self._try_to_sync()
                # Durability rule 4: a file that failed is never written to again, so its state need not be
                # remembered.
                close_active = active.put_away if self._state is _State.OPEN else active.abandon
                paths = [segment.path for segment in opened.segments]

                def close() -> None:
                    close_active()
                    for path in paths:
                        self._shared.files.forget(path)

                await run_to_end(self._shared.executor, close, self.under_way)
                self._recent.keep_only(opened.tail)
                self._shared.put_away(self)
            finally:
                self._mind_the_descriptor()

    @property
    def is_end_recorded(self) -> bool:
        """Whether the extent is up to date; True for a log that is not open."""
        return self._state is not _State.OPEN or self._known().durable <= self.extent.durable

    async def record_end(self) -> None:
        """Bring the extent up to date. If the disk refuses, a later call tries again; until then, everything
        that needs the extent fails."""
        async with self._housekeeping:
            if not self.is_end_recorded:
                record = partial(self.extent.reached, self._known().durable)
                with contextlib.suppress(StorageError):
                    await run_to_end(self._shared.executor, record, self.under_way)

    async def _use_descriptor(self, opened: OpenLog) -> None:
        """Get a place for the active segment's descriptor. The caller is the one job."""
        if opened.active.is_open:
            self._shared.open_segments.used(self)
        else:
            await self._shared.open_segments.take(self)

    def _mind_the_descriptor(self) -> None:
        """Give the place back if the active segment has no descriptor. The caller is the one job."""
        if self._opened is None or not self._opened.active.is_open:
            self._shared.open_segments.give(self)

    @property
    def may_fill(self) -> bool:
        """See `JobLog`."""
        return self.reserves.held and not self._drain_room.is_short

    # --- how jobs end ---

    def committed(self, opened: OpenLog, tail: Chain) -> None:
        """See `JobLog`. A commit that ends after `fence` counts as failed."""
        if self._state is not _OPEN:
            return
        self._recent.add(tail)
        if self.syncs_each_commit:
            opened.durable = tail.position
        else:
            self._shared.unsynced(self)
        opened.tail = tail  # last: the commit has failed if anything raises

    def ended(self, error: Exception | None) -> None:
        """See `JobLog`."""
        self._drain_room.end(self.key)
        if isinstance(error, DiskFull):
            self._shared.found_full(True)
        elif error is not None:
            self._state = _State.FAILED
            _log.error(
                "log.failed",
                directory=str(self._directory),
                position=self._known().tail.position,
                error=str(error),
            )
        self._mind_the_reserve()

    def _mind_the_reserve(self) -> None:
        if not self._shared.reserve.held:
            self._shared.reserve_released()

    # --- reading ---

    async def fetch(self, positions: Sequence[Position]) -> list[Frame]:
        return await self._reader.fetch(self._open(), positions) if positions else []

    async def fetch_parts(self, parts: Parts) -> list[bytes]:
        return await self._reader.fetch_parts(self._open(), parts) if parts.positions else []

    def replay(self, since: Position) -> AsyncIterator[Frame]:
        return self._reader.replay(self._open(), since)

    # --- checkpoints and trimming ---

    def checkpoint_parts(self, checkpoint: Checkpoint) -> AsyncIterator[Checkpoint]:
        return self._reader.checkpoint_parts(checkpoint)

    async def load_checkpoint(self) -> Checkpoint | None:
        async with self._housekeeping:
            return await self._reader.load_checkpoint(self._open(), self.start, self.under_way)

    async def save_checkpoint(self, checkpoint: Checkpoint, *, is_complete: bool = False) -> None:
        async with self._housekeeping:
            opened, shared = self._open(), self._shared
            assert opened.segments[0].base <= checkpoint.position <= opened.tail.position, "of this log"
            chain = self._chain_at(checkpoint.position)
            if opened.durable < checkpoint.position:
                await self.sync()  # a checkpoint's position must be durable
            anchor = Anchor(chain, opened.epoch, self._partition, opened.segments[0].header.salt)
            write = partial(opened.checkpoints.save, is_complete=is_complete)

            def save() -> None:
                try:
                    write(shared.disk, checkpoint, anchor)
                except DiskFull:  # without one, no segment can be removed (durability rule 6)
                    shared.reserve.release()
                    write(shared.disk, checkpoint, anchor)
                self._measure()
                self.extent.checkpointed(checkpoint.position, opened.durable)

            try:
                await run_to_end(shared.pools.upkeep, save, self.under_way)
            finally:
                self._mind_the_reserve()

    def _chain_at(self, position: Position) -> Chain:
        """The chain at a position, with the digest of the frame before it if that is still known."""
        if (chain := self._recent.find(position)) is not None:
            return chain
        for segment in self._known().segments:
            if segment.base == position:
                return segment.header.chain
        return Chain(position, 0, None)

    async def trim(self, position: Position) -> None:
        async with self._housekeeping:
            opened, shared = self._open(), self._shared
            trim_limit = opened.checkpoints.trim_limit
            if trim_limit is None:
                return
            limit = min(position, trim_limit)
            if limit >= opened.tail.position and opened.active.used >= DEAD_BYTES_MIN:
                await self._roll(limit)
            if (
                len(opened.segments) > 1
                and opened.segments[1].base <= limit
                and opened.durable < opened.tail.position
            ):
                await self.sync()  # a power cut must not undo the commits that emptied these segments
            while len(opened.segments) > 1 and opened.segments[1].base <= limit:
                trimmed = opened.segments.pop(0)
                shared.files.forget(trimmed.path)
                opened.strays.append(trimmed.path)
            try:
                await run_to_end(shared.pools.upkeep, lambda: self._give_back(opened), self.under_way)
            except (OSError, StorageError) as error:
                # Nobody reads these files any more. They only take up space, so the log continues.
                if not self._is_untidy:
                    path = opened.strays[0] if opened.strays else self._directory
                    _log.warning(
                        "log.not_trimmed", path=str(path), files=len(opened.strays), error=str(error)
                    )
                self._is_untidy = True
                shared.untidy(self)

    async def tidy(self) -> bool:
        """Remove trimmed files that are still there; True if none are left. Does not raise if the disk
        refuses."""
        async with self._housekeeping:
            opened = self._opened
            if self._state is not _State.OPEN or opened is None:
                self._is_untidy = False
                return True  # the next acquisition removes such files
            try:
                await run_to_end(self._shared.pools.upkeep, lambda: self._give_back(opened), self.under_way)
            except (OSError, StorageError):
                return False
            self._is_untidy = False
            _log.info("log.trimmed_late", directory=str(self._directory), start=opened.segments[0].base)
            return True

    def _give_back(self, opened: OpenLog) -> None:
        """Remove trimmed files. Runs in a thread."""
        # Write the extent first, so that the removed files do not count as missing.
        self.extent.trimmed(opened.segments[0].base)
        remove_strays(self._shared.disk, opened)
        self._measure()

    def _measure(self) -> None:
        """Measure the free space after files were written or removed. Runs in a thread."""
        shared = self._shared
        with contextlib.suppress(OSError):
            shared.drain_room.measure(lambda: shared.disk.space(shared.root).free)

    async def roll(self) -> None:
        await self._roll(self.end)

    async def _roll(self, limit: Position) -> None:
        """Begin a new segment, unless the active one is empty or holds something behind `limit`."""
        async with self._one_at_a_time:
            opened = self._open()
            if opened.active.segment.base < opened.tail.position <= limit:
                if (zeros := self._zeros) is not None:
                    await zeros.wait()
                    self._open()  # it may have been fenced meanwhile
                    self._check_zeros(zeros)
                await self._use_descriptor(opened)
                try:
                    await self._shared.committer.run(Roll(self, opened))
                finally:
                    self._mind_the_descriptor()


def _ignore() -> None:
    pass
