"""A transaction is never half applied: the disk fails at every record of it, the process dies at every byte,
and what is left is the state before it or the state after it.
"""

from __future__ import annotations

import errno
from contextlib import AbstractAsyncContextManager

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueDescription
from broker.identifiers import LockToken
from broker.message.changes import encode_changes
from broker.operations.general import Detach, Failed
from broker.operations.sending import Send, Sent
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Settled
from broker.operations.transactions import Transact, Transacted
from broker.partition.task import PartitionTask
from storage.disk import Disk
from storage.log import FRAME_HEADER_BYTES, Log, Position
from tests.support.dying_process import Snapshots, partition_on
from tests.support.faulty_disk import FaultyDisk
from tests.support.partition_asking import CLIENT, ask, pages, receive
from tests.support.recording_disk import RecordingDisk

QUEUE = QueueDescription("orders", "5" * 32, 1)
BEFORE = {MAIN: [b"old 0", b"old 1", b"old 2", b"old 3"], DEAD_LETTER: []}
AFTER = {MAIN: [b"old 1", b"old 2", b"new 0", b"new 1"], DEAD_LETTER: [b"old 3"]}

State = dict[str, list[bytes]]


def partition(disk: Disk) -> AbstractAsyncContextManager[tuple[PartitionTask, Log]]:
    return partition_on(disk, QUEUE)


async def locked(task: PartitionTask) -> list[LockToken]:
    assert isinstance(await ask(task, Send(BEFORE[MAIN], None)), Sent)
    return await received(task)


async def received(task: PartitionTask) -> list[LockToken]:
    tokens = [token for answer in await receive(task, MAIN, 4) for token in answer.tokens]
    task.post(Detach(), CLIENT, lambda answer: None)  # it does not hear when the partition goes down
    return tokens


def transaction(tokens: list[LockToken]) -> Transact:
    settlements: list[Complete | Abandon | Defer | DeadLetter] = [
        Complete(tokens[:1]),
        Abandon(tokens[1:2], encode_changes({"note": "n"})),
        Defer(tokens[2:3]),
        DeadLetter(tokens[3:]),
    ]
    return Transact(Send(AFTER[MAIN][2:], None), settlements)


async def state(task: PartitionTask) -> State:
    task.check()
    return {
        subqueue: [each async for page in pages(task, subqueue) for each in page.messages]
        for subqueue in (MAIN, DEAD_LETTER)
    }


async def state_on(disk: Disk) -> State:
    """What a new process finds."""
    async with partition(disk) as (task, _):
        return await state(task)


async def places() -> list[int]:
    """The offsets in a transaction's frame where a record begins, ends, or is torn, up to its end."""
    async with partition(RecordingDisk()) as (task, log):
        tokens = await locked(task)
        start = log.end
        assert await ask(task, transaction(tokens)) == Transacted(2, None)
        (frame,) = await log.fetch([Position(start)])
        records = frame.records()
        assert len(records) == 5, "one for the sends and one for each settlement"
        found = {1, FRAME_HEADER_BYTES, frame.size}
        for record in records:
            found |= {record.offset - 8, record.offset, record.offset + len(record.body) // 2}
        return sorted(found)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["fails", "is full"])
async def test_a_disk_that_fails_at_any_record_leaves_nothing_of_a_transaction(error: int) -> None:
    for place in (await places())[:-1]:
        inner = RecordingDisk()
        disk = FaultyDisk(inner)
        async with partition(disk) as (task, _):
            tokens = await locked(task)
            disk.shorten(place)
            disk.fail("write", error, times=1 if error == errno.EIO else -1)
            answer = await ask(task, transaction(tokens))
            disk.heal()
            assert isinstance(answer, Failed)
            assert await state(task) == BEFORE, f"after {place} bytes"
            if answer.reason is Reason.DISK_FULL:
                assert await ask(task, Complete(tokens)) == Settled(None), "no lock was lost"
            else:
                assert await ask(task, transaction(await received(task))) == Transacted(2, None)
            left = await state(task)
        assert await state_on(inner.after_power_cut()) == left


async def test_a_sync_that_fails_leaves_nothing_of_a_transaction() -> None:
    inner = RecordingDisk()
    disk = FaultyDisk(inner)
    async with partition(disk) as (task, _):
        tokens = await locked(task)
        disk.fail("sync")
        assert isinstance(await ask(task, transaction(tokens)), Failed)
        assert await state(task) == BEFORE
    assert await state_on(inner.after_power_cut()) == BEFORE


async def test_a_process_that_dies_at_any_record_leaves_all_of_a_transaction_or_nothing() -> None:
    found = await places()
    for place in found:
        inner = Snapshots()
        disk = FaultyDisk(inner)
        async with partition(disk) as (task, _):
            tokens = await locked(task)
            inner.after_write = None
            disk.shorten(place)
            disk.fail("write", times=-1)
            answer = await ask(task, transaction(tokens))
            disk.heal()
        assert isinstance(answer, Transacted) == (place == found[-1])
        assert inner.after_write is not None
        expected = AFTER if place == found[-1] else BEFORE
        assert await state_on(inner.after_write) == expected, f"after {place} bytes"
