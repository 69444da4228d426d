"""Partitions of a topic with many subscriptions stop and come to rest together. The event loop counts only a
few of their subqueues in each turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from broker.base.clock import ManualClock
from broker.base.slices import Slices
from broker.operations.browsing import Peek
from broker.operations.sending import Send, Sent
from broker.partition import totals
from broker.partition.counting import SUBQUEUES_PER_STEP
from broker.partition.payloads import PayloadBudget
from broker.partition.subqueue import Subqueue
from broker.partition.summary import Summary, summary_in_turns, summary_of
from broker.partition.task import PartitionTask
from broker.partition.task_limits import TaskLimits
from tests.support.hosting import Register
from tests.support.memory_log import Disk, MemoryLog
from tests.support.partition_asking import WAIT_S, ask
from tests.support.partition_harness import Harness, one
from tests.support.topics import BLUE, A, topic
from tests.support.waiting import until

PARTITIONS = 3
TOPIC = topic("a", *(f"s{number}" for number in range(2 * SUBQUEUES_PER_STEP + 50)))
REST_MS = 1_000


class Entered(Register):
    """Keeps what the index has of a partition."""

    latest: Summary | None = None

    def closed(self, summary: Summary) -> None:
        super().closed(summary)
        self.latest = summary


class Turns:
    """How many subqueues each turn of the event loop has counted."""

    def __init__(self) -> None:
        self.counted: Counter[int] = Counter()
        self._turn = 0
        self._ticking: asyncio.Handle | None = None

    def begin(self) -> None:
        """Begin to count, with nothing."""
        self.counted.clear()
        if self._ticking is None:
            self._tick()

    def _tick(self) -> None:
        self._turn += 1
        self._ticking = asyncio.get_running_loop().call_soon(self._tick)

    def note(self) -> None:
        self.counted[self._turn] += 1

    def end(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()

    @property
    def most(self) -> int:
        return max(self.counted.values(), default=0)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    counted, row_of = Turns(), totals._row_of

    def noted(subqueue: Subqueue) -> tuple[int, int, int, int, int]:
        counted.note()
        return row_of(subqueue)

    monkeypatch.setattr(totals, "_row_of", noted)
    yield counted
    counted.end()


class Filled:
    """Running partitions with a message for each subscription, which share the slices of the event loop."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registers = [Entered() for _ in range(PARTITIONS)]
        slices, payloads = Slices(0), PayloadBudget(1 << 26, 0)
        self.tasks = [
            PartitionTask(
                number,
                log=MemoryLog(Disk()),
                clock=self.clock,
                description=TOPIC,
                payloads=payloads,
                limits=TaskLimits(rest_ms=REST_MS),
                register=register,
                slices=slices,
            )
            for number, register in enumerate(self.registers)
        ]

    async def stop(self, *, is_deleted: bool = False) -> None:
        """Stop all partitions together."""
        await asyncio.gather(*(each.stop(is_deleted=is_deleted) for each in self.tasks))


@asynccontextmanager
async def filled() -> AsyncIterator[Filled]:
    made = Filled()
    runs = [asyncio.create_task(task.run()) for task in made.tasks]
    for task in made.tasks:
        one([await ask(task, Send([BLUE], None))], Sent)
        await ask(task, Peek(A, 0, 1))  # this cycle has noted what the one before it changed
    try:
        yield made
    finally:
        await made.stop()
        await asyncio.wait_for(asyncio.gather(*runs), WAIT_S)


async def test_partitions_that_stop_together_are_counted_in_turns(turns: Turns) -> None:
    """Symptom: 16 partitions with messages for 1,000 subscriptions held the event loop for 150 ms."""
    async with filled() as partitions:
        before = [task.counts() for task in partitions.tasks]
        turns.begin()
        await partitions.stop()
        assert sum(turns.counted.values()) == PARTITIONS * len(TOPIC.subscriptions)
        assert turns.most <= SUBQUEUES_PER_STEP
        assert [task.counts() for task in partitions.tasks] == before
        for register in partitions.registers:
            assert register.latest is not None and len(register.latest.counts) == len(TOPIC.subscriptions) + 1


async def test_what_a_deleted_topic_holds_is_not_counted(turns: Turns) -> None:
    """Symptom: its partitions were counted twice in one turn, 150 ms with 1,000 subscriptions."""
    async with filled() as partitions:
        turns.begin()
        await partitions.stop(is_deleted=True)
        assert not turns.counted and not any(register.latest for register in partitions.registers)


async def test_partitions_that_come_to_rest_together_are_counted_in_turns(turns: Turns) -> None:
    async with filled() as partitions:
        turns.begin()
        partitions.clock.advance(2 * REST_MS)
        for task in partitions.tasks:
            task.wake()
        await until(lambda: all(register.latest for register in partitions.registers))
        assert 0 < turns.most <= SUBQUEUES_PER_STEP


async def test_a_partition_at_rest_takes_what_comes_while_it_is_counted() -> None:
    async with filled() as partitions:
        partitions.clock.advance(2 * REST_MS)
        for task in partitions.tasks:
            task.wake()
        for task in partitions.tasks:
            one([await ask(task, Send([BLUE], None))], Sent)
        assert [task.counts()[A].active for task in partitions.tasks] == [2] * PARTITIONS


async def test_a_summary_in_turns_is_that_of_one_piece() -> None:
    for description in (topic(), topic("a"), TOPIC):
        harness = Harness(description=description)
        for _ in range(2):  # empty, and with messages
            await harness.until_quiet()
            await harness.send(BLUE)
            partition = harness.task._partition
            assert partition is not None
            whole = summary_of(partition, harness.clock)
            steps = partition.counting.by_number_in_steps()
            count = sum(1 for _ in steps)
            assert count == -(-len(whole.counts) // SUBQUEUES_PER_STEP)
            found = await summary_in_turns(partition, harness.clock, Slices(0))
            assert found == whole and found.encode() == whole.encode()
            assert partition.counting.of_one("nowhere") == {}
            for name, held in list(harness.task.counts().items())[:3]:
                assert harness.task.counts(name) == {name: held}
