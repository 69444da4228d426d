"""What a partition keeps in memory once its traffic is over: next to nothing. In the end it is closed."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.base.clock import ManualClock
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueDescription
from broker.identifiers import ClientId
from broker.operations.browsing import Peek, Watch
from broker.operations.deleting import Delete, Deleted
from broker.operations.general import Detach
from broker.operations.message_states import SubqueueCounts
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete, DeadLetter, Release
from broker.partition.health import Health
from broker.partition.payloads import PayloadBudget
from broker.partition.subqueue import Subqueue
from broker.partition.summary import Summary
from broker.partition.task import PartitionTask
from broker.partition.task_limits import TaskLimits
from storage.file_store import FileLogStore
from tests.support.hosting import Register
from tests.support.partition_asking import WAIT_S, ask
from tests.support.partition_harness import Harness, one
from tests.support.waiting import until

MIB = 1 << 20
QUEUE = QueueDescription("orders", "5" * 32, 16)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def taken() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def test_what_partitions_have_stored_and_shown_last_does_not_stay_in_memory(
    tmp_path: Path, traced: None
) -> None:
    store = FileLogStore(tmp_path, fsync="never", reserve_bytes=0, committer_threads=1)
    budget = PayloadBudget(0, 0)
    tasks = [
        PartitionTask(
            number,
            log=store.log(QUEUE.generation, number),
            clock=ManualClock(),
            description=QUEUE,
            payloads=budget,
        )
        for number in range(6)
    ]
    runs = [asyncio.create_task(task.run()) for task in tasks]
    for task in tasks:
        assert isinstance(await ask(task, Send([b"first"], None)), Sent)
    before = taken()
    for make in (lambda: Send([bytes(MIB // 2)] * 4, None), lambda: Peek(MAIN, 0, 10)):
        for task in tasks:
            await ask(task, make())
        # Upkeep may still be under way. 12 MiB were sent, and as much was shown.
        async with asyncio.timeout(WAIT_S):
            while taken() - before > 2 * MIB:  # noqa: ASYNC110 - memory tells nobody
                await asyncio.sleep(0.05)
    for task, run in zip(tasks, runs, strict=True):
        await task.stop()
        await asyncio.wait_for(run, WAIT_S)
    await store.close()


class Entered(Register):
    """Keeps what the index has of a partition."""

    latest: Summary | None = None

    async def opening(self) -> None:
        await super().opening()
        self.latest = None

    def closed(self, summary: Summary) -> None:
        super().closed(summary)
        self.latest = summary


@dataclass
class Resting:
    """A running partition on files, which comes to rest after a second and is closed after a minute more."""

    task: PartitionTask
    clock: ManualClock
    register: Entered
    store: FileLogStore

    async def rest(self) -> None:
        """Let the partition come to rest."""
        self.clock.advance(2_000)
        self.task.wake()
        await until(lambda: self.register.latest is not None)

    async def pass_time(self, ms: int) -> None:
        """Let this time pass, and the partition do what is due then."""
        self.clock.advance(ms)
        self.task.wake()
        for _ in range(5):
            await asyncio.sleep(0)


@asynccontextmanager
async def resting(folder: Path) -> AsyncIterator[Resting]:
    store = FileLogStore(folder, fsync="never", reserve_bytes=0, committer_threads=1)
    clock, register = ManualClock(), Entered()
    task = PartitionTask(
        0,
        log=store.log(QUEUE.generation, 0),
        clock=clock,
        description=QUEUE,
        payloads=PayloadBudget(0, 0),
        limits=TaskLimits(rest_ms=1_000, close_ms=60_000),
        register=register,
    )
    run = asyncio.create_task(task.run())
    try:
        yield Resting(task, clock, register, store)
    finally:
        await task.stop()
        await asyncio.wait_for(run, WAIT_S)
        await store.close()


async def test_a_partition_that_nobody_has_used_for_long_is_closed_and_opens_again(tmp_path: Path) -> None:
    async with resting(tmp_path) as partition:
        task = partition.task
        assert one([await ask(task, Send([b"a"] * 3, None))], Sent)
        tokens = one([await ask(task, Demand(MAIN, 3))], Locked).tokens
        await ask(task, Complete(tokens))
        task.post(Detach(), ClientId(1), print)
        await partition.rest()
        assert task.health is Health.HEALTHY
        await partition.pass_time(61_000)
        await until(lambda: task.health is Health.CLOSED)
        assert task._partition is None and task.available
        await until(lambda: not list(partition.store._shared.open_segments))
        assert task.counts()[MAIN] == SubqueueCounts()
        assert partition.register.latest is not None, "the index knows what it holds"

        sent = one([await ask(task, Send([b"b"], None))], Sent)
        assert sent.first == 4, "no sequence number is used twice"
        assert task.health is Health.HEALTHY and partition.register.latest is None
        assert one([await ask(task, Demand(MAIN, 1))], Locked).messages == [b"b"]


async def test_a_partition_stays_open_while_it_holds_a_message_or_has_a_client(tmp_path: Path) -> None:
    async with resting(tmp_path) as partition:
        task = partition.task
        await ask(task, Send([b"kept"], None))
        await partition.rest()
        await partition.pass_time(61_000)
        assert task.health is Health.HEALTHY, "it holds a message"
        tokens = one([await ask(task, Demand(MAIN, 2))], Locked).tokens
        await ask(task, Complete(tokens))
        await partition.rest()
        for _ in range(3):
            await partition.pass_time(61_000)
        assert task.health is Health.HEALTHY, "a client waits"
        task.post(Detach(), ClientId(1), print)
        for _ in range(2):
            await partition.pass_time(61_000)
        await until(lambda: task.health is Health.CLOSED)
        await task.opened()
        assert task.health is Health.HEALTHY, "whoever wants to count it can open it"


async def test_while_memory_is_scarce_a_partition_is_closed_that_holds_what_it_held_when_it_was_opened(
    tmp_path: Path,
) -> None:
    async with resting(tmp_path) as partition:
        await ask(partition.task, Send([bytes(1_000)] * 3, None))
        assert not partition.task.close_if_unused(), "what is sent takes memory, and no more is accepted"
    async with resting(tmp_path) as partition:
        task = partition.task
        tokens = one([await ask(task, Demand(MAIN, 1))], Locked).tokens
        task.post(Detach(), ClientId(1), print)
        await until(lambda: not task._mailbox.attached)
        assert not task.close_if_unused(), "a client has locked a message"
        task.post(Release(tokens), ClientId(1), print)
        await until(lambda: not (task._mailbox.waiting or (task._partition and task._partition._space.locks)))
        watching = ClientId(7)
        task.post(Watch(MAIN, 0), watching, print)
        await until(lambda: watching in task._mailbox.attached)
        assert not task.close_if_unused(), "a client waits"
        task.post(Detach(), watching, print)
        await until(lambda: not task._mailbox.attached)
        assert task.close_if_unused() and task.health is Health.HEALTHY, "it comes to rest first"
        await partition.pass_time(1_001)
        task.close_if_unused()
        await until(lambda: task.health is Health.CLOSED)
        assert task._partition is None and task.counts()[MAIN].active == 3
        assert partition.register.latest is not None, "the index knows what it holds"
        tokens = one([await ask(task, Demand(MAIN, 9))], Locked).tokens
        assert len(tokens) == 3
        await ask(task, Complete(tokens[:1]))
        task.post(Detach(), ClientId(1), print)
        await until(lambda: not task._mailbox.attached)
        task.post(Release(tokens[1:]), ClientId(1), print)
        await until(lambda: not (task._mailbox.waiting or (task._partition and task._partition._space.locks)))
        assert not task.close_if_unused(), "it has changed"


def _table_bytes(subqueue: Subqueue) -> int:
    return sum(map(sys.getsizeof, subqueue.references._chunks.values()))


async def test_a_backlog_that_has_gone_leaves_no_table_behind() -> None:
    harness = Harness(payload_bytes=0)
    await harness.send(*[b"x"] * 20_000)
    assert _table_bytes(harness.subqueues[0]) > MIB // 2
    for _ in range(20):  # one of each thousand stays, in the dead-letter queue
        tokens = (await harness.receive(1, 1_000)).tokens
        await harness.do(1, DeadLetter(tokens[:1]), Complete(tokens[1:]))
    await harness.do(1, Detach())
    main, dead_letters = harness.subqueues[:2]
    assert _table_bytes(main) == 0 and len(dead_letters.references) == 20
    first = await harness.send(b"y", b"z")
    assert (await harness.peek()).sequence_numbers == [first, first + 1]


async def test_few_messages_that_stay_keep_no_large_table() -> None:
    harness = Harness(payload_bytes=0)
    first = await harness.send(*[b"x"] * 20_000)
    from_number, deleted = first + 10, 0
    while deleted < 19_990:
        deleted += one(await harness.do(1, Delete(MAIN, 4_000, 1 << 62, from_number)), Deleted).count
    assert 0 < _table_bytes(harness.subqueues[0]) < 100_000
    assert (await harness.peek()).sequence_numbers == list(range(first, first + 10))
    assert (await harness.receive(1, 20)).sequence_numbers == list(range(first, first + 10))
    assert (await harness.peek(DEAD_LETTER)).sequence_numbers == []
