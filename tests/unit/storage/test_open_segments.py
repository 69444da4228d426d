"""storage/open_segments.py, and how the logs of a store share few descriptors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from storage.errors import CommitFailed
from storage.file_log import FileLog
from storage.file_store import FileLogStore
from storage.open_segments import OpenSegments
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import ENTITY, append, checkpoint_of, contents, flat, save_twice, small_store
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")
OTHER_FILES = 1 + 2 + 2 + 2
"""The lock, one file per worker thread for a moment, one per committer thread, and the files open for
reading."""


async def acquired_logs(store: FileLogStore, count: int) -> list[FileLog]:
    logs = [store.log(ENTITY, partition) for partition in range(count)]
    await asyncio.gather(*(log.acquire() for log in logs))
    return logs


async def close_all(store: FileLogStore, logs: list[FileLog]) -> None:
    for log in logs:
        await log.close()
    await store.close()


class CountingDisk(FaultyDisk):
    """Records the largest number of descriptors open at a time."""

    def __init__(self, inner: RecordingDisk) -> None:
        super().__init__(inner)
        self.counted = inner
        self.open_max = 0

    def _opened(self, fd: int, path: Path) -> int:
        self.open_max = max(self.open_max, self.counted.open_files)
        return super()._opened(fd, path)


@pytest.mark.parametrize("fsync", ["always", "never"])
@pytest.mark.parametrize("queued", [False, True], ids=["threads", "queue"])
async def test_many_logs_at_once_and_in_turn_need_few_descriptors(queued: bool, fsync: str) -> None:
    disk = CountingDisk(RecordingDisk(queued=queued))
    store = small_store(ROOT, disk, open_segments_max=3, open_files_max=2, fsync=fsync)
    logs = await acquired_logs(store, 20)

    async def work(log: FileLog) -> None:
        for number in range(5):
            await append(log, b"%d" % number)
        await log.save_checkpoint(checkpoint_of(log.end, b"state"))
        await append(log, b"at once")

    await asyncio.gather(*map(work, logs))
    for _ in range(2):
        for log in logs:
            await append(log, b"in turn")
    expected = [b"0", b"1", b"2", b"3", b"4", b"at once", b"in turn", b"in turn"]
    assert [flat(each) for each in await asyncio.gather(*map(contents, logs))] == [expected] * 20
    assert disk.open_max <= 3 + OTHER_FILES
    await close_all(store, logs)
    assert disk.counted.open_files == 0


async def test_what_nobody_writes_to_is_closed_after_a_while_and_goes_on_with_the_next_commit() -> None:
    disk = RecordingDisk(queued=True)
    # on a busy machine, 20 ms may pass between a commit and the next look at the segment
    store = small_store(ROOT, disk, segment_idle_ms=300)
    logs = await acquired_logs(store, 5)
    for round_number in range(2):
        for log in logs:
            await append(log, b"%d" % round_number)
            assert await contents(log), "it is open for reading, too"
        async with asyncio.timeout(30):
            while disk.open_files > 1:  # noqa: ASYNC110 - the lock stays open; what is waited for has no event of its own
                await asyncio.sleep(0.005)
    for log in logs:
        assert flat(await contents(log)) == [b"0", b"1"]
        assert (
            len(
                [
                    name
                    for name in disk.names(ROOT / "logs" / "orders%231" / "0000")
                    if name.endswith(".segment")
                ]
            )
            == 1
        )
    await close_all(store, logs)


async def test_what_was_acknowledged_unsynced_is_synced_before_its_file_is_closed() -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    store = small_store(ROOT, disk, fsync="never")
    [log] = await acquired_logs(store, 1)
    await append(log, b"kept")
    synced = disk.calls["sync"]
    await log.put_away()
    assert disk.calls["sync"] == synced + 1
    await append(log, b"acknowledged")
    disk.fail("sync")
    await log.put_away()
    with pytest.raises(CommitFailed):
        log.begin()  # the error was noticed, and is not forgotten with the file
    await log.acquire()
    assert flat(await contents(log)) == [b"kept", b"acknowledged"]
    await close_all(store, [log])


async def test_a_log_whose_file_was_changed_meanwhile_goes_on_in_a_new_one() -> None:
    disk = RecordingDisk(queued=True)
    store = small_store(ROOT, disk)
    [log] = await acquired_logs(store, 1)
    await append(log, b"kept")
    await log.put_away()
    folder = ROOT / "logs" / "orders%231" / "0000"
    [name] = disk.names(folder)
    disk.contents(folder / name).extend(b"?")
    with pytest.raises(CommitFailed, match="size"):
        await append(log, b"refused")
    await log.acquire()
    await append(log, b"later")
    assert flat(await contents(log)) == [b"kept", b"later"]
    await close_all(store, [log])


async def test_a_log_put_away_can_be_rolled_acquired_and_closed() -> None:
    disk = RecordingDisk(queued=True)
    store = small_store(ROOT, disk)
    [log] = await acquired_logs(store, 1)
    await append(log, b"x" * (2 << 20))
    await log.put_away()
    await save_twice(log)
    await log.trim(log.end)
    assert log.start == log.end, "an active segment that is dead as a whole was given back"
    await append(log, b"kept")
    await log.put_away()
    await log.acquire()
    assert flat(await contents(log)) == [b"kept"]
    await log.put_away()
    await log.put_away()
    await close_all(store, [log])
    assert disk.open_files == 0


class Holder:
    """A log that is busy until it is told to rest."""

    def __init__(self, places: OpenSegments) -> None:
        self._places = places
        self.rest = asyncio.Event()
        self.is_idle = False
        """Not at work, but its disk hangs until it is told to rest."""

    @property
    def is_busy(self) -> bool:
        return not (self.is_idle or self.rest.is_set())

    async def put_away(self) -> None:
        await self.rest.wait()
        self._places.give(self)


async def test_the_longest_unused_one_goes_and_one_at_work_only_if_all_are() -> None:
    places = OpenSegments(3, 60_000, lambda: None)
    first, second, third, fourth, fifth = holders = [Holder(places) for _ in range(5)]
    for holder in holders[:3]:
        await places.take(holder)
    second.rest.set()
    third.rest.set()
    places.used(second)
    await places.take(fourth)
    assert list(places) == [first, second, fourth], (
        "the third was unused for longer than the second, and the first is at work"
    )
    second.rest.clear()
    waiting = asyncio.create_task(places.take(fifth))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    first.rest.set()
    await asyncio.wait_for(waiting, 10)
    assert list(places) == [second, fourth, fifth]


async def test_a_log_that_is_acquired_anew_keeps_its_place() -> None:
    disk = RecordingDisk(queued=True)
    store = small_store(ROOT, disk, open_segments_max=1)
    first, second = logs = [store.log(ENTITY, partition) for partition in range(2)]
    await first.acquire()
    await append(first, b"kept")
    # Symptom: the log gave its place back and waited for the other log, which waited for its turn.
    async with asyncio.timeout(20):
        await asyncio.gather(first.acquire(), second.acquire())
    await append(second, b"other")
    assert [flat(await contents(log)) for log in logs] == [[b"kept"], [b"other"]]
    await close_all(store, logs)
    assert disk.open_files == 0


async def test_nobody_waits_for_the_one_log_whose_disk_does_not_answer() -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    store = small_store(ROOT, disk, open_segments_max=2)
    first, _, third = logs = [store.log(ENTITY, partition) for partition in range(3)]
    for log in logs:
        await log.acquire()
        await append(log, b"kept")
    disk.hang("read", "/0001/")
    async with asyncio.timeout(20):
        await append(first, b"more")
        await append(third, b"more")
    disk.release()
    assert [flat(await contents(log)) for log in logs] == [[b"kept", b"more"], [b"kept"], [b"kept", b"more"]]
    await close_all(store, logs)


async def test_who_gives_up_waiting_for_a_place_leaves_at_once() -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    store = small_store(ROOT, disk, open_segments_max=1)
    first, _ = logs = [store.log(ENTITY, partition) for partition in range(2)]
    for log in logs:
        await log.acquire()
        await append(log, b"kept")
    disk.hang("read", "/0001/")
    waiting = asyncio.create_task(append(first, b"never written"))
    async with asyncio.timeout(20):
        while not disk.held:  # noqa: ASYNC110 - a thread hangs, which no event tells
            await asyncio.sleep(0.005)
    first.fence()
    waiting.cancel()
    await asyncio.wait([waiting], timeout=20)
    has_left = waiting.cancelled()
    disk.release()
    assert has_left
    assert [flat(await contents(log)) for log in logs] == [[b"kept"], [b"kept"]]
    await close_all(store, logs)


async def test_an_idle_log_that_hangs_does_not_keep_the_others_open() -> None:
    places = OpenSegments(10, 0, lambda: None)
    hanging, *others = holders = [Holder(places) for _ in range(4)]
    hanging.is_idle = True
    for holder in holders:
        await places.take(holder)
    for holder in others:
        holder.rest.set()
    closing = asyncio.create_task(places.close_idle())
    async with asyncio.timeout(30):
        while list(places) != [hanging]:  # noqa: ASYNC110 - nothing tells when a place is given back
            await asyncio.sleep(0.001)
    assert not closing.done()
    hanging.rest.set()
    await asyncio.wait_for(closing, 30)
    assert not list(places)
