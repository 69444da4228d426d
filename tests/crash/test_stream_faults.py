"""Whatever fails while a client that reads and writes by position changes something, it has happened as a
whole or not at all: cursors that are created, taken over, advanced and deleted, messages that are completed
up to a position, and batches of sinks with their place in the ledger.

`change_faults.py` says where something fails.
"""

from __future__ import annotations

from hashlib import blake2b

from broker.base.clock import ManualClock
from broker.entities.descriptions import MAIN, QueueDescription, QueueSettings
from broker.operations.interface import Operation
from broker.operations.sending import Send, Sent
from broker.operations.streams import (
    EARLIEST,
    AdvanceCursor,
    CreateCursor,
    CursorState,
    DeleteCursor,
    SendSinkBatch,
    SettleThrough,
    SinkBatchSent,
)
from broker.partition.duplicates import IDENTITY_BYTES
from broker.partition.task import PartitionTask
from tests.crash.change_faults import Changes, Prepare
from tests.support.partition_asking import ask

QUEUE = QueueDescription("orders", "5" * 32, 1, QueueSettings(requires_duplicate_detection=True))
ME, YOU, NAME, SINK = b"me", b"you", b"reader", b"sink"


def send_of(*ids: str) -> Send:
    send = Send([each.encode() * 20 for each in ids], None)
    send.identities = [blake2b(each.encode(), digest_size=IDENTITY_BYTES).digest() for each in ids]
    return send


def creation(owner: bytes = ME, *, takes_over: bool = False) -> CreateCursor:
    return CreateCursor(MAIN, NAME, owner, EARLIEST, takes_over, 60_000, 10)


async def sent(task: PartitionTask) -> int:
    """Send four messages; gives the first sequence number."""
    answer = await ask(task, send_of("a", "b", "c", "d"))
    assert isinstance(answer, Sent)
    return answer.first


async def created(task: PartitionTask) -> int:
    """Send four messages and create a cursor at the first of them; gives its sequence number."""
    first = await sent(task)
    assert isinstance(await ask(task, creation()), CursorState)
    return first


async def creates(task: PartitionTask, clock: ManualClock) -> Operation:
    await sent(task)
    return creation()


async def takes_over(task: PartitionTask, clock: ManualClock) -> Operation:
    await created(task)
    return creation(YOU, takes_over=True)


async def advances(task: PartitionTask, clock: ManualClock) -> Operation:
    return AdvanceCursor(MAIN, NAME, ME, await created(task) + 2)


async def advances_and_completes(task: PartitionTask, clock: ManualClock) -> Operation:
    return AdvanceCursor(MAIN, NAME, ME, await created(task) + 2, completes=True)


async def deletes(task: PartitionTask, clock: ManualClock) -> Operation:
    await created(task)
    return DeleteCursor(MAIN, NAME, ME)


async def settles_through(task: PartitionTask, clock: ManualClock) -> Operation:
    return SettleThrough(MAIN, await sent(task) + 3)


async def writes_a_batch(task: PartitionTask, clock: ManualClock) -> Operation:
    await sent(task)
    assert isinstance(await ask(task, SendSinkBatch(send_of("e"), SINK, 1, 10)), SinkBatchSent)
    return SendSinkBatch(send_of("f", "a", "g"), SINK, 2, 10)


async def notes_a_batch(task: PartitionTask, clock: ManualClock) -> Operation:
    await sent(task)
    return SendSinkBatch(Send([], None), SINK, 1, 10)


CHANGES: list[Prepare] = [
    *(creates, takes_over, advances, advances_and_completes, deletes),
    *(settles_through, writes_a_batch, notes_a_batch),
]
(
    test_a_process_that_dies_while_it_writes_leaves_all_of_a_change_or_nothing,
    test_a_disk_that_fails_within_a_change_leaves_nothing_of_it,
    test_a_sync_that_fails_leaves_nothing_of_a_change,
) = Changes(QUEUE, 8_000).tests(CHANGES)
