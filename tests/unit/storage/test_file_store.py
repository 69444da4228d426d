"""storage/file_store.py: all logs of a broker, and what they share."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest
import structlog

from storage.disk import LocalDisk
from storage.errors import DiskFailed, DiskFull
from storage.file_store import FileLogStore, FolderState
from storage.folders import arrange
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import append, contents, flat, save_twice, small_store
from tests.support.recording_disk import RecordingDisk
from tests.support.waiting import until

ROOT = Path("/data/below/that")


async def test_a_log_that_is_not_acquired_touches_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk(RecordingDisk())
    threads = threading.active_count()
    store = FileLogStore(ROOT, disk)
    logs = [store.log(f"entity {number}", partition) for number in range(700) for partition in range(16)]
    assert store.log("entity 3", 5) is logs[3 * 16 + 5]
    assert not disk.calls and threading.active_count() == threads
    await store.close()


async def test_entities_of_any_name_have_logs_of_their_own(tmp_path: Path) -> None:
    names = [
        "orders",
        "orders/subscriptions/a",
        "..",
        ".",
        "ü #%",
        "orders%2Fx",
        "a" * 184,
        "lock",
        "x#deleted",
    ]
    store = small_store(tmp_path / "made" / "on the way")
    for name in names:
        for partition in (0, 65_535):
            log = store.log(name, partition)
            await log.acquire()
            await append(log, f"{name} {partition}".encode())
            await log.close()
    assert await store.entities() == sorted(names)
    for name in names:
        for partition in (0, 65_535):
            log = store.log(name, partition)
            await log.acquire()
            assert flat(await contents(log)) == [f"{name} {partition}".encode()]
            await log.close()
    await store.close()


def files_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


async def test_which_partitions_have_a_log_is_known_without_opening_or_making_one(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    for partition in (300, 0, 7):
        log = store.log("orders", partition)
        await log.acquire()
        await log.close()
    (tmp_path / "logs" / "orders" / "lost+found").mkdir()
    files = files_below(tmp_path)
    assert (await store.partitions("orders"), await store.partitions("nowhere")) == ([0, 7, 300], [])
    await store.close()
    again = small_store(tmp_path)  # has not looked at its folder yet
    assert await again.partitions("orders") == [0, 7, 300]
    await again.close()
    assert files_below(tmp_path) == files


async def test_a_disk_that_does_not_say_which_partitions_have_a_log_is_an_error() -> None:
    disk = FaultyDisk(RecordingDisk())
    store = small_store(ROOT, disk)
    disk.fail("names")
    with pytest.raises(DiskFailed, match="Input/output error"):
        await store.partitions("orders")
    await store.close()


@pytest.mark.parametrize("name", ["", "a" * 185, "ü" * 93, "/" * 100])
async def test_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    store = small_store(ROOT, RecordingDisk())
    with pytest.raises(ValueError, match="identifier"):
        store.log(name, 0)
    await store.close()


async def test_a_deleted_entity_is_gone_and_can_be_made_again() -> None:
    disk = RecordingDisk()
    store = small_store(ROOT, disk)
    for partition in range(3):
        log = store.log("orders", partition)
        await log.acquire()
        await append(log, b"old")
        await log.close()
    await store.delete("orders")
    await store.delete("orders")
    await store.delete("never there")
    assert await store.entities() == []
    assert disk.after_power_cut().names(ROOT / "logs") in ([], ["orders#deleted"])
    log = store.log("orders", 0)
    assert await log.acquire() == 1
    assert flat(await contents(log)) == []
    await log.close()
    await store.close()


async def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start() -> None:
    disk = FaultyDisk(RecordingDisk())
    store = small_store(ROOT, disk)
    log = store.log("orders", 0)
    await log.acquire()
    await log.close()
    disk.fail("remove_tree", nth=2)
    with pytest.raises(DiskFailed):
        await store.delete("orders")
    assert disk.names(ROOT / "logs") == ["orders#deleted"]
    assert await store.entities() == []
    await store.close()
    store = small_store(ROOT, disk)
    assert await store.entities() == []
    assert disk.names(ROOT / "logs") == []
    await store.close()


async def test_a_folder_is_used_by_one_store_at_a_time(tmp_path: Path) -> None:
    first, second = small_store(tmp_path), small_store(tmp_path)
    await first.log("orders", 0).acquire()
    with pytest.raises(DiskFailed, match="another process"):
        await second.log("orders", 0).acquire()
    await first.log("orders", 0).close()
    await first.close()
    await second.log("orders", 0).acquire()
    await second.log("orders", 0).close()
    await second.close()


async def test_a_start_that_failed_is_tried_again_at_the_next_acquire() -> None:
    disk = FaultyDisk(RecordingDisk())
    store = small_store(ROOT, disk)
    disk.fail("lock")
    with pytest.raises(DiskFailed):
        await store.log("orders", 0).acquire()
    await store.log("orders", 0).acquire()
    await store.log("orders", 0).close()
    await store.close()


@pytest.mark.parametrize("queued", [False, True])
async def test_with_an_interval_commits_are_synced_soon_after(queued: bool) -> None:
    disk = RecordingDisk(queued=queued)
    store = small_store(ROOT, disk, fsync="interval", fsync_interval_ms=20)
    logs = [store.log("orders", partition) for partition in range(3)]
    for log in logs:
        await log.acquire()
    all_synced, loop = asyncio.Event(), asyncio.get_running_loop()
    syncs = 0

    def count() -> None:
        nonlocal syncs
        syncs += 1
        if syncs == len(logs):
            loop.call_soon_threadsafe(all_synced.set)

    disk.before_sync = count
    await asyncio.gather(*(append(log, b"soon durable") for log in logs))
    await asyncio.wait_for(all_synced.wait(), 10)
    crashed = disk.after_power_cut()
    disk.before_sync = None
    for log in logs:
        await log.close()
    await store.close()
    store = small_store(ROOT, crashed)
    for partition in range(3):
        log = store.log("orders", partition)
        await log.acquire()
        assert flat(await contents(log)) == [b"soon durable"]
        await log.close()
    await store.close()


async def test_never_means_that_commits_are_synced_only_when_the_log_is_closed() -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    store = small_store(ROOT, disk, fsync="never")
    log = store.log("orders", 0)
    await log.acquire()
    synced = disk.calls["sync"]
    for _ in range(20):
        await append(log, b"x" * 10_000)
    assert disk.calls["sync"] == synced
    await log.close()
    assert disk.calls["sync"] == synced + 2, "the log, and what its extent says of it"
    await store.close()


async def test_a_store_that_starts_on_a_full_disk_refuses_sends_until_its_reserve_is_there() -> None:
    disk = RecordingDisk(capacity_bytes=2_000)
    store = small_store(ROOT, disk, reserve_bytes=10_000, reserve_retry_ms=1)
    states = [store.state]
    log = store.log("orders", 0)
    await log.acquire()
    states.append(store.state)
    assert states == [FolderState.MISSING, FolderState.FULL]
    with pytest.raises(DiskFull):
        await append(log, b"a send")
    await append(log, b"a settlement", urgent=True)
    disk.capacity_bytes = 50_000
    async with asyncio.timeout(10):
        while True:  # the reserve is retried every millisecond
            try:
                await append(log, b"a send")
                break
            except DiskFull:
                await asyncio.sleep(0.001)
    assert flat(await contents(log)) == [b"a settlement", b"a send"]
    await log.close()
    await store.close()


async def test_room_is_kept_for_partitions_that_nobody_has_opened_until_their_entity_is_deleted() -> None:
    """Symptom: after a restart, another queue could take the room that draining the first one needed."""
    disk = RecordingDisk(capacity_bytes=1_000_000)
    store = small_store(ROOT, disk)
    log = store.log("bills", 0)
    await log.acquire()
    store.keep_room("orders", {0: (600_000, 100_000), 7: (100_000, 150_000)})
    with pytest.raises(DiskFull):
        await append(log, b"x" * 200_000)
    store.keep_room("orders", {0: (400_000, 100_000)})
    await append(log, b"x" * 200_000)
    await store.delete("orders")
    await append(log, b"x" * 500_000)
    await log.close()
    await store.close()


async def test_the_owner_of_an_open_log_alone_says_what_it_needs() -> None:
    store = small_store(ROOT, RecordingDisk(capacity_bytes=1_000_000))
    log = store.log("orders", 0)
    await log.acquire()
    store.keep_room("orders", {0: (2_000_000, 0)})
    await append(log, b"x")
    log.keep_room(2_000_000, 0)
    with pytest.raises(DiskFull):
        await append(log, b"x")
    await log.close()
    store.keep_room("orders", {0: (1_000, 0)})
    await log.acquire()
    await append(log, b"x")
    await log.close()
    await store.close()


async def test_closing_releases_threads_and_files() -> None:
    disk = RecordingDisk(queued=True)
    threads = threading.active_count()
    store = small_store(ROOT, disk, reserve_bytes=100)
    log = store.log("orders", 0)
    await log.acquire()
    position = await append(log, b"x")
    await log.fetch([position])
    await log.close()
    await store.close()
    assert (threading.active_count(), disk.open_files) == (threads, 0)


async def test_the_death_of_the_task_that_syncs_is_told_to_the_owner() -> None:
    deaths: list[tuple[str, str]] = []
    dead = asyncio.Event()

    def failed(name: str, error: BaseException) -> None:
        deaths.append((name, str(error)))
        dead.set()

    store = small_store(
        ROOT, RecordingDisk(queued=True), fsync="interval", fsync_interval_ms=1, failed=failed
    )
    log = store.log("orders", 0)
    await log.acquire()

    async def broken() -> None:
        raise RuntimeError("unforeseen")

    log.sync_if_open = broken  # type: ignore[method-assign]
    await append(log, b"wants to be synced")
    await asyncio.wait_for(dead.wait(), 10)
    assert deaths == [("storage-sync", "unforeseen")]
    del log.sync_if_open
    await log.close()
    await store.close()


async def test_a_log_that_hangs_does_not_delay_the_syncs_of_the_others(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    store = small_store(tmp_path, disk, fsync="interval", fsync_interval_ms=1)
    hanging, other = logs = [store.log("orders", partition) for partition in range(2)]
    for log in logs:
        await log.acquire()
    disk.hang("sync", "/0000/")
    await append(hanging, b"one")
    await until(lambda: disk.held == 1)
    before = disk.calls["sync"]
    for round_number in range(1, 4):
        await append(other, b"one")
        await until(partial(lambda syncs: disk.calls["sync"] >= syncs, before + round_number))
    disk.release()
    for log in logs:
        await log.close()
    await store.close()


async def test_a_trimmed_file_that_cannot_be_removed_is_reported_once_and_removed_later() -> None:
    inner = RecordingDisk()
    disk = FaultyDisk(inner)
    store = small_store(ROOT, disk, segment_bytes_max=700, tidy_delay_ms=1)
    log = store.log("orders", 0)
    await log.acquire()
    folder = ROOT / "logs" / "orders" / "0000"
    disk.fail("remove", errno.EIO, times=1_000_000, path_part=".segment")
    with structlog.testing.capture_logs() as lines:
        for number in range(30):
            await append(log, b"x" * 100)
            if number % 5 == 4:
                await save_twice(log)
                await log.trim(log.end)
    assert log.start > 0 and len(inner.names(folder)) > 10
    assert [line["event"] for line in lines if line["log_level"] != "debug"] == ["log.not_trimmed"], (
        "said once"
    )
    assert len(flat(await contents(log))) < 3, "the log goes on, from behind what was trimmed"
    tries = disk.calls["remove"]
    await until(lambda: disk.calls["remove"] >= tries + 3)
    disk.heal()
    await until(lambda: len([name for name in inner.names(folder) if name.endswith(".segment")]) <= 2)
    await log.close()
    await store.close()


async def test_a_copy_in_the_place_of_a_folder_is_not_taken_for_it(tmp_path: Path) -> None:
    """Symptom: it was locked without a word. Logs that were open went on in the files that had been moved
    away, and what was opened later came from the copy."""
    folder, away = tmp_path / "data", tmp_path / "away"
    first, *_ = arrange(LocalDisk(), [folder, tmp_path / "other"])
    store = small_store(folder, identity=first.id)
    await store.entities()
    store.keep_looking(20)
    folder.rename(away)
    shutil.copytree(away, folder)
    await until(lambda: store.state is FolderState.MISSING)
    shutil.rmtree(folder)
    away.rename(folder)
    await until(lambda: store.state is FolderState.OK)
    await store.close()


async def test_a_folder_mounted_again_as_another_one_for_the_system_is_locked_anew(tmp_path: Path) -> None:
    folder, away = tmp_path / "data", tmp_path / "away"
    devices: dict[int, int] = {}
    device = 0

    class Mounted(LocalDisk):
        def lock(self, path: Path) -> int:
            fd = super().lock(path)
            devices[fd] = device
            return fd

        def identity(self, fd: int) -> tuple[int, int]:
            return devices.get(fd, device), 7

    disk = Mounted()
    first, *_ = arrange(disk, [folder, tmp_path / "other"])
    store = small_store(folder, identity=first.id, disk=disk)
    await store.entities()
    store.keep_looking(20)
    assert store.state is FolderState.OK
    shutil.copytree(folder, away)
    shutil.rmtree(folder)
    await until(lambda: store.state is FolderState.MISSING)
    device = 1
    away.rename(folder)
    await until(lambda: store.state is FolderState.OK)
    with pytest.raises(BlockingIOError):
        disk.lock(folder / "lock")
    await store.close()
    disk.close(disk.lock(folder / "lock"))
