"""Disk faults at every call of every operation, one at a time (durability rules 4 and 6).

Afterwards everything acknowledged is there, nothing refused is, and the log works again once it is
reacquired.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NamedTuple

import pytest

from storage.disk import LocalDisk
from storage.errors import CommitFailed, DiskFailed, DiskFull, StorageError
from storage.file_log import FileLog
from storage.file_store import FileLogStore
from storage.log import Position
from storage.segment import ALLOCATED_FRAME_BYTES_MIN
from tests.support.faulty_disk import OPERATIONS, FaultyDisk
from tests.support.logs import (
    ENTITY,
    acquired,
    append,
    checkpoint_of,
    contents,
    flat,
    save_twice,
    small_store,
)
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")
CLAIMS_MAX = 4


class Scale(NamedTuple):
    """How much the workload writes, in bytes."""

    growth: int
    segment_bytes: int


SMALL = Scale(10, 500)
LARGE = Scale(ALLOCATED_FRAME_BYTES_MIN // 4, 2 << 20)


class Owner:
    """Writes to a log as a partition would, and records what was acknowledged."""

    def __init__(self, store: FileLogStore) -> None:
        self.log: FileLog = store.log(ENTITY, 0)
        self.ledger: dict[Position, bytes] = {}
        self.failures = 0

    async def acquire(self) -> None:
        for _ in range(CLAIMS_MAX):
            try:
                await self.log.acquire()
            except StorageError:
                self.failures += 1
                continue
            return
        raise AssertionError("the log cannot be acquired any more")

    async def append(self, body: bytes) -> None:
        for _ in range(CLAIMS_MAX):
            try:
                position = await append(self.log, body)
            except DiskFull:
                self.failures += 1
                continue
            except CommitFailed:
                self.failures += 1
                with pytest.raises(CommitFailed):
                    self.log.begin()
                await self.acquire()
                await self.check()
                continue
            assert position not in self.ledger
            self.ledger[position] = body
            return
        raise AssertionError("the log refuses everything")

    async def check(self) -> None:
        """Check that the log holds exactly what was acknowledged and not trimmed."""
        expected = [body for position, body in sorted(self.ledger.items()) if position >= self.log.start]
        try:
            assert flat(await contents(self.log)) == expected
        except DiskFailed:
            self.failures += 1
            assert flat(await contents(self.log)) == expected

    async def work(self, closing: bool = False, growth: int = SMALL.growth) -> None:
        """Run the workload; with `closing`, the log's file is closed in between. Each message is larger than
        the one before it, by `growth` bytes."""
        await self.acquire()
        for number in range(12):
            if closing and number in (2, 3, 8):
                await self.log.put_away()
            await self.append(b"message %d " % number + b"." * growth * number)
            if number in (5, 9):
                try:
                    await self.log.save_checkpoint(checkpoint_of(self.log.end, b"state %d" % number))
                    await self.log.trim(self.log.end)
                except StorageError:
                    self.failures += 1
            if number == 7:
                try:
                    [frame] = await self.log.fetch([max(self.ledger)])
                except DiskFailed:
                    self.failures += 1
                else:
                    assert bytes(frame.records()[0].body) == self.ledger[frame.position]
        await self.check()


async def calls_of_the_work(queued: bool, closing: bool, scale: Scale = SMALL) -> dict[str, int]:
    disk = FaultyDisk(RecordingDisk(queued=queued))
    store = small_store(ROOT, disk, segment_bytes_max=scale.segment_bytes)
    owner = Owner(store)
    await owner.work(closing, scale.growth)
    assert owner.failures == 0
    await owner.log.close()
    await store.close()
    return dict(disk.calls)


async def run_with_a_fault(
    queued: bool, closing: bool, operation: str, nth: int, error: int, scale: Scale = SMALL
) -> None:
    inner = RecordingDisk(queued=queued)
    disk = FaultyDisk(inner)
    store = small_store(ROOT, disk, segment_bytes_max=scale.segment_bytes)
    owner = Owner(store)
    disk.fail(operation, error, nth=nth)
    await owner.work(closing, scale.growth)
    trimmed = owner.log.start
    crashed = inner.after_power_cut()
    await owner.log.close()
    await store.close()
    async with acquired(ROOT, crashed) as log:
        assert log.start <= trimmed
        assert flat(await contents(log)) == [
            body for position, body in sorted(owner.ledger.items()) if position >= log.start
        ]


@pytest.mark.parametrize("closing", [False, True], ids=["kept-open", "put-away"])
@pytest.mark.parametrize("queued", [False, True], ids=["threads", "queue"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
async def test_a_failure_of_any_call_of_any_operation_loses_nothing_and_shows_nothing_refused(
    queued: bool, error: int, closing: bool
) -> None:
    calls = await calls_of_the_work(queued, closing)
    assert calls["sync"] > 12 and calls["write"] > 12 and calls["rename"] > 3
    for operation in OPERATIONS:
        for nth in range(1, calls.get(operation, 0) + 1):
            await run_with_a_fault(queued, closing, operation, nth, error)


@pytest.mark.parametrize("queued", [False, True], ids=["threads", "queue"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
async def test_a_failure_behind_large_messages_loses_nothing(queued: bool, error: int) -> None:
    """Where zeros are allocated: by commits, by their own thread, and when the next segment begins."""
    calls = await calls_of_the_work(queued, False, LARGE)
    assert calls["allocate"] > 3
    for operation in ("allocate", "write", "sync", "truncate"):
        for nth in range(1, calls[operation] + 1):
            await run_with_a_fault(queued, False, operation, nth, error, LARGE)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
async def test_a_failed_sync_makes_the_log_refuse_everything_and_is_not_repeated_on_the_file(
    error: int,
) -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    async with acquired(ROOT, disk) as log:
        await append(log, b"kept")
        disk.fail("sync", error, path_part="-00000001.segment")
        with pytest.raises(CommitFailed):
            await append(log, b"refused")
        synced = disk.calls["sync"]
        with pytest.raises(CommitFailed):
            log.begin()
        with pytest.raises(CommitFailed):
            await log.fetch([Position(0)])
        assert disk.calls["sync"] == synced
        disk.fail(
            "sync", error, times=-1, path_part="-00000001.segment"
        )  # a sync of the old file would fail again
        assert await log.acquire() == 2
        assert flat(await contents(log)) == [b"kept"]
        await append(log, b"later")
        assert flat(await contents(log)) == [b"kept", b"later"]


async def test_what_a_failed_commit_left_in_its_file_is_never_read_even_if_it_cannot_be_cut_off() -> None:
    inner = RecordingDisk(queued=True)
    disk = FaultyDisk(inner)
    async with acquired(ROOT, disk) as log:
        await append(log, b"k" * 300_000)
        disk.fail("sync", path_part=".segment")
        with pytest.raises(CommitFailed):
            await append(log, b"refused, but whole in the file")
        disk.fail("truncate", times=-1)
        disk.fail("remove", times=-1)
        await log.acquire()
        disk.heal()
        await append(log, b"later")
        assert flat(await contents(log)) == [b"k" * 300_000, b"later"]
    for path in (path for path in inner.names(ROOT / "logs/orders%231/0000") if path.endswith("1.segment")):
        assert b"refused, but whole" in bytes(inner.contents(ROOT / "logs/orders%231/0000" / path))
    async with acquired(ROOT, inner) as log:
        assert flat(await contents(log)) == [b"k" * 300_000, b"later"]


async def test_a_frame_that_is_only_in_memory_after_a_restart_is_made_durable_before_the_log_is_used() -> (
    None
):
    disk = RecordingDisk(queued=True)
    store = small_store(ROOT, disk)
    log = store.log(ENTITY, 0)
    await log.acquire()
    await append(log, b"first")
    await append(log, b"second")
    [name] = disk.names(ROOT / "logs/orders%231/0000")
    durable = disk.after_power_cut()
    del durable.contents(ROOT / "logs/orders%231/0000" / name)[-20_000:]
    await log.close()
    await store.close()
    # The sync of the second commit failed and the broker died: the file reads well, but the data is not on
    # the disk.
    fd = durable.open_write(ROOT / "logs/orders%231/0000" / name)
    durable.write(fd, [bytes(disk.contents(ROOT / "logs/orders%231/0000" / name))], 0)
    durable.close(fd)
    async with acquired(ROOT, durable) as again:
        assert flat(await contents(again)) == [b"first", b"second"]
        await append(again, b"third")
        crashed = durable.after_power_cut()
    async with acquired(ROOT, crashed) as again:
        assert flat(await contents(again)) == [b"first", b"second", b"third"]


@pytest.mark.parametrize("queued", [False, True], ids=["threads", "queue"])
async def test_a_short_write_is_carried_on_wherever_it_stops(queued: bool) -> None:
    for bytes_max in range(1, 120):
        disk = FaultyDisk(RecordingDisk(queued=queued))
        async with acquired(ROOT, disk) as log:
            await append(log, b"first")
            disk.shorten(bytes_max)
            await append(log, b"second" * 5)
            assert flat(await contents(log)) == [b"first", b"second" * 5]


async def test_a_short_write_and_a_full_disk_behind_it_leave_nothing() -> None:
    for bytes_max in range(1, 106):
        inner = RecordingDisk()
        disk = FaultyDisk(inner)
        async with acquired(ROOT, disk) as log:
            await append(log, b"first")
            disk.shorten(bytes_max)
            disk.fail("write", errno.ENOSPC, nth=1, times=-1)
            with pytest.raises(DiskFull):
                await append(log, b"refused" * 5)
            disk.heal()
            assert flat(await contents(log)) == [b"first"]
            await append(log, b"second")
            crashed = inner.after_power_cut()
        async with acquired(ROOT, crashed) as log:
            assert flat(await contents(log)) == [b"first", b"second"]


async def test_a_write_that_takes_nothing_fails_the_commit() -> None:
    disk = FaultyDisk(RecordingDisk())
    async with acquired(ROOT, disk) as log:
        disk.shorten(3)
        disk.shorten(0)
        with pytest.raises(CommitFailed):
            await append(log, b"refused")


async def test_the_other_logs_of_the_store_never_notice_a_failure() -> None:
    disk = FaultyDisk(RecordingDisk(queued=True))
    store = small_store(ROOT, disk)
    logs = [store.log(ENTITY, partition) for partition in range(16)]
    for log in logs:
        await log.acquire()
    disk.fail("sync", times=-1, path_part="/0005/")
    for log in logs[:5] + logs[6:]:
        await append(log, b"goes on")
    with pytest.raises(CommitFailed):
        await append(logs[5], b"refused")
    for log in logs[:5] + logs[6:]:
        await append(log, b"still goes on")
        assert flat(await contents(log)) == [b"goes on", b"still goes on"]
    for log in logs:
        await log.close()
    await store.close()


@pytest.mark.parametrize("queued", [False, True], ids=["threads", "queue"])
async def test_a_full_disk_refuses_sends_lets_settlements_use_the_reserve_and_comes_back(
    queued: bool,
) -> None:
    disk = RecordingDisk(queued=queued, capacity_bytes=300_000)
    store = small_store(ROOT, disk, reserve_bytes=64 << 10, reserve_retry_ms=10, segment_bytes_max=40_000)
    log = store.log(ENTITY, 0)
    await log.acquire()
    sent: list[bytes] = []
    with pytest.raises(DiskFull):
        while True:
            await append(log, b"%05d" % len(sent) * 200)
            sent.append(b"%05d" % len(sent) * 200)
    assert len(sent) > 100
    settled = [b"settled %d" % number for number in range(200)]
    for body in settled:
        await append(log, body, urgent=True)
        with pytest.raises(DiskFull):
            await append(log, b"%05d" % 0 * 200)
    assert flat(await contents(log)) == sent + settled
    await save_twice(log)
    await log.trim(log.end)
    for _ in range(500):  # the reserve is retried every 10 ms
        try:
            await append(log, b"room again")
            break
        except DiskFull:
            await append(log, b"tick", urgent=True)
    else:
        raise AssertionError("the log never took a send again")
    await log.close()
    await store.close()


async def test_a_log_can_be_acquired_on_a_full_disk() -> None:
    disk = RecordingDisk(capacity_bytes=200_000)
    store = small_store(ROOT, disk, reserve_bytes=64 << 10)
    log = store.log(ENTITY, 0)
    await log.acquire()
    await append(log, b"x" * 80_000)
    with pytest.raises(DiskFull):
        while True:
            await append(log, b"x" * 1_000)
    end = log.end
    await log.close()
    disk.capacity_bytes = 0
    await store.close()
    disk.capacity_bytes = disk._used() + 100
    async with acquired(ROOT, disk, reserve_bytes=64 << 10, segment_bytes_max=1_000) as again:
        assert again.end == end


async def test_the_disk_itself_that_is_really_full_is_survived(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    async with acquired(tmp_path, disk) as log:
        await append(log, b"first")
        disk.fail("write", errno.ENOSPC)
        with pytest.raises(DiskFull):
            await append(log, b"x" * 100_000)
        await append(log, b"second")
        assert flat(await contents(log)) == [b"first", b"second"]
