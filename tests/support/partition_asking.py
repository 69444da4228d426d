"""Asking a partition that runs on its own, one operation after the other, as one client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from broker.operations import Answer, ClientId, Operation, Peek, Peeked
from broker.partition.task import PartitionTask

CLIENT = ClientId(1)
WAIT_S = 20


async def ask(task: PartitionTask, operation: Operation) -> Answer:
    """The first answer to an operation."""
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    task.post(operation, CLIENT, lambda answer: None if answered.done() else answered.set_result(answer))
    return await asyncio.wait_for(answered, WAIT_S)


async def pages(task: PartitionTask, subqueue: str, count: int = 100) -> AsyncIterator[Peeked]:
    """Everything in a subqueue, so many messages at a time."""
    start = 0
    while True:
        page = await ask(task, Peek(subqueue, start, count))
        assert isinstance(page, Peeked)
        if not page.messages:
            return
        yield page
        start = page.sequence_numbers[-1] + 1
