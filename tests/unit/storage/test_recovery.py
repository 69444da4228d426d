"""storage/recovery.py: which files make up a log, and how the log is acquired. tests/crash covers damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import CorruptRecord, Fenced
from storage.log import Position
from storage.record import after
from storage.recovery import REWRITTEN_BYTES_MAX, OpenLog, acquire_log, clear_up, reacquire_log
from storage.segment import ActiveSegment
from tests.support.faulty_disk import FaultyDisk
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/")


def acquire(
    disk: RecordingDisk | FaultyDisk, epoch: int | None = None, *, entity: str = "e", partition: int = 1
) -> OpenLog:
    log = acquire_log(disk, ROOT, entity, partition, epoch, b"s" * 16, REWRITTEN_BYTES_MAX)
    clear_up(disk, log)
    return log


def write(log: OpenLog, body: bytes) -> None:
    header = log.codec.header([body], log.tail, log.durable, log.epoch)
    log.active.write([header, body], 1 << 40)
    log.active.sync()
    log.tail = after(log.tail.position, log.tail.sequence, header, len(body))
    log.durable = log.tail.position


def roll(disk: RecordingDisk, log: OpenLog) -> None:
    header = log.active.segment.header._replace(epoch=log.epoch, chain=log.tail)
    log.active.close()
    log.active = ActiveSegment.begin(disk, ROOT, header)
    log.segments.append(log.active.segment)


def names(disk: RecordingDisk) -> list[str]:
    return sorted(disk.names(ROOT))


def test_each_acquisition_has_a_higher_epoch_or_the_one_given() -> None:
    disk = RecordingDisk()
    assert acquire(disk).epoch == 1
    assert acquire(disk).epoch == 2
    assert acquire(disk, 10).epoch == 10
    for epoch in (-1, 0, 10):
        with pytest.raises(Fenced):
            acquire(disk, epoch)
    assert acquire(disk).epoch == 11
    with pytest.raises(Fenced):
        acquire(RecordingDisk(), 0)


def test_a_refused_acquisition_changes_nothing() -> None:
    disk = RecordingDisk()
    write(acquire(disk), b"one")
    before = names(disk)
    with pytest.raises(Fenced):
        acquire(disk, 1)
    assert names(disk) == before


def test_many_acquisitions_of_a_small_log_leave_one_file() -> None:
    disk = RecordingDisk()
    for number in range(20):
        log = acquire(disk)
        write(log, b"commit %d" % number)
    assert names(disk) == ["0000000000000000-00000014.segment"]
    assert acquire(disk).tail.sequence == 20


def test_an_acquisition_of_a_large_segment_copies_only_what_may_not_be_durable() -> None:
    disk = RecordingDisk()
    log = acquire(disk)
    write(log, b"x" * REWRITTEN_BYTES_MAX)
    last = log.tail.position
    write(log, b"the last")
    again = acquire(disk)
    assert [segment.base for segment in again.segments] == [0, last]
    assert again.tail == log.tail
    assert again.active.used == 256 + 64 + len(b"the last")
    assert len(disk.contents(again.segments[0].path)) == 256 + last, "what the copy makes void is cut off"


def test_what_lower_epochs_hold_from_a_segments_base_on_is_void_and_removed() -> None:
    disk = RecordingDisk()
    log = acquire(disk)
    write(log, b"one")
    tail = log.tail
    roll(disk, log)
    write(log, b"to be void")
    log.segments.pop()
    log.tail, log.durable = tail, tail.position
    reacquire_log(disk, log, None, REWRITTEN_BYTES_MAX)
    clear_up(disk, log)
    assert names(disk) == ["0000000000000000-00000002.segment"]
    assert acquire(disk).tail == tail


def test_void_segments_that_cannot_be_removed_stay_void() -> None:
    disk = RecordingDisk()
    log = acquire(disk)
    write(log, b"one")
    faulty = FaultyDisk(disk)
    faulty.fail("remove", times=-1)
    again = acquire(faulty)
    assert [path.name for path in again.strays] == ["0000000000000000-00000001.segment"]
    write(again, b"two")
    third = acquire(disk)
    assert third.tail == again.tail
    assert len(names(disk)) == 1 and not third.strays


def test_files_that_were_never_published_are_removed() -> None:
    disk = RecordingDisk()
    acquire(disk)
    disk.close(disk.create(ROOT / "0000000000000000-00000009.segment.tmp"))
    disk.close(disk.create(ROOT / "0000000000000000.checkpoint.tmp"))
    acquire(disk)
    assert names(disk) == ["0000000000000000-00000002.segment"]


def test_a_segment_of_another_log_is_refused() -> None:
    disk = RecordingDisk()
    acquire(disk)
    with pytest.raises(CorruptRecord, match="partition 1"):
        acquire(disk, partition=2)
    with pytest.raises(CorruptRecord, match="'e'"):
        acquire(disk, entity="f")
    disk.rename(ROOT / "0000000000000000-00000001.segment", ROOT / "0000000000000001-00000001.segment")
    with pytest.raises(CorruptRecord, match="0000000000000000-00000001"):
        acquire(disk)


def test_a_checkpoint_without_a_segment_is_refused() -> None:
    disk = RecordingDisk()
    disk.close(disk.create(ROOT / "0000000000000000.checkpoint"))
    with pytest.raises(CorruptRecord, match="no segment"):
        acquire(disk)


def test_a_position_is_the_same_however_the_log_is_cut_into_files() -> None:
    disk = RecordingDisk()
    log = acquire(disk)
    for _ in range(3):
        write(log, b"x" * 100)
        roll(disk, log)
    assert [segment.base for segment in log.segments] == [0, 164, 328, 492]
    assert acquire(disk).tail.position == Position(492)
