"""Ask a partition that runs on its own, one operation at a time, as one client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from broker.identifiers import ClientId
from broker.operations.browsing import Peek, Peeked
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Demand, Locked, Withdraw, Withdrawn
from broker.partition.task import PartitionTask

CLIENT = ClientId(1)
WAIT_S = 20


async def ask(task: PartitionTask, operation: Operation) -> Answer:
    """The first answer to an operation."""
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    task.post(operation, CLIENT, lambda answer: None if answered.done() else answered.set_result(answer))
    return await asyncio.wait_for(answered, WAIT_S)


async def receive(task: PartitionTask, subqueue: str, count: int) -> list[Locked]:
    """Wait for at most `count` messages, and withdraw the rest of the demand. A demand may be answered
    several times.
    """
    answers: list[Locked] = []
    arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(answer: Answer) -> None:
        assert isinstance(answer, Locked)
        answers.append(answer)
        if not arrived.done():
            arrived.set_result(None)

    task.post(Demand(subqueue, count), CLIENT, take)
    await asyncio.wait_for(arrived, WAIT_S)
    assert isinstance(await ask(task, Withdraw(subqueue)), Withdrawn)
    return answers


async def pages(task: PartitionTask, subqueue: str, count: int = 100) -> AsyncIterator[Peeked]:
    """All messages in a subqueue, in pages of `count`."""
    start = 0
    while True:
        page = await ask(task, Peek(subqueue, start, count))
        assert isinstance(page, Peeked)
        if not page.messages:
            return
        yield page
        start = page.sequence_numbers[-1] + 1
