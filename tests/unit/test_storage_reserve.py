"""storage/reserve.py: room that is given up when the disk is full."""

from __future__ import annotations

from pathlib import Path

from storage.reserve import Reserve
from tests.support.faulty_disk import FaultyDisk
from tests.support.recording_disk import RecordingDisk

PATH = Path("/reserve")


def test_it_takes_room_gives_it_up_and_takes_it_again_when_there_is_some() -> None:
    disk = RecordingDisk(capacity_bytes=1_000)
    reserve = Reserve(disk, PATH, 800)
    assert not reserve.held
    assert reserve.hold() and reserve.held
    assert len(disk.contents(PATH)) == 800
    reserve.release()
    reserve.release()
    assert not reserve.held and disk.names(Path("/")) == []
    disk.capacity_bytes = 700
    assert not reserve.hold() and disk.names(Path("/")) == [], "half a reserve is none"
    disk.capacity_bytes = 800
    assert reserve.hold()
    assert disk.open_files == 0


def test_one_that_was_held_before_a_restart_is_kept_as_it_is() -> None:
    disk = FaultyDisk(RecordingDisk())
    Reserve(disk, PATH, 800).hold()
    writes = disk.calls["write"]
    assert Reserve(disk, PATH, 800).hold()
    assert disk.calls["write"] == writes
    assert Reserve(disk, PATH, 900).hold(), "another size is another reserve"
    assert disk.calls["write"] == writes + 1


def test_without_a_size_it_is_held_and_touches_nothing() -> None:
    disk = RecordingDisk()
    reserve = Reserve(disk, PATH, 0)
    assert reserve.held and reserve.hold()
    reserve.release()
    assert reserve.held and disk.names(Path("/")) == []
