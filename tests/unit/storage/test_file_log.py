"""storage/file_log.py: a log as its owner sees it. tests/crash covers faults and crashes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from storage import space_watch
from storage.disk import LocalDisk
from storage.errors import CommitFailed, DiskFailed, DiskFull, Fenced
from storage.file_log import DEAD_BYTES_MIN, FileLog
from storage.file_store import FolderState
from storage.log import FRAME_HEADER_BYTES, Commit, Log, Position
from storage.open_segments import OpenSegments
from storage.recent import RECENT_MAX, RecentPlaces
from storage.segment import SEGMENT_HEADER_BYTES, SEGMENT_SUFFIX, ActiveSegment
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import (
    ENTITY,
    acquired,
    append,
    checkpoint_of,
    contents,
    flat,
    no_more_waits,
    save_twice,
    small_store,
)
from tests.support.recording_disk import RecordingDisk
from tests.support.waiting import until

ROOT = Path("/data")
LOG = ROOT / "logs" / "orders%231" / "0000"


@pytest.mark.parametrize("loop_disk", ["local", "threads", "queue"])
async def test_what_is_appended_is_replayed_and_fetched_also_after_a_restart(
    tmp_path: Path, loop_disk: str
) -> None:
    root, disk = (
        (tmp_path, None) if loop_disk == "local" else (ROOT, RecordingDisk(queued=loop_disk == "queue"))
    )
    bodies = [[b"a"], [b"b", b"", b"c" * 1_000], [b"d" * 300_000]]
    async with acquired(root, disk) as log:
        assert (log.start, log.end, list(log.trim_points)) == (0, 0, [])
        positions = [await append(log, *commit) for commit in bodies]
        assert await contents(log) == bodies
        assert await contents(log, positions[1]) == bodies[1:]
        assert await contents(log, log.end) == []
        end = log.end
    async with acquired(root, disk) as log:
        assert log.end == end == positions[-1] + FRAME_HEADER_BYTES + 8 + 300_000
        assert await contents(log) == bodies
        [frame] = await log.fetch([positions[1]])
        assert [bytes(record.body) for record in frame.records()] == bodies[1]


async def test_a_body_is_where_the_commit_said_it_would_be() -> None:
    async with acquired(ROOT, RecordingDisk()) as log:
        await append(log, b"first")
        commit = log.begin()
        offset = commit.add(7, [b"head", b"tail"], version=3)
        assert commit.start == log.end
        await log.append(commit)
        [frame] = await log.fetch([commit.start])
        assert frame.part(offset, 8) == b"headtail"
        [record] = frame.records()
        assert (record.kind, record.version, record.offset) == (7, 3, offset)


async def test_a_log_rolls_before_a_frame_too_many_and_takes_one_larger_than_a_segment() -> None:
    disk = RecordingDisk()
    async with acquired(ROOT, disk, segment_bytes_max=1_000) as log:
        starts = [await append(log, b"x" * size) for size in (600, 600, 5_000, 10, 10)]
        assert list(log.trim_points) == [starts[1], starts[2], starts[3]]
        assert len(flat(await contents(log))) == 5
    assert len(disk.names(LOG)) == 4


async def test_trimming_gives_back_whole_segments_that_no_checkpoint_needs() -> None:
    disk = RecordingDisk()
    async with acquired(ROOT, disk, segment_bytes_max=700) as log:
        positions = [await append(log, b"x" * 100) for _ in range(10)]
        await log.trim(log.end)
        assert log.start == 0, "there is no checkpoint to replay from yet"
        await log.save_checkpoint(checkpoint_of(positions[6], b"state"))
        await log.trim(log.end)
        assert log.start == 0, "there is one checkpoint, and the log has to replace it if it is damaged"
        await log.save_checkpoint(checkpoint_of(log.end, b"a later state"))
        await log.trim(positions[3])
        assert log.start == positions[2], "two frames to a segment"
        await log.trim(log.end)
        assert log.start == positions[6]
        assert await log.load_checkpoint() == checkpoint_of(log.end, b"a later state")
        assert len(await contents(log, positions[6])) == 4
        await log.trim(log.end)
    async with acquired(ROOT, disk) as log:
        assert log.start == positions[6]
        assert len(await contents(log)) == 4


async def test_an_active_segment_that_is_dead_as_a_whole_is_given_back() -> None:
    disk = RecordingDisk(queued=True)
    async with acquired(ROOT, disk) as log:
        await append(log, b"x" * DEAD_BYTES_MIN)
        await save_twice(log)
        await log.trim(log.end)
        assert log.start == log.end and list(log.trim_points) == []
        await append(log, b"later")
        await log.trim(log.end)
        assert flat(await contents(log)) == [b"later"]
    assert sum(len(disk.contents(LOG / name)) for name in disk.names(LOG)) < 2_000


@pytest.mark.parametrize("queued", [False, True])
async def test_a_segment_begun_on_demand_is_a_place_to_trim_to(queued: bool) -> None:
    disk = RecordingDisk(queued=queued)
    async with acquired(ROOT, disk) as log:
        await log.roll()
        assert list(log.trim_points) == [], "nothing was appended"
        await append(log, b"before")
        await log.roll()
        await log.roll()
        assert list(log.trim_points) == [log.end]
        position = await append(log, b"behind")
        await save_twice(log, position)
        await log.trim(position)
        assert log.start == position
    async with acquired(ROOT, disk) as log:
        assert flat(await contents(log)) == [b"behind"]


async def test_epochs_rise_and_one_that_does_not_is_fenced() -> None:
    disk = RecordingDisk()
    store = small_store(ROOT, disk)
    log = store.log(ENTITY, 0)
    assert [await log.acquire(), await log.acquire(), await log.acquire(7), await log.acquire()] == [
        1,
        2,
        7,
        8,
    ]
    with pytest.raises(Fenced):
        await log.acquire(8)
    await log.close()
    await store.close()


@pytest.mark.parametrize("behind", [0, 5, RECENT_MAX + 5])
async def test_recovery_reads_on_from_a_checkpoint_wherever_it_was_taken(behind: int) -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with acquired(ROOT, disk, fsync="never") as log:
        await append(log, b"x" * 3_000_000)
        position = log.end
        for _ in range(behind):
            await append(log, b"later")
        await log.save_checkpoint(checkpoint_of(position, b"state"))
        end = log.end
    reads = disk.calls["read"]
    async with acquired(ROOT, disk) as log:
        assert (log.end, await log.load_checkpoint()) == (end, checkpoint_of(position, b"state"))
        assert len(await contents(log, position)) == behind
        if behind < RECENT_MAX:
            assert disk.calls["read"] - reads <= 10, "not the whole log"


async def test_a_commit_that_has_begun_is_carried_to_its_end_when_its_caller_is_cancelled() -> None:
    disk = RecordingDisk()
    gate, met = threading.Event(), threading.Event()
    async with acquired(ROOT, disk) as log:
        await append(log, b"first")

        def hold() -> None:
            met.set()
            assert gate.wait(10)

        disk.before_sync = hold
        task = asyncio.create_task(append(log, b"second"))
        assert await asyncio.to_thread(met.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        end = log.end
        disk.before_sync = None
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log.end > end
        await append(log, b"third")
        assert flat(await contents(log)) == [b"first", b"second", b"third"]


async def test_appends_fetches_a_checkpoint_and_a_trim_may_be_under_way_at_once() -> None:
    async with acquired(ROOT, RecordingDisk(queued=True), segment_bytes_max=2_000) as log:
        positions = [await append(log, b"%d" % number) for number in range(50)]

        async def write() -> None:
            for number in range(50, 150):
                await append(log, b"%d" % number * 20)

        async def keep() -> None:
            for number in range(10):
                await log.save_checkpoint(checkpoint_of(log.end, b"%d" % number))
                await log.trim(positions[25])

        async def read() -> None:
            for number in range(25, 50):
                [frame] = await log.fetch([positions[number]])
                assert bytes(frame.records()[0].body) == b"%d" % number

        await asyncio.gather(write(), keep(), read(), read())
        assert flat(await contents(log))[-1] == b"149" * 20


async def test_a_background_sync_that_fails_shows_at_the_next_commit_and_keeps_what_can_still_be_read() -> (
    None
):
    disk = FaultyDisk(RecordingDisk(queued=True))
    store = small_store(ROOT, disk, fsync="never")
    log = store.log(ENTITY, 0)
    await log.acquire()
    await append(log, b"acknowledged")
    disk.fail("sync")
    await log.sync_if_open()
    with pytest.raises(CommitFailed):
        await append(log, b"refused")
    await log.acquire()
    assert flat(await contents(log)) == [b"acknowledged"]
    await log.sync_if_open()
    await log.close()
    await store.close()


async def test_the_interval_may_pass_while_a_log_is_closed(tmp_path: Path) -> None:
    """Symptom: the sync of the interval waited for the last sync of the log, found it closed then, and ended
    the broker."""
    disk = FaultyDisk(LocalDisk())
    store = small_store(tmp_path, disk, fsync="never")
    log = store.log("orders", 0)
    await log.acquire()
    await append(log, b"one")
    disk.hang("sync", ".segment")
    closing = asyncio.create_task(log.close())
    async with asyncio.timeout(20):
        while not disk.held:  # noqa: ASYNC110 (a thread counts)
            await asyncio.sleep(0.001)
    of_interval = asyncio.create_task(log.sync_if_open())
    await asyncio.sleep(0)
    disk.release()
    await closing
    await of_interval
    await store.close()


async def test_a_sync_that_was_asked_for_outlives_a_power_cut_and_a_failed_one_raises() -> None:
    inner = RecordingDisk(queued=True)
    disk = FaultyDisk(inner)
    async with acquired(ROOT, disk, fsync="never") as log:
        await append(log, b"synced")
        await log.sync()
        end = log.end
        await append(log, b"lost")
        crashed = inner.after_power_cut()
        disk.fail("sync")
        with pytest.raises(CommitFailed):
            await log.sync()
        with pytest.raises(CommitFailed):
            await log.sync()
    async with acquired(ROOT, crashed) as log:
        assert log.end == end and flat(await contents(log)) == [b"synced"]


async def test_a_checkpoint_waits_for_the_commits_it_stands_on() -> None:
    disk = RecordingDisk(queued=True)
    async with acquired(ROOT, disk, fsync="never") as log:
        await append(log, b"x" * 20_000)
        await append(log, b"unsynced")
        await log.save_checkpoint(checkpoint_of(log.end, b"state"))
        crashed = disk.after_power_cut()
        end = log.end
    async with acquired(ROOT, crashed) as log:
        assert log.end == end


async def test_a_disk_that_cannot_be_read_fails_acquire_replay_and_checkpoint_without_harm() -> None:
    disk = FaultyDisk(RecordingDisk())
    async with acquired(ROOT, disk) as log:
        await append(log, b"there")
        await log.save_checkpoint(checkpoint_of(log.end, b"state"))
        disk.fail("read")
        with pytest.raises(DiskFailed):
            await contents(log)
        disk.fail("names")
        with pytest.raises(DiskFailed):
            await log.load_checkpoint()
        disk.fail("read")
        with pytest.raises(DiskFailed):
            await log.acquire()
        await log.acquire()
        assert flat(await contents(log)) == [b"there"]


async def test_a_log_that_was_not_acquired_is_the_callers_mistake() -> None:
    store = small_store(ROOT, RecordingDisk())
    log = store.log(ENTITY, 0)
    await log.close()
    with pytest.raises(AssertionError):
        log.begin()
    with pytest.raises(AssertionError):
        print(log.end)
    await log.acquire()
    with pytest.raises(AssertionError):
        await log.append(log.begin())
    commit = log.begin()
    commit.add(1, [b"x"])
    commit.start = Position(5)
    with pytest.raises(AssertionError):
        await log.append(commit)
    await log.close()
    with pytest.raises(AssertionError):
        log.begin()
    await store.close()


# --- commits that nobody waits for --------------------------------------------------------------------------


def _commit(log: Log, body: bytes) -> Commit:
    commit = log.begin()
    commit.add(1, [body])
    return commit


@pytest.mark.parametrize("queued", [True, False])
async def test_a_commit_made_at_once_is_as_durable_as_any_and_has_the_file_for_itself(queued: bool) -> None:
    disk = RecordingDisk(queued=queued)
    async with acquired(ROOT, disk) as log:
        await append(log, b"first")
        ended = asyncio.get_running_loop().create_future()
        assert log.append_at_once(_commit(log, b"second"), no_more_waits(ended.set_result))
        end = log.end
        assert not log.append_at_once(_commit(log, b"too soon"), no_more_waits(ended.set_result)), (
            "one at a time"
        )
        assert log.end == end
        assert await asyncio.wait_for(ended, 20) is None and log.end > end
        await append(log, b"third")
        left = disk.after_power_cut()
    async with acquired(ROOT, left) as log:
        assert flat(await contents(log)) == [b"first", b"second", b"third"]


async def test_a_commit_made_at_once_is_reported_before_the_log_looks_after_its_file() -> None:
    async with acquired(ROOT, RecordingDisk(queued=True)) as log:
        await append(log, b"first")
        ended = asyncio.get_running_loop().create_future()

        def told(error: Exception | None) -> None:
            ended.set_result((error, log.end, log.is_busy))

        end = log.end
        assert log.append_at_once(_commit(log, b"second"), no_more_waits(told))
        error, moved, was_busy = await asyncio.wait_for(ended, 20)
        assert error is None and moved > end and was_busy
        ended = asyncio.get_running_loop().create_future()
        assert log.append_at_once(_commit(log, b"third"), no_more_waits(ended.set_result))
        await asyncio.wait_for(ended, 20)


async def test_a_commit_made_at_once_that_fails_is_reported_and_fails_the_log() -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with acquired(ROOT, disk) as log:
        await append(log, b"kept")
        disk.fail("sync", path_part=str(LOG))
        ended = asyncio.get_running_loop().create_future()
        assert log.append_at_once(_commit(log, b"lost"), no_more_waits(ended.set_result))
        assert isinstance(await asyncio.wait_for(ended, 20), CommitFailed)
        with pytest.raises(CommitFailed):
            log.begin()
        assert not log.append_at_once(Commit(log.end), no_more_waits(ended.set_result))
        await log.acquire()
        assert flat(await contents(log)) == [b"kept"]


@pytest.mark.parametrize("queued", [True, False])
async def test_a_commit_made_at_once_that_hangs_and_was_fenced_is_never_heard_of(queued: bool) -> None:
    disk = FaultyDisk(RecordingDisk(queued=queued))
    async with acquired(ROOT, disk) as log:
        await append(log, b"kept")
        disk.hang("sync", str(LOG))
        ended: list[Exception | None] = []
        assert log.append_at_once(_commit(log, b"undecided"), no_more_waits(ended.append))
        async with asyncio.timeout(20):
            while not disk.held:  # noqa: ASYNC110 (a thread counts)
                await asyncio.sleep(0.001)
        log.fence()
        with pytest.raises(DiskFailed):
            await asyncio.wait_for(log.close(), 20)
        acquiring = asyncio.create_task(log.acquire())
        await asyncio.sleep(0.02)
        assert not acquiring.done(), "the file is in use"
        disk.release()
        await asyncio.wait_for(acquiring, 20)
        assert flat(await contents(log)) == [b"kept"] and not ended
        await append(log, b"new")
        assert flat(await contents(log)) == [b"kept", b"new"]


@pytest.mark.parametrize("where", [(ActiveSegment, "wrote"), (FileLog, "committed"), (RecentPlaces, "add")])
async def test_a_commit_whose_end_cannot_be_recorded_fails_the_log_and_is_never_read(
    where: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RecordingDisk(queued=True)
    async with acquired(ROOT, disk) as log:
        await append(log, b"kept")
        ended = asyncio.get_running_loop().create_future()

        def bug(*_: object) -> None:
            raise ValueError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr(*where, bug)
            assert log.append_at_once(_commit(log, b"in doubt"), no_more_waits(ended.set_result))
            assert isinstance(await asyncio.wait_for(ended, 20), CommitFailed)
            with pytest.raises(CommitFailed):
                log.begin()
        await asyncio.wait_for(log.acquire(), 20)
        assert flat(await contents(log)) == [b"kept"]
        await append(log, b"new")
        left = disk.after_power_cut()
    async with acquired(ROOT, left) as log:
        assert flat(await contents(log)) == [b"kept", b"new"]


# --- a disk that hangs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("queued", [True, False])
async def test_a_commit_that_hangs_and_was_fenced_is_never_read_though_it_ends_well(queued: bool) -> None:
    disk = FaultyDisk(RecordingDisk(queued=queued))
    async with acquired(ROOT, disk) as log:
        await append(log, b"kept")
        end = log.end
        disk.hang("sync", str(LOG))
        hanging = asyncio.create_task(append(log, b"undecided"))
        async with asyncio.timeout(20):
            while not disk.held:  # noqa: ASYNC110 (a thread counts)
                await asyncio.sleep(0.001)
        log.fence()
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(hanging, 20)
        with pytest.raises(CommitFailed):
            log.begin()
        with pytest.raises(DiskFailed):
            await log.close()
        acquiring = asyncio.create_task(log.acquire())
        await asyncio.sleep(0.02)
        assert not acquiring.done(), "the file is in use"
        disk.release()
        await asyncio.wait_for(acquiring, 20)
        assert log.end == end and flat(await contents(log)) == [b"kept"]
        await append(log, b"new")
    async with acquired(ROOT, disk) as log:
        assert flat(await contents(log)) == [b"kept", b"new"]


async def test_a_fence_with_nothing_under_way_changes_nothing() -> None:
    async with acquired(ROOT, RecordingDisk()) as log:
        await append(log, b"a")
        log.fence()
        await append(log, b"b")
        assert flat(await contents(log)) == [b"a", b"b"]


async def test_other_logs_commit_while_one_hangs() -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    store = small_store(ROOT, disk)
    hanging, other = store.log(ENTITY, 0), store.log(ENTITY, 1)
    await hanging.acquire()
    await other.acquire()
    disk.hang("sync", str(LOG))
    task = asyncio.create_task(append(hanging, b"a"))
    for _ in range(10):
        await asyncio.wait_for(append(other, b"b"), 20)
    disk.release()
    await asyncio.wait_for(task, 20)
    await hanging.close()
    await other.close()
    await store.close()


async def test_a_log_that_is_filled_fast_begins_a_segment_only_now_and_then(tmp_path: Path) -> None:
    async with acquired(tmp_path, fsync="never") as log:
        for _ in range(20):
            await append(log, bytes(1 << 20))
        assert len(log.trim_points) <= 2, "five MiB each would make three"


async def test_messages_are_refused_while_there_is_only_room_for_what_draining_needs() -> None:
    disk = RecordingDisk(capacity_bytes=1_000_000)
    ended: list[Exception | None] = []
    async with acquired(ROOT, disk) as log:
        assert not log.is_full and not log.is_scarce
        log.keep_room(800_000, 150_000)
        await append(log, b"a message" * 1_000)
        assert log.take_growth(10_000, 10) == 10
        with pytest.raises(DiskFull, match="kept to drain"):
            await append(log, b"x" * 50_000)
        commit = log.begin()
        commit.add(7, [b"x" * 50_000])
        assert not log.append_at_once(commit, no_more_waits(ended.append)) and not ended
        log.need = lambda: (900_000, 150_000)
        with pytest.raises(DiskFull, match="kept to drain"):
            await append(log, b"x")
        log.need = lambda: None
        assert not log.is_full, "the message that was refused needs nothing"
        log.keep_room(800_000, 250_000)
        assert log.is_full and not log.is_scarce
        with pytest.raises(DiskFull, match="kept to drain"):
            await append(log, b"x")
        await append(log, b"a settlement" * 1_000, urgent=True)
        assert log.take_growth(10_000, 10) < 10, "the reserves are held, but what grows is limited"
        log.keep_room(0, 990_000)
        assert log.is_scarce
        log.keep_room(0, 0)
        await append(log, b"x" * 50_000)


async def test_a_commit_that_is_given_up_before_it_begins_takes_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = small_store(ROOT, RecordingDisk(capacity_bytes=1_000_000), open_segments_max=1)
    log, other = store.log("orders", 0), store.log("bills", 0)
    for each in (log, other):
        await each.acquire()
        await append(each, b"x")  # the last one has the only place for an open segment
    log.keep_room(500_000, 0)
    waits = asyncio.Event()

    async def hangs(*_: object) -> None:
        waits.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(OpenSegments, "take", hangs)
        for _ in range(5):
            waits.clear()
            appending = asyncio.create_task(append(log, b"x" * 300_000))
            waiting = asyncio.create_task(waits.wait())
            await asyncio.wait([appending, waiting], timeout=5, return_when=asyncio.FIRST_COMPLETED)
            assert waiting.done() and not appending.done()
            appending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await appending
    assert not log.is_full
    await append(log, b"x" * 300_000)
    await log.close()
    await other.close()
    await store.close()


async def test_what_the_logs_of_a_store_need_is_added_up_until_they_are_deleted() -> None:
    store = small_store(ROOT, RecordingDisk(capacity_bytes=1_000_000))
    log, other = store.log("orders", 0), store.log("bills", 0)
    await log.acquire()
    other.keep_room(990_000, 0)
    with pytest.raises(DiskFull):
        await append(log, b"x" * 20_000)
    await store.delete("bills")
    await append(log, b"x" * 20_000)
    await log.close()
    await store.close()


async def test_growth_is_limited_anew_each_time_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_watch, "FULL_DISK_LOOK_S", 0.005)
    disk = FaultyDisk(RecordingDisk(capacity_bytes=1_000_000))
    store = small_store(ROOT, disk, reserve_bytes=80_000)
    log = store.log("orders", 0)
    await log.acquire()
    for _ in range(2):
        log.keep_room(2_000_000, 0)
        with pytest.raises(DiskFull):
            await append(log, b"x")
        assert log.take_growth(1_000, 20) == 10
        looked = disk.calls["space"]
        await until(lambda: disk.calls["space"] >= looked + 5)  # noqa: B023
        assert log.take_growth(1_000, 20) == 0
        log.keep_room(0, 0)
        looked = disk.calls["space"]
        await until(lambda: disk.calls["space"] >= looked + 2)  # noqa: B023
    await log.close()
    await store.close()


async def test_a_disk_that_others_have_freed_is_noticed_by_those_who_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(space_watch, "FULL_DISK_LOOK_S", 0.005)
    monkeypatch.setattr(space_watch, "FULL_DISK_SHOWN_S", 0.02)
    disk = RecordingDisk(capacity_bytes=1_000_000)
    store = small_store(ROOT, disk, reserve_bytes=80_000)
    log = store.log("orders", 0)
    await log.acquire()
    log.keep_room(2_000_000, 0)
    with pytest.raises(DiskFull):
        await append(log, b"x")
    assert log.take_growth(1_000, 20) == 10
    disk.capacity_bytes = 10_000_000
    await until(lambda: not log.is_full)
    await until(lambda: store.state is FolderState.OK)
    assert log.take_growth(1_000, 20) == 20 and store.state is FolderState.OK
    await log.close()
    await store.close()


@pytest.mark.parametrize(("capacity_bytes", "is_filled"), [(8 << 20, False), (64 << 20, True)])
async def test_on_a_disk_with_very_little_room_a_segment_is_as_large_as_what_it_holds(
    capacity_bytes: int, is_filled: bool
) -> None:
    disk = RecordingDisk(capacity_bytes=capacity_bytes)
    async with acquired(ROOT, disk) as log:
        for _ in range(3):
            await append(log, b"x" * 100)
        [name] = [name for name in disk.names(LOG) if name.endswith(SEGMENT_SUFFIX)]
        fd = disk.open_read(LOG / name)
        assert (disk.size(fd) > SEGMENT_HEADER_BYTES + log.end) is is_filled
        disk.close(fd)
