"""The cycles of many partitions that are woken together begin in different turns of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from broker.base.clock import ManualClock
from broker.base.pace import PACE_S
from broker.base.slices import Slices
from broker.entities.descriptions import MAIN, EntityDescription, QueueDescription, QueueSettings
from broker.operations.browsing import Peek
from broker.operations.general import Update, Updated
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Demand, Unmet
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
