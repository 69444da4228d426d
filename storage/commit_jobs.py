"""What the committer does for a log: write and sync a commit, sync earlier ones, begin a new segment.

A job's `begin` runs in the event loop and says what the disk's queue can do for it; `run` does the work in a
thread instead; `finish` runs in the event loop (`committer.py`). A job changes the log's state only in
`finish`, which also reports how the job ended, because its caller may have been cancelled by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from storage.committer import Share
from storage.disk import FULL_ERRNOS, Disk, commit_error
from storage.errors import CommitFailed, DiskFull
from storage.extent import ExtentFile
from storage.full_disk import Reserves
from storage.log import Commit
from storage.record import Chain, after
from storage.recovery import OpenLog
from storage.segment import SEGMENT_HEADER_BYTES, ActiveSegment
from storage.threads import UnderWay


class JobLog(Protocol):
    """The log for which a job works."""

    disk: Disk
    reserves: Reserves
    extent: ExtentFile
    under_way: UnderWay
    """Counts jobs, and other work on the log's files that cannot be cancelled."""
    syncs_each_commit: bool
    """Whether a commit is synced before it is acknowledged (`fsync: always`)."""

    @property
    def may_fill(self) -> bool:
        """Whether zeros may be written behind a frame. On a disk with little room, no more is used than the
        frame needs."""

    def size_segment(self, opened: OpenLog) -> None:
        """Set the bound of a segment that has just begun. Runs in a thread."""

    def committed(self, opened: OpenLog, tail: Chain) -> None:
        """Move the log's end behind a frame that was written, unless the log was fenced meanwhile."""

    def ended(self, error: Exception | None) -> None:
        """The job ended: with this error, or None."""


class Job:
    """Work that the committer does for a log. Until `finish` is called, the log admits no other job, or
    is fenced."""

    __slots__ = ("_log", "_opened", "_rolled")

    def __init__(self, log: JobLog, opened: OpenLog) -> None:
        self._log = log
        self._opened = opened
        self._rolled: ActiveSegment | None = None
        log.under_way.begin()

    @property
    def is_let_go(self) -> bool:
        return self._log.under_way.is_let_go

    @property
    def _active(self) -> ActiveSegment:
        return self._rolled or self._opened.active

    def _roll(self) -> None:
        """Begin a new segment at the log's end. Runs in a thread."""
        opened = self._opened
        if opened.durable < opened.tail.position:
            opened.active.sync()  # every segment but the active one must be durable
        header = opened.active.segment.header._replace(epoch=opened.epoch, chain=opened.tail)
        self._rolled = ActiveSegment.begin(self._log.disk, opened.directory, header)
        opened.active.close()
        self._log.size_segment(opened)
        try:
            # Write this before anything in the segment is acknowledged.
            self._log.extent.rolled(self._rolled.segment.base)
        except DiskFull as error:
            raise CommitFailed(
                f"{opened.directory}: the new segment could not be recorded in the extent: {error}"
            ) from error

    def write_error(self, error: OSError) -> Exception | None:
        return commit_error(error, self._active.segment.path)

    def sync_error(self, error: OSError) -> Exception:
        return self._active.sync_error(error)

    def finish(self, error: Exception | None) -> None:
        """Record how the job ended. If that raises, the log has failed: what it knows may not be what is on
        the disk."""
        try:
            self._record(error)
        except Exception as bug:
            self._log.ended(bug)
            raise
        finally:
            self._log.under_way.end()

    def _record(self, error: Exception | None) -> None:
        if self._rolled is not None:
            opened = self._opened
            opened.active = self._rolled
            opened.segments.append(self._rolled.segment)
            opened.durable = self._rolled.segment.base
        self._log.ended(error)


class Append(Job):
    """Writes one frame, and syncs it if every commit is synced before it is acknowledged."""

    __slots__ = ("_after", "_frame", "_is_queued", "_size", "_spare", "_undoes")

    def __init__(
        self, log: JobLog, opened: OpenLog, commit: Commit, spare: Callable[[], None] | None
    ) -> None:
        """`spare` releases the reserve that this commit may use; None if it may use none."""
        super().__init__(log, opened)
        self._spare = spare
        self._is_queued = self._undoes = False
        body = commit.pieces()
        header = opened.codec.header(body, opened.tail, opened.durable, opened.epoch)
        self._frame = [header, *body]
        self._size = len(header) + commit.bytes
        self._after: Chain | None = None

    def find_end(self) -> Chain:
        """The chain behind the frame. Found once; whoever has begun the job may do so while the disk
        writes."""
        if self._after is None:
            tail, header = self._opened.tail, self._frame[0]
            self._after = after(tail.position, tail.sequence, header, self._size - len(header))
        return self._after

    def begin(self) -> Share | None:
        active = self._active
        if (
            not active.is_open
            or not active.has_room(self._size)
            or active.used + self._size > self._opened.segment_bytes_max
        ):
            return None
        self._is_queued = True
        return active.fd, self._frame, active.used, self._log.syncs_each_commit

    def write_error(self, error: OSError) -> Exception | None:
        if error.errno not in FULL_ERRNOS:
            return super().write_error(error)
        self._undoes = True  # the file system copies on write: `run` finds space, or fails
        return None

    def run(self) -> None:
        self._is_queued = False
        if not self._active.is_open:
            self._active.take_up()
        if self._undoes:
            self._active.undo()  # durability rule 6
        try:
            self._write()
        except DiskFull:
            if self._spare is None:
                raise
            self._spare()  # durability rule 6
            self._write()
        if self._log.syncs_each_commit:
            self._active.sync()  # durability rule 1

    def _write(self) -> None:
        used = self._active.used
        if (
            used > SEGMENT_HEADER_BYTES
            and used + self._size > self._opened.segment_bytes_max
            and self._rolled is None
        ):
            self._roll()
            self._active.follow(self._opened.active)
        fill_until = self._opened.fill_until if self._log.may_fill else 0
        self._active.write(self._frame, fill_until=fill_until)

    def _record(self, error: Exception | None) -> None:
        if error is None and self._is_queued:
            self._active.wrote(self._size)
        super()._record(error)
        if error is None:
            self._log.committed(self._opened, self._after or self.find_end())


class SyncUnsynced(Job):
    """Syncs commits that were acknowledged before they were synced."""

    __slots__ = ()

    def begin(self) -> Share | None:
        return self._active.fd, (), 0, True

    def run(self) -> None:
        self._active.sync()

    def _record(self, error: Exception | None) -> None:
        super()._record(error)
        if error is None:
            self._opened.durable = self._opened.tail.position


class Roll(Job):
    """Begins a new segment, so that the active one can be trimmed."""

    __slots__ = ()

    def begin(self) -> Share | None:
        return None

    def run(self) -> None:
        try:
            self._roll()
        except DiskFull:
            # A new segment is small, and the old one may be all garbage (durability rule 6).
            self._log.reserves.release()
            self._roll()


class RollAhead(Job):
    """Begins a new segment and fills it with zeros, so that no commit waits for that. Without room on the
    disk, leaves that to the commit that needs it."""

    __slots__ = ()

    def begin(self) -> Share | None:
        return None

    def run(self) -> None:
        opened, log = self._opened, self._log
        try:
            self._roll()
        except DiskFull:
            return
        if self._rolled is not None:
            self._rolled.follow(opened.active)
            self._rolled.fill(opened.fill_until if log.may_fill else 0, syncs=log.syncs_each_commit)
