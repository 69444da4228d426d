"""Partitions in the broker's own process: where their logs are, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from broker.base.clock import ManualClock
from broker.entities.descriptions import MAIN
from broker.hosting.host import HostFolder, HostSettings
from broker.hosting.local import TAIL_BYTES_AT_STOP, LocalHost
from broker.namespace.entity import ask
from broker.operations.browsing import Peek, Peeked
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send
from broker.partition.opening_room import OPENING_BYTES
from storage.disk import Disk, LocalDisk
from storage.folders import arrange
from storage.spread_store import place
from tests.support.faulty_disk import FaultyDisk
from tests.support.hosting import QUEUE, Meter, Register, settings_of
from tests.support.waiting import WAIT_S, until


class Stack:
    """A host, and the tasks of its partitions."""

    def __init__(self, settings: HostSettings, disk: Disk) -> None:
        self.clock, self.tasks = ManualClock(), dict[str, asyncio.Task[None]]()
        self.host = LocalHost(
            settings,
            disk,
            self.clock,
            spawn=lambda work, name: self.tasks.setdefault(name, asyncio.create_task(work, name=name)),
            failed=lambda name, error: None,
        )


@asynccontextmanager
async def stack(
    folder: Path, settings: HostSettings | None = None, disk: Disk | None = None
) -> AsyncIterator[Stack]:
    made = Stack(settings or settings_of(folder), disk or LocalDisk())
    await made.host.open()
    async with asyncio.timeout(WAIT_S):
        try:
            yield made
        finally:
            await made.host.close()


def checkpointed(folder: Path) -> set[str]:
    """The folders of partitions with a checkpoint."""
    return {path.parent.name for path in folder.rglob("*checkpoint*")}


async def turns() -> None:
    """Let everything happen that needs no clock."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_a_partition_finds_again_what_it_has_stored(tmp_path: Path) -> None:
    for expected in ([b"one"], [b"one", b"one"]):
        async with stack(tmp_path) as made:
            register = Register()
            partition = made.host.start(QUEUE, 3, Meter(), register)
            assert list(made.tasks) == ["partition orders/3"]
            await ask(partition, Send([b"one"], None))
            peeked = await ask(partition, Peek(MAIN, 0, 10))
            assert isinstance(peeked, Peeked) and peeked.messages == expected
            assert await made.host.partitions(QUEUE.generation) == [3]
            await partition.stop()
            assert register.entries[0] == "open" and len(register.entries) == 2


async def test_waiting_messages_count_over_all_partitions(tmp_path: Path) -> None:
    async with stack(tmp_path) as made:
        partitions = [made.host.start(QUEUE, number, Meter(), Register()) for number in (0, 1)]
        before = made.host.waiting_bytes
        for partition in partitions:
            await ask(partition, Send([bytes(1_000)], None))
        assert made.host.waiting_bytes - before >= 2 * 1_000
        for partition in partitions:
            await partition.stop()
        assert made.host.waiting_bytes == before


async def test_partitions_that_are_being_opened_count_until_they_are_open(tmp_path: Path) -> None:
    index = asyncio.Event()

    class Waiting(Register):
        def expected_bytes(self) -> int:
            return 25_600

        async def opening(self) -> None:
            await index.wait()

    async with stack(tmp_path) as made:
        partitions = [made.host.start(QUEUE, number, Meter(), Waiting()) for number in (0, 1)]
        asked = [asyncio.ensure_future(ask(each, Peek(MAIN, 0, 1))) for each in partitions]
        await turns()
        assert made.host.opening_bytes == 2 * (OPENING_BYTES + 25_600)
        before = made.host.waiting_bytes
        index.set()
        await asyncio.gather(*asked)
        assert made.host.opening_bytes == 0 and made.host.waiting_bytes > before
        await asyncio.gather(*(each.stop() for each in partitions))


async def test_after_a_suspend_every_partition_looks_at_the_clock(tmp_path: Path) -> None:
    async with stack(tmp_path) as made:
        partition = made.host.start(QUEUE, 0, Meter(), Register())
        await ask(partition, Send([b"one"], None))
        locked = await ask(partition, Demand(MAIN, 1))
        assert isinstance(locked, Locked)
        await until(lambda: not partition._mailbox.waiting and not partition._mailbox.undecided)
        await turns()
        made.clock.advance(QUEUE.settings.lock_duration_ms + 1_000)
        await turns()
        assert partition.counts()[MAIN].locked == 1, "the event loop's timer has not fired"
        made.host.wake()
        await turns()
        assert partition.counts()[MAIN].locked == 0
        await partition.stop()


async def test_a_stop_writes_a_checkpoint_only_where_a_replay_would_take_long(tmp_path: Path) -> None:
    async with stack(tmp_path) as made:
        short, long = (made.host.start(QUEUE, number, Meter(), Register()) for number in (0, 1))
        await ask(short, Send([b"one"], None))
        await ask(long, Send([bytes(TAIL_BYTES_AT_STOP)], None))
        await asyncio.gather(short.stop(), long.stop())
    assert checkpointed(tmp_path) == {"0001"}


async def test_while_a_disk_hangs_partitions_on_another_one_take_their_checkpoints(tmp_path: Path) -> None:
    disk, folders = FaultyDisk(LocalDisk()), arrange(LocalDisk(), [tmp_path / "first", tmp_path / "second"])
    hosted = tuple(HostFolder(str(each.path), each.id, is_missing=False) for each in folders)
    settings = replace(settings_of(tmp_path), folders=hosted, checkpoint_bytes=20_000)
    queue = replace(QUEUE, folders=2)
    numbers = sorted(range(2), key=lambda number: place(queue.generation, number, 2))
    async with stack(tmp_path, settings, disk) as made:
        first, second = (made.host.start(queue, number, Meter(), Register()) for number in numbers)
        try:
            async with first._slices.one_by_one:
                while not first._beside.is_under_way:
                    await ask(first, Send([bytes(5_000)], None))
                disk.hang("sync", "/first/logs/")
                hung = asyncio.ensure_future(ask(first, Send([b"one"], None)))
                await until(lambda: disk.held)
            # Symptom: this partition now had the turn for its checkpoint, and all others waited for its disk.
            for _ in range(20):
                await ask(second, Send([bytes(5_000)], None))
            await until(lambda: checkpointed(tmp_path / "second"))
            assert not checkpointed(tmp_path / "first") and not hung.done()
        finally:
            disk.release()
        await hung
        await asyncio.gather(first.stop(), second.stop())
