"""Many partitions that are woken together join the line to be opened, and begin their cycles, in different
turns of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.base.clock import ManualClock
from broker.base.pace import PACE_S
from broker.base.slices import Slices
from broker.entities.descriptions import MAIN, EntityDescription, QueueDescription, QueueSettings
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Detach, Failed, Update, Updated
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Demand, Unmet
from broker.partition.health import Health
from broker.partition.openings import WOKEN_AT_ONCE, Openings
from broker.partition.payloads import PayloadBudget
from broker.partition.state import Partition
from broker.partition.task import PartitionTask
from tests.support.memory_log import Disk, MemoryLog
from tests.support.partition_asking import CLIENT, WAIT_S, ask
from tests.support.topics import A, topic

PARTITIONS = 12
TOPIC = topic("a")
QUEUE = QueueDescription("orders", "6" * 32, 16, QueueSettings())


def slow_clock() -> Iterator[float]:
    """The times that a clock shows on which everything takes long."""
    now_s = 0.0
    while True:
        yield now_s
        now_s += PACE_S


@pytest.mark.parametrize(
    ("described", "subqueue", "operation"),
    [
        (TOPIC, A, Update(TOPIC)),
        (TOPIC, A, Demand(A, 1, tell_unmet=True)),
        (QUEUE, MAIN, Demand(MAIN, 1, tell_unmet=True)),
    ],
)
async def test_partitions_that_are_woken_together_take_turns(
    described: EntityDescription, subqueue: str, operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: 16 partitions of a topic with 1,000 subscriptions each stored a message in one turn of the
    event loop, for 290 ms on a busy machine."""
    begun: Counter[int] = Counter()
    answers: list[Answer] = []
    turn, begin = 0, Partition.begin

    def noted(self: Partition, *args: Any) -> Any:
        begun[turn] += 1
        return begin(self, *args)

    clock, turns, payloads = ManualClock(), Slices(0, slow_clock().__next__), PayloadBudget(1 << 26, 0)
    tasks = [
        PartitionTask(
            number, log=MemoryLog(Disk()), clock=clock, description=described, payloads=payloads, turns=turns
        )
        for number in range(PARTITIONS)
    ]
    runs = [asyncio.create_task(task.run()) for task in tasks]
    for task in tasks:
        await ask(task, Peek(subqueue, 0, 1))
    monkeypatch.setattr(Partition, "begin", noted)
    for task in tasks:
        task.post(operation, CLIENT, answers.append)

    async with asyncio.timeout(WAIT_S):
        while len(answers) < PARTITIONS:
            await asyncio.sleep(0)
            turn += 1
    assert all(isinstance(each, Updated | Unmet) for each in answers)
    assert sum(begun.values()) == PARTITIONS
    assert max(begun.values()) <= 2, "this task runs between the two"
    for task in tasks:
        await task.stop()
    await asyncio.wait_for(asyncio.gather(*runs), WAIT_S)


class Closed:
    """Closed partitions of one data folder, running."""

    def __init__(self, count: int = 3 * WOKEN_AT_ONCE) -> None:
        self.turn = 0
        self.joined: list[tuple[int, int]] = []
        """The turn in which each joined the line to be opened, and its number."""
        clock, payloads, slices, openings = ManualClock(), PayloadBudget(1 << 26, 0), Slices(0), Openings()
        self.tasks = [
            PartitionTask(
                number,
                log=MemoryLog(Disk()),
                clock=clock,
                description=QUEUE,
                payloads=payloads,
                slices=slices,
                on_health=self._noted,
                openings=openings,
            )
            for number in range(count)
        ]
        self.runs = [asyncio.create_task(task.run()) for task in self.tasks]
        self.answers: list[Answer] = []

    def _noted(self, number: int, health: Health) -> None:
        if health is Health.OPENING:
            self.joined.append((self.turn, number))

    def ask(self, operation: Operation, *numbers: int) -> None:
        """Ask these partitions, or all."""
        for number in numbers or range(len(self.tasks)):
            self.tasks[number].post(operation, CLIENT, self.answers.append)

    async def turns(self, is_done: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not is_done():
                await asyncio.sleep(0)
                self.turn += 1

    async def stop(self) -> None:
        await asyncio.gather(*(task.stop() for task in self.tasks))
        await asyncio.wait_for(asyncio.gather(*self.runs), WAIT_S)


@pytest.mark.parametrize("operation", [Demand(MAIN, 1, tell_unmet=True), Peek(MAIN, 0, 1)])
async def test_closed_partitions_that_are_wanted_together_join_the_line_over_several_turns(
    operation: Operation,
) -> None:
    """Symptom: 150 links that granted credit on closed partitions, 16 each, had up to 500 of these join the
    line in one turn of the event loop, which took 20 ms."""
    closed = Closed()
    closed.ask(operation)
    await closed.turns(lambda: len(closed.answers) == len(closed.tasks))
    assert all(isinstance(each, Peeked | Unmet) for each in closed.answers)
    joined = Counter(turn for turn, _ in closed.joined)
    assert joined.total() == len(closed.tasks) and max(joined.values()) <= WOKEN_AT_ONCE
    await closed.stop()


async def test_who_awaits_an_answer_joins_the_line_before_receivers() -> None:
    closed = Closed()
    last = len(closed.tasks) - 1
    closed.ask(Demand(MAIN, 1))
    closed.ask(Peek(MAIN, 0, 1), last)
    await closed.turns(lambda: bool(closed.answers))
    assert closed.joined[0][1] == last
    await closed.stop()


async def test_a_receiver_that_has_gone_while_a_partition_waited_to_be_woken_is_forgotten() -> None:
    closed = Closed()
    closed.ask(Demand(MAIN, 1))
    closed.ask(Detach())
    await closed.turns(lambda: all(task.health is Health.HEALTHY for task in closed.tasks))
    await closed.turns(lambda: not any(task._mailbox for task in closed.tasks))
    assert not any(task._mailbox.attached for task in closed.tasks)
    await closed.stop()


async def test_partitions_that_are_stopped_while_they_wait_to_be_woken_answer() -> None:
    closed = Closed()
    closed.ask(Peek(MAIN, 0, 1))
    await asyncio.wait_for(closed.stop(), WAIT_S)
    assert len(closed.answers) == len(closed.tasks)
    assert all(isinstance(each, Peeked | Failed) for each in closed.answers)
