"""Extents: what a log is known to hold, in two slots of which one may be damaged."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from storage import extent as extents
from storage.errors import CommitFailed, CorruptRecord, UnknownFormat
from storage.extent import SLOT_BYTES, Extent, ExtentFile
from storage.log import Position
from storage.record import crc32c
from tests.support.faulty_disk import FaultyDisk
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/extents")
FIRST = Extent(Position(0), Position(0), 1, Position(0), None, 1, b"s" * 16)


def file_on(disk: RecordingDisk | FaultyDisk, entity: str = "orders#1", partition: int = 3) -> ExtentFile:
    return ExtentFile(disk, ROOT, "orders", entity, partition)


def acquired(disk: RecordingDisk | FaultyDisk) -> ExtentFile:
    if isinstance(disk, RecordingDisk):
        disk.make_directory(ROOT)
        disk.sync_directory(ROOT.parent)
    extent = file_on(disk)
    extent.acquired([Position(0)], FIRST)
    return extent


def test_a_log_without_an_extent_has_none() -> None:
    disk = RecordingDisk()
    disk.make_directory(ROOT)
    assert file_on(disk).read() is None and file_on(disk).slots() is None


def test_what_becomes_known_of_a_log_is_there_after_a_power_cut() -> None:
    disk = RecordingDisk()
    extent = acquired(disk)
    extent.rolled(Position(500))
    extent.checkpointed(Position(700), Position(600))
    extent.rolled(Position(900))
    extent.reached(Position(950))
    extent.reached(Position(940))  # it never goes back
    extent.trimmed(Position(500))
    expected = Extent(Position(500), Position(900), 1, Position(950), Position(700), 2, b"s" * 16)
    assert file_on(disk.after_power_cut()).read() == expected
    assert extent.durable == 950


@pytest.mark.parametrize("is_late", [False, True])
async def test_the_end_of_a_log_that_waits_long_to_be_closed_stays_unrecorded(
    is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: on a slow disk, hundreds of logs that were closed at once took so long that some counted as
    hanging."""
    monkeypatch.setattr(extents, "CLOSED_WITHIN_S", 0.0)
    extent = acquired(RecordingDisk())
    with extent.closing() as record_end:
        if is_late:
            passed = asyncio.Event()
            asyncio.get_running_loop().call_later(0.001, passed.set)
            await asyncio.wait_for(passed.wait(), 20)
        record_end(Position(100))
    assert extent.durable == (0 if is_late else 100)


async def test_a_log_that_is_closed_makes_no_new_file_for_its_extent() -> None:
    disk = RecordingDisk()
    acquired(disk)
    faulty = FaultyDisk(disk)
    extent = acquired(faulty)
    faulty.fail("write", times=2)
    with pytest.raises(CommitFailed):
        extent.reached(Position(50))
    with extent.closing() as record_end:
        record_end(Position(100))
    found = file_on(disk).read()
    assert extent.durable == 0 and found is not None and found.durable == 0


@pytest.mark.parametrize("slot", [0, 1])
def test_one_damaged_slot_costs_a_report_and_is_repaired_by_the_next_change(slot: int) -> None:
    disk = RecordingDisk()
    acquired(disk).reached(Position(100))
    path = file_on(disk).path
    disk.contents(path)[slot * SLOT_BYTES + 30] ^= 1
    again = file_on(disk)
    with capture_logs() as lines:
        known = again.read()
    assert known is not None and known.durable == 100
    assert [(line["event"], line["offset"]) for line in lines] == [("extent.slot_damaged", slot * SLOT_BYTES)]
    again.acquired([Position(0)], known._replace(epoch=2))
    slots = file_on(disk).slots()
    assert slots is not None and None not in slots


def test_two_damaged_slots_are_damage() -> None:
    disk = RecordingDisk()
    extent = acquired(disk)
    for slot in (0, 1):
        disk.contents(extent.path)[slot * SLOT_BYTES + 30] ^= 1
    with pytest.raises(CorruptRecord, match="both slots"):
        file_on(disk).read()
    assert file_on(disk).slots() == [None, None]


def test_the_extent_of_another_log_is_none_of_this_one() -> None:
    disk = RecordingDisk()
    acquired(disk)
    with pytest.raises(CorruptRecord):
        file_on(disk, entity="orders#2").read()


def test_a_later_format_is_refused_as_such() -> None:
    disk = RecordingDisk()
    data = disk.contents(acquired(disk).path)
    for at in (0, SLOT_BYTES):
        struct.pack_into("<H", data, at + 12, 2)
        struct.pack_into("<I", data, at + 8, crc32c(bytes(data[at + 12 : at + SLOT_BYTES])))
    with pytest.raises(UnknownFormat, match="version 2"):
        file_on(disk).read()


def test_after_a_failed_sync_a_new_file_is_written() -> None:
    inner = RecordingDisk()
    inner.make_directory(ROOT)
    disk = FaultyDisk(inner)
    extent = file_on(disk)
    extent.acquired([Position(0)], FIRST)
    disk.fail("sync")
    with pytest.raises(CommitFailed):
        extent.reached(Position(100))
    assert extent.durable == 0, "it is not known to be in the file"
    created = disk.calls["create"]
    extent.reached(Position(100))
    assert disk.calls["create"] == created + 1 and extent.durable == 100


def test_what_is_known_already_is_not_written_again() -> None:
    inner = RecordingDisk()
    inner.make_directory(ROOT)
    disk = FaultyDisk(inner)
    extent = file_on(disk)
    extent.acquired([Position(0)], FIRST)
    extent.reached(Position(100))
    writes = disk.calls["write"]
    extent.reached(Position(50))
    assert disk.calls["write"] == writes
