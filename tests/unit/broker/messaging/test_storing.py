"""Messages of one request: which partitions store them, and what becomes of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.identifiers import PARTITION_SHIFT
from broker.messaging.storing import commit_sink_batch, home_of, store_all, store_sink_batch, to_store
from broker.operations.general import Failed
from broker.operations.interface import Answer
from broker.operations.sending import Send, Sent
from broker.operations.streams import SendSinkBatch, SinkBatchSent
from tests.support.amqp_messages import message
from tests.support.link_stack import LinkStack


def keyed(body: str, key: str | None = None) -> bytes:
    return message(annotations={"x-opt-partition-key": key} if key else None, body=[body.encode()])


class Asking:
    """Partitions that answer what they are asked, and keep it."""

    def __init__(self, partitions: int = 4) -> None:
        self.stack = LinkStack(partitions)
        self.queue = self.stack.queue
        self.operations: list[tuple[int, Any]] = []

    def collected(self, *payloads: bytes) -> Any:
        ids = self.stack.services.message_id
        return to_store(self.queue, payloads, memory=self.stack.memory, message_id=ids)

    async def run(self, work: Any, answer: Callable[[int, Any], Answer]) -> Any:
        task = asyncio.ensure_future(work)
        for _ in range(1_000):
            await asyncio.sleep(0)
            if task.done():
                return task.result()
            for part in self.stack.parts:
                for kind in (Send, SendSinkBatch):
                    while part.has(kind):
                        operation, sink = part.take(kind)
                        self.operations.append((part.number, operation))
                        sink(answer(part.number, operation))
        raise TimeoutError("no answer")


def first_of(number: int) -> int:
    return number << PARTITION_SHIFT | 10


async def test_each_message_has_an_outcome_in_the_order_of_the_request() -> None:
    asking = Asking()
    of_a, of_b = asking.queue.router.number_of("a"), asking.queue.router.number_of("b")
    assert of_a != of_b

    def answer(number: int, send: Send) -> Answer:
        return Sent(first_of(number), send.cookie, [0] if number == of_a else [])

    payloads = [keyed("0", "a"), keyed("1", "b"), keyed("2", "a"), keyed("3", "b")]
    outcomes = await asking.run(store_all(asking.queue, asking.collected(*payloads)), answer)
    assert outcomes.duplicates == [0] and outcomes.refusals == []
    assert outcomes.numbers == [0, first_of(of_b), first_of(of_a), first_of(of_b) + 1]
    assert asking.queue.meter.duplicate_messages == 1 and asking.queue.meter.incoming_messages == 4


async def test_what_one_partition_refuses_does_not_hide_what_others_have_stored() -> None:
    asking = Asking()
    of_a = asking.queue.router.number_of("a")

    def answer(number: int, send: Send) -> Answer:
        if number == of_a:
            return Failed(Reason.QUOTA_EXCEEDED, "It is full.", send.cookie)
        return Sent(first_of(number), send.cookie)

    work = store_all(asking.queue, asking.collected(keyed("0", "a"), keyed("1", "b")))
    outcomes = await asking.run(work, answer)
    assert outcomes.numbers[0] == 0 and outcomes.numbers[1] and len(outcomes.refusals) == 1


async def test_a_batch_goes_to_one_partition_with_its_place_in_the_ledger() -> None:
    asking = Asking()
    home = home_of(asking.queue, b"sink")

    def answer(number: int, operation: SendSinkBatch) -> Answer:
        dropped = [1] if len(operation.send.messages) > 1 else []
        return SinkBatchSent(first_of(number), dropped, True, operation.batch, operation.cookie)

    work = store_sink_batch(asking.queue, asking.collected(keyed("0"), keyed("1")), b"sink", 7, 9)
    outcomes, sent = await asking.run(work, answer)
    ((number, operation),) = asking.operations
    assert (number, operation.sink, operation.batch, operation.sinks_max) == (home, b"sink", 7, 9)
    assert len(operation.send.messages) == 2 and sent.is_new
    assert (outcomes.numbers, outcomes.duplicates) == ([first_of(home), 0], [1])
    asking.operations.clear()
    of_a = asking.queue.router.number_of("a")
    await asking.run(store_sink_batch(asking.queue, asking.collected(keyed("0", "a")), b"sink", 8, 9), answer)
    assert asking.operations[0][0] == of_a


async def test_a_batch_of_several_partitions_is_refused() -> None:
    asking = Asking()
    work = store_sink_batch(asking.queue, asking.collected(keyed("0", "a"), keyed("1", "b")), b"sink", 7, 9)
    with pytest.raises(Refused) as refused:
        await asking.run(work, lambda number, operation: pytest.fail("asked"))
    assert refused.value.reason is Reason.ARGUMENT


async def test_a_batch_is_noted_without_messages() -> None:
    asking = Asking()
    work = commit_sink_batch(asking.queue, 2, b"sink", 7, 9)
    sent = await asking.run(work, lambda number, operation: SinkBatchSent(1, [], False, 8, operation.cookie))
    ((number, operation),) = asking.operations
    assert (number, list(operation.send.messages), sent.batch) == (2, [], 8)
