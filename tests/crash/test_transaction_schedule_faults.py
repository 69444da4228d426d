"""A transaction that schedules and cancels messages, and sends to another entity, is never half applied: the
disk fails at every record of it, the process dies at every record, and what is left is the state before it or
the state after it.
"""

from __future__ import annotations

import errno

import pytest

from broker.entities.descriptions import MAIN, TRANSFER
from broker.operations.browsing import Peek, Peeked
from broker.operations.columns import DESTINATION
from broker.operations.general import Failed
from broker.operations.scheduling import Promised, PromiseNumbers
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete
from broker.operations.transactions import Transact, Transacted
from broker.partition.task import PartitionTask
from storage.disk import Disk
from storage.log import FRAME_HEADER_BYTES, Position
from tests.crash.test_transaction_faults import partition, received
from tests.support.dying_process import Snapshots
from tests.support.faulty_disk import FaultyDisk
from tests.support.partition_asking import ask
from tests.support.recording_disk import RecordingDisk

LATER_MS = 1 << 41
BEFORE = [(b"old", 0), (b"old 1", 0), (b"old 2", 0), (b"old 3", 0), (b"to cancel", 2), (b"between", 0)]
AFTER = [*BEFORE[1:4], (b"later 0", 2), (b"later 1", 2), (b"between", 0), (b"new", 0), (b"there", 0)]
"""The last one is in the transfer subqueue."""


async def prepared(task: PartitionTask) -> Transact:
    """Everything that the transaction is about, and the transaction."""
    sent = await ask(task, Send([body for body, _ in BEFORE[:4]], None))
    assert isinstance(sent, Sent)
    times: list[int | None] = [LATER_MS]
    cancelled = await ask(task, Send([b"to cancel"], None, scheduled_ms=times))
    assert isinstance(cancelled, Sent)
    promise = await ask(task, PromiseNumbers(2))
    assert isinstance(promise, Promised)
    assert isinstance(await ask(task, Send([b"between"], None)), Sent)
    tokens = await received(task)
    later = Send([b"later 0", b"later 1"], None, scheduled_ms=[LATER_MS] * 2)
    numbers = [promise.first, promise.first + 1]
    return Transact(
        Send([b"new"], None),
        [Complete(tokens[:1])],
        cancelled=[cancelled.first],
        scheduled=later,
        promised=numbers,
        transfers=Send([b"there"], None, columns={DESTINATION: [b"other"]}),
    )


async def state(task: PartitionTask) -> list[tuple[bytes, int]]:
    task.check()
    found: list[tuple[bytes, int]] = []
    for subqueue in (MAIN, TRANSFER):
        seen = await ask(task, Peek(subqueue, 0, 100))
        assert isinstance(seen, Peeked)
        found += zip(seen.messages, seen.states, strict=True)
    return found


async def state_on(disk: Disk) -> list[tuple[bytes, int]]:
    async with partition(disk) as (task, _):
        return await state(task)


async def places() -> list[int]:
    """The offsets in the transaction's frame where a record begins, ends, or is torn, up to its end."""
    async with partition(RecordingDisk()) as (task, log):
        asked = await prepared(task)
        assert await state(task) == BEFORE
        start = log.end
        assert await ask(task, asked) == Transacted(4, None)
        assert await state(task) == AFTER
        (frame,) = await log.fetch([Position(start)])
        records = frame.records()
        assert len(records) == 7, (
            "two sends, the counters, the schedules, the cancelling, the way to the transfers, the settlement"
        )
        found = {1, FRAME_HEADER_BYTES, frame.size}
        for record in records:
            found |= {record.offset - 8, record.offset, record.offset + len(record.body) // 2}
        return sorted(found)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["fails", "is full"])
async def test_a_disk_that_fails_at_any_record_leaves_nothing(error: int) -> None:
    for place in (await places())[:-1]:
        inner = RecordingDisk()
        disk = FaultyDisk(inner)
        async with partition(disk) as (task, _):
            asked = await prepared(task)
            disk.shorten(place)
            disk.fail("write", error, times=1 if error == errno.EIO else -1)
            answer = await ask(task, asked)
            disk.heal()
            assert isinstance(answer, Failed)
            assert await state(task) == BEFORE, f"after {place} bytes"
            left = await state(task)
        assert await state_on(inner.after_power_cut()) == left


async def test_a_process_that_dies_at_any_record_leaves_all_or_nothing() -> None:
    found = await places()
    for place in found:
        inner = Snapshots()
        disk = FaultyDisk(inner)
        async with partition(disk) as (task, _):
            asked = await prepared(task)
            inner.after_write = None
            disk.shorten(place)
            disk.fail("write", times=-1)
            answer = await ask(task, asked)
            disk.heal()
        assert isinstance(answer, Transacted) == (place == found[-1])
        assert inner.after_write is not None
        expected = AFTER if place == found[-1] else BEFORE
        assert await state_on(inner.after_write) == expected, f"after {place} bytes"
