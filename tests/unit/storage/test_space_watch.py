"""storage/space_watch.py: when a data folder counts as full."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import space_watch
from storage.errors import DiskFull
from storage.file_store import FileLogStore, FolderState
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import append, small_store
from tests.support.recording_disk import RecordingDisk
from tests.support.waiting import until

ROOT = Path("/data/below/that")


async def test_a_folder_counts_as_full_until_its_disk_has_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_watch, "FULL_DISK_LOOK_S", 0.005)
    inner = RecordingDisk(capacity_bytes=200_000)
    disk = FaultyDisk(inner)
    store = small_store(ROOT, disk)
    log = store.log("orders", 0)
    await log.acquire()
    for _ in range(2):
        with pytest.raises(DiskFull):
            while True:
                await append(log, b"x" * 10_000)
        looked = disk.calls["space"]
        await until(lambda: disk.calls["space"] >= looked + 5)  # noqa: B023
        assert store.state is FolderState.FULL, "nothing has come free"
        inner.capacity_bytes = (inner.capacity_bytes or 0) + 500_000
        # Symptom: it counted as full for another minute.
        await until(lambda: store.state is FolderState.OK)
        looked = disk.calls["space"]
        await append(log, b"x")
        assert disk.calls["space"] - looked <= 2, "it is not looked at any more"
    await log.close()
    await store.close()


async def test_room_that_comes_free_before_the_first_look_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symptom: after a disk had been drained or enlarged at once, the folder counted as full for a minute."""
    monkeypatch.setattr(space_watch, "FULL_DISK_LOOK_S", 0.005)
    disk = RecordingDisk(capacity_bytes=200_000)
    store = small_store(ROOT, disk)
    log = store.log("orders", 0)
    await log.acquire()
    for _ in range(2):  # the first time, nobody looks yet; then, the next look is about to come
        with pytest.raises(DiskFull):
            while True:
                await append(log, b"x" * 10_000)
        disk.capacity_bytes = (disk.capacity_bytes or 0) + 500_000
        assert shown(store) is FolderState.FULL
        await until(lambda: shown(store) is FolderState.OK)
    await log.close()
    await store.close()


async def test_what_is_free_when_a_large_message_is_refused_has_not_come_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(space_watch, "FULL_DISK_LOOK_S", 0.005)
    disk = FaultyDisk(RecordingDisk(capacity_bytes=1_000_000))
    store = small_store(ROOT, disk)
    log = store.log("orders", 0)
    await log.acquire()
    with pytest.raises(DiskFull):
        await append(log, b"x" * 1_000_000)
    looked = disk.calls["space"]
    await until(lambda: disk.calls["space"] >= looked + 5)
    assert shown(store) is FolderState.FULL, "a message like that is refused again"
    await log.close()
    await store.close()


def shown(store: FileLogStore) -> FolderState:
    return store.state


async def test_a_disk_that_is_full_at_the_start_is_known_to_be_before_anybody_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(space_watch, "FULL_DISK_LOOK_S", 0.005)
    disk = RecordingDisk(capacity_bytes=1_000_000)
    store = small_store(ROOT, disk, reserve_bytes=80_000)
    await store.entities()
    assert shown(store) is FolderState.OK
    store.keep_room("orders", {0: (850_000, 20_000)})
    assert shown(store) is FolderState.FULL, "all but 10 KB are for draining"
    disk.capacity_bytes = 2_000_000
    await until(lambda: shown(store) is FolderState.OK)
    await store.close()


async def test_a_start_with_the_needs_known_before_the_folder_is_used_shows_the_same() -> None:
    store = small_store(ROOT, RecordingDisk(capacity_bytes=1_000_000), reserve_bytes=80_000)
    store.keep_room("orders", {0: (850_000, 20_000)})
    assert shown(store) is FolderState.MISSING
    await store.entities()
    assert shown(store) is FolderState.FULL
    await store.close()


async def test_a_settlement_on_a_full_disk_does_not_make_the_folder_count_as_full_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(space_watch, "FULL_DISK_LOOK_S", 0.005)
    store = small_store(ROOT, RecordingDisk(capacity_bytes=1_000_000))
    log = store.log("orders", 0)
    await log.acquire()
    told: list[bool] = []
    log.on_full = lambda: told.append(True)
    log.keep_room(2_000_000, 0)
    await append(log, b"x", urgent=True)
    assert shown(store) is FolderState.FULL
    await until(lambda: bool(told))
    log.keep_room(0, 0)
    assert shown(store) is FolderState.OK
    await log.close()
    await store.close()
