"""What the committer does for a log: a commit, a sync, a new segment, and what becomes of the log's state."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storage.commit_jobs import Append, Roll, SyncUnsynced
from storage.disk import Disk
from storage.errors import CommitFailed, DiskFull
from storage.extent import Extent, ExtentFile
from storage.full_disk import Reserves
from storage.log import Commit, Position
from storage.record import Chain
from storage.recovery import REWRITTEN_BYTES_MAX, OpenLog, acquire_log
from storage.segment import SEGMENT_HEADER_BYTES
from storage.threads import UnderWay
from tests.support.faulty_disk import FaultyDisk
from tests.support.recording_disk import RecordingDisk

LOG, EXTENTS = Path("/log"), Path("/extents")
SALT = b"s" * 16


class Owner:
    """The log that the jobs are for."""

    def __init__(self, *, segment_bytes_max: int = 1 << 20, syncs_each_commit: bool = True) -> None:
        inner = RecordingDisk()
        for folder in (LOG, EXTENTS):
            inner.make_directory(folder)
        self.faulty = FaultyDisk(inner)
        self.disk: Disk = self.faulty
        self.syncs_each_commit = syncs_each_commit
        self.may_fill = True
        self.reserves = Reserves(self.disk, Path("/"), 0)
        self.under_way = UnderWay()
        self.extent = ExtentFile(self.disk, EXTENTS, "e", "e", 0)
        self.opened = acquire_log(self.disk, LOG, "e", 0, None, SALT, REWRITTEN_BYTES_MAX)
        self.opened.segment_bytes_max = segment_bytes_max
        self.extent.acquired([Position(0)], Extent(Position(0), Position(0), 1, Position(0), None, 1, SALT))
        self.errors: list[Exception | None] = []

    def size_segment(self, opened: OpenLog) -> None: ...

    def committed(self, opened: OpenLog, tail: Chain) -> None:
        opened.tail = tail

    def ended(self, error: Exception | None) -> None:
        self.errors.append(error)

    def append(self, size: int = 100) -> Append:
        commit = Commit(self.opened.tail.position)
        commit.add(1, [bytes(size)])
        return Append(self, self.opened, commit, None)

    def in_a_thread(self, job: Append | Roll | SyncUnsynced) -> None:
        """Run a job as the committer does in a thread."""
        try:
            job.run()
        except DiskFull as error:
            job.finish(error)
            raise
        job.finish(None)


def test_a_commit_is_synced_in_the_file_that_begin_names_and_then_moves_the_end() -> None:
    owner = Owner()
    owner.in_a_thread(owner.append())
    before = owner.opened.tail
    job = owner.append()
    assert owner.under_way
    used = owner.opened.active.used
    share = job.begin()
    assert share is not None and owner.opened.active.fd == share[0], "the queue writes over zeros"
    assert share[2:] == (used, True) and owner.opened.tail == before, "not before it is durable"
    job.finish(None)
    assert owner.opened.tail.sequence == before.sequence + 1
    assert owner.opened.active.used == used + sum(map(len, share[1]))
    assert owner.errors == [None, None] and not owner.under_way


def test_a_commit_that_failed_does_not_move_the_end() -> None:
    owner = Owner()
    owner.in_a_thread(owner.append())
    before, error = owner.opened.tail, CommitFailed("no")
    job = owner.append()
    job.begin()
    job.finish(error)
    assert owner.opened.tail == before and owner.errors[-1] is error


def test_a_commit_whose_end_cannot_be_recorded_fails_the_log_and_is_not_under_way_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner, bug = Owner(), ValueError("a bug")

    def raises(*_: object) -> None:
        raise bug

    monkeypatch.setattr(owner, "committed", raises)
    job = owner.append()
    with pytest.raises(ValueError, match="a bug"):
        owner.in_a_thread(job)
    assert owner.errors[-1] is bug and not owner.under_way and owner.opened.tail.position == 0


def test_a_commit_that_no_queue_could_write_for_lack_of_space_is_cut_off_and_tried_in_a_thread() -> None:
    owner = Owner()
    owner.in_a_thread(owner.append())
    owner.in_a_thread(owner.append())
    before, cuts = owner.opened.tail, owner.faulty.calls["truncate"]
    job = owner.append()
    assert job.begin() is not None
    assert job.write_error(OSError(errno.ENOSPC, "full")) is None
    owner.in_a_thread(job)
    assert owner.faulty.calls["truncate"] == cuts + 1
    assert owner.opened.tail.sequence == before.sequence + 1
    assert owner.opened.active.used == SEGMENT_HEADER_BYTES + owner.opened.tail.position
    job = owner.append()
    job.begin()
    assert isinstance(job.write_error(OSError(errno.EIO, "lost")), CommitFailed)


def test_without_a_sync_per_commit_nothing_is_waited_for_until_they_are_synced_together() -> None:
    owner = Owner(syncs_each_commit=False)
    owner.in_a_thread(owner.append())
    job = owner.append()
    syncs = owner.faulty.calls["sync"]
    share = job.begin()
    assert share is not None and not share[3]
    job.finish(None)
    assert owner.faulty.calls["sync"] == syncs
    assert owner.opened.durable < owner.opened.tail.position
    owner.in_a_thread(SyncUnsynced(owner, owner.opened))
    assert owner.opened.durable == owner.opened.tail.position and owner.faulty.calls["sync"] == syncs + 1


def test_a_frame_that_does_not_fit_begins_a_segment_that_the_extent_knows_first() -> None:
    owner = Owner(segment_bytes_max=1_000)
    owner.in_a_thread(owner.append(600))
    base = owner.opened.tail.position
    job = owner.append(600)
    assert job.begin() is None
    job.run()
    assert len(owner.opened.segments) == 1, "the log's state changes in the event loop"
    known = owner.extent.read()
    assert known is not None and (known.base, known.segments) == (base, 2)
    job.finish(None)
    assert [segment.base for segment in owner.opened.segments] == [0, base]
    assert owner.opened.active.segment.base == base == owner.opened.durable


def test_a_commit_that_may_use_the_reserve_has_it_released_on_a_full_disk_and_others_are_refused() -> None:
    owner = Owner()
    owner.in_a_thread(owner.append())
    released: list[str] = []

    def release() -> None:
        released.append("now")
        owner.faulty.heal()

    def job(spare: bool) -> Append:
        commit = Commit(owner.opened.tail.position)
        commit.add(1, [bytes(1 << 18)])
        return Append(owner, owner.opened, commit, release if spare else None)

    owner.faulty.fail("write", errno.ENOSPC, times=1_000)
    with pytest.raises(DiskFull):
        owner.in_a_thread(job(spare=False))
    before = owner.opened.tail
    owner.in_a_thread(job(spare=True))
    assert released == ["now"] and owner.opened.tail.sequence == before.sequence + 1


def test_a_roll_makes_the_end_a_place_to_trim_to() -> None:
    owner = Owner(syncs_each_commit=False)
    owner.in_a_thread(owner.append())
    end = owner.opened.tail.position
    job = Roll(owner, owner.opened)
    assert job.begin() is None
    owner.in_a_thread(job)
    assert owner.opened.active.segment.base == end == owner.opened.durable
