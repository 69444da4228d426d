"""storage/full_disk.py: a reserve that is released when the disk is full."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.errors import DiskFull
from storage.full_disk import Reserve, Reserves
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


def test_upkeep_has_a_reserve_of_its_own_that_comes_back_first() -> None:
    disk = RecordingDisk(capacity_bytes=2_000)
    reserves = Reserves(disk, Path("/"), 800)
    assert not reserves.held and reserves.held_bytes == 0
    assert reserves.hold() and reserves.held_bytes == 1_200
    reserves.settlements.release()
    assert not reserves.held and reserves.upkeep.held and reserves.held_bytes == 400
    reserves.release()
    assert reserves.upkeep.given_up and reserves.held_bytes == 0 and disk.names(Path("/")) == []
    disk.capacity_bytes = 1_100
    assert not reserves.hold()
    assert reserves.upkeep.held and not reserves.upkeep.given_up
    disk.capacity_bytes = 1_200
    assert reserves.hold()


def test_what_grows_may_use_a_fraction_of_the_reserve_each_time_it_is_released() -> None:
    disk = RecordingDisk(capacity_bytes=2_000)
    reserves = Reserves(disk, Path("/"), 800)
    reserves.hold()
    release = reserves.spare_for(urgent=True, frees=False, grows_by=101)
    assert release is not None
    with pytest.raises(DiskFull):
        release()
    assert not reserves.settlements.held, "that the disk is full is known from now on"
    assert reserves.take_growth(30, 5) == 3
    assert reserves.take_growth(11) == 0 and reserves.take_growth(10) == 1
    assert reserves.take_growth(1) == 0
    assert reserves.hold()
    release = reserves.spare_for(urgent=True, frees=False, grows_by=100)
    assert release is not None
    release()
    assert reserves.take_growth(1) == 0, "the whole fraction went to one commit"
    for grows_by, urgent in ((0, True), (0, False)):
        spare = reserves.spare_for(urgent=urgent, frees=not urgent, grows_by=grows_by)
        assert spare is not None
        spare()


async def test_a_commit_that_grows_is_refused_if_its_fraction_is_used_up() -> None:
    reserves = Reserves(RecordingDisk(), Path("/"), 800)
    with ThreadPoolExecutor(1) as executor:
        for grows_by in (60, 40, 0):
            await reserves.admit(Path("/log"), executor, urgent=True, grows_by=grows_by)
        with pytest.raises(DiskFull):
            await reserves.admit(Path("/log"), executor, urgent=True, grows_by=1)


def test_it_is_not_tried_to_take_room_that_is_not_there() -> None:
    disk = FaultyDisk(RecordingDisk(capacity_bytes=799))
    assert not Reserve(disk, PATH, 800).hold()
    assert disk.calls["write"] == 0, "for a moment it would be missing to a settlement"
