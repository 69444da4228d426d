"""What a partition keeps in memory once its traffic is over: next to nothing."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.base.clock import ManualClock
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueDescription
from broker.operations import Complete, DeadLetter, Delete, Deleted, Detach, Peek, Send, Sent
from broker.partition.payloads import PayloadBudget
from broker.partition.task import PartitionTask
from storage.file_store import FileLogStore
from tests.support.partition_asking import WAIT_S, ask
from tests.support.partition_harness import Harness, one

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


async def test_a_backlog_that_has_gone_leaves_no_table_behind() -> None:
    harness = Harness(payload_bytes=0)
    await harness.send(*[b"x"] * 20_000)
    large = sys.getsizeof(harness.subqueues[0].references)
    assert large > MIB // 2
    for _ in range(20):  # one of each thousand stays, in the dead-letter queue
        tokens = (await harness.receive(1, 1_000)).tokens
        await harness.do(1, DeadLetter(tokens[:1]), Complete(tokens[1:]))
    await harness.do(1, Detach())
    main, dead_letters = harness.subqueues[:2]
    assert (
        sys.getsizeof(main.references) < 70_000 and not main.references and len(dead_letters.references) == 20
    )
    first = await harness.send(b"y", b"z")
    assert (await harness.peek()).sequence_numbers == [first, first + 1]


async def test_few_messages_that_stay_keep_no_large_table() -> None:
    harness = Harness(payload_bytes=0)
    first = await harness.send(*[b"x"] * 20_000)
    from_number, deleted = first + 10, 0
    while deleted < 19_990:
        deleted += one(await harness.do(1, Delete(MAIN, 4_000, 1 << 62, from_number)), Deleted).count
    assert sys.getsizeof(harness.subqueues[0].references) < 100_000
    assert (await harness.peek()).sequence_numbers == list(range(first, first + 10))
    assert (await harness.receive(1, 20)).sequence_numbers == list(range(first, first + 10))
    assert (await harness.peek(DEAD_LETTER)).sequence_numbers == []
