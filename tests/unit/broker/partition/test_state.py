"""The rules of the queue, one by one: what each operation does and what it refuses. Runs through the task, on
a log in memory."""

from __future__ import annotations

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, MESSAGE_OVERHEAD_BYTES, TRANSFER_DEAD_LETTER
from broker.operations.browsing import Peek
from broker.operations.general import Failed, Update, Updated
from broker.operations.message_states import MessageState
from broker.operations.receiving import Recalled
from broker.operations.settling import Abandon, DeadLetter, Defer
from broker.partition import records
from broker.partition.records import Mark
from tests.support.partition_harness import LOCK_MS, Harness, one


async def test_an_unknown_subqueue_is_refused() -> None:
    harness = Harness()
    refused = one(await harness.do(1, Peek("no such", 0, 1, "mine")), Failed)
    assert refused.reason is Reason.ENTITY_NOT_FOUND and refused.cookie == "mine"


async def test_a_record_of_an_earlier_release_that_deferred_without_counting_is_read_so() -> None:
    harness = Harness()
    number = await harness.send(b"a")
    commit = harness.log.begin()
    commit.add(records.DEFERRED, [records.encode_mark(Mark(records.DEFERRED, 0, [number]))], 1)
    await harness.log.append(commit)
    await harness.restart(clean=False)
    peeked = await harness.peek()
    assert (peeked.states, peeked.delivery_counts) == ([MessageState.DEFERRED], [0])


async def test_an_update_makes_the_partition_work_with_the_new_settings() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    harness.change(lock_duration_ms=5_000, max_delivery_count=1)
    assert (await harness.receive(1)).locked_until_ms == harness.clock.monotonic_ms() + LOCK_MS
    assert await harness.do(1, Update(harness.description, "mine")) == [Updated("mine")]
    locked = await harness.receive(1)
    assert locked.locked_until_ms == harness.clock.monotonic_ms() + 5_000
    await harness.do(1, Abandon(locked.tokens))
    assert harness.task.counts()[DEAD_LETTER].active == 1


async def test_counts_tell_states_and_bytes_of_each_subqueue() -> None:
    harness = Harness()
    await harness.send(b"12345", b"123", b"1", b"")
    tokens = (await harness.receive(1, 3)).tokens
    await harness.do(1, Defer([tokens[0]]))
    await harness.do(1, DeadLetter([tokens[1]]))
    counts = harness.task.counts()
    assert (counts[MAIN].active, counts[MAIN].locked, counts[MAIN].deferred, counts[MAIN].bytes) == (
        2,
        1,
        1,
        6 + 3 * MESSAGE_OVERHEAD_BYTES,
    )
    assert (counts[DEAD_LETTER].active, counts[DEAD_LETTER].bytes) == (1, 3 + MESSAGE_OVERHEAD_BYTES)
    assert counts[TRANSFER_DEAD_LETTER].active == 0
    await harness.do(1, Recalled(MAIN, [tokens[2]]))
    assert harness.task.counts()[MAIN].locked == 0
