"""broker/partition/promises.py: numbers that are set aside, and the messages that transactions schedule with
them."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, QueueSettings
from broker.message.identity import IDENTITY_BYTES
from broker.operations.columns import SESSION_ID
from broker.operations.general import Failed
from broker.operations.interface import Operation
from broker.operations.message_states import MessageState
from broker.operations.scheduling import BreakPromise, CancelScheduled, Promised, PromiseNumbers
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete, Settled
from broker.operations.streams import FindPositions, Positions
from broker.operations.transactions import Transact, Transacted
from broker.partition.cycle_bounds import Bounds
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from storage.errors import CommitFailed
from tests.support.partition_harness import Harness, one

HOUR_MS = 3_600_000
NOTHING = Send([], None)
EAGER = TaskLimits(
    upkeep=UpkeepLimits(
        checkpoint_bytes=20_000,
        garbage_bytes_max=10_000,
        garbage_bytes_at_rest=10_000,
        relocation_bytes=4_000,
    )
)
"""Checkpoints, trimming and compaction are due after little traffic."""


async def promised(harness: Harness, count: int) -> list[int]:
    first = one(await harness.do(1, PromiseNumbers(count, "p")), Promised).first
    return list(range(first, first + count))


def scheduling(
    harness: Harness, numbers: list[int], *, sends: int = 0, ttl_ms: int | None = None
) -> Transact:
    """A transaction that schedules a message for each of these promised numbers, all at the same time."""
    at_ms = harness.clock.now_ms() + HOUR_MS
    scheduled = Send(
        [b"later %d" % number for number in numbers],
        None if ttl_ms is None else [ttl_ms] * len(numbers),
        scheduled_ms=[at_ms] * len(numbers),
    )
    sent = Send([b"sent %d" % place for place in range(sends)], None)
    return Transact(sent, [], "mine", scheduled=scheduled, promised=numbers)


@pytest.mark.parametrize("restarts", [None, "crash", "clean", "no checkpoint"])
async def test_messages_have_the_numbers_that_were_promised_although_others_came_first(
    restarts: str | None,
) -> None:
    harness = Harness()
    before = await harness.send(b"before")
    numbers = await promised(harness, 2)
    after = await harness.send(b"after")
    assert (numbers, after) == ([before + 1, before + 2], before + 3)
    at_ms = harness.clock.now_ms() + HOUR_MS
    asked = scheduling(harness, numbers, sends=1, ttl_ms=5_000)
    assert await harness.do(1, asked) == [Transacted(3, "mine")]
    if restarts:
        if restarts == "no checkpoint":
            harness.log.disk.checkpoint = None
        await harness.restart(clean=restarts == "clean")
    seen = await harness.peek()
    assert seen.sequence_numbers == [before, *numbers, after, after + 1]
    assert seen.states == [0, 2, 2, 0, 0] and seen.enqueued_at_ms[1:3] == [at_ms, at_ms]
    assert seen.expires_at_ms[1:3] == [at_ms + 5_000] * 2
    found = await harness.receive(2, 3)
    assert found.messages == [b"before", b"after", b"sent 0"]
    await harness.do(2, Complete(found.tokens))
    await harness.advance(HOUR_MS + 20)
    assert (await harness.receive(3, 2)).sequence_numbers == [after + 2, after + 3]


async def test_numbers_that_were_promised_are_not_given_again_by_a_process_that_starts_later() -> None:
    harness = Harness()
    numbers = await promised(harness, 3)
    await harness.do(1, scheduling(harness, numbers))
    await harness.restart()
    assert await harness.send(b"x") == numbers[-1] + 1


async def test_promised_numbers_are_not_given_again_after_a_restart() -> None:
    harness = Harness()
    numbers = await promised(harness, 3)
    head = one(await harness.do(2, FindPositions(MAIN)), Positions).head
    assert head == numbers[-1] + 1
    await harness.restart()
    # Symptom: another message got the first of them, and a reader had gone past it.
    assert await harness.send(b"x") == head


async def test_a_promise_is_good_once_and_only_as_long_as_the_partition_is_up() -> None:
    harness = Harness()
    numbers = await promised(harness, 2)
    broken = await promised(harness, 1)
    assert await harness.do(1, BreakPromise(broken[0], "b")) == [Settled("b")]
    for wrong in (broken, numbers[:1], [*numbers, *broken], [numbers[1]]):
        failed = one(await harness.do(1, scheduling(harness, wrong)), Failed)
        assert failed.reason is Reason.PARTITION_UNAVAILABLE
    assert await harness.do(1, scheduling(harness, numbers)) == [Transacted(2, "mine")]
    assert isinstance(one(await harness.do(1, scheduling(harness, numbers)), Failed), Failed)
    late = await promised(harness, 1)
    harness.log.fail_append(CommitFailed("no"))
    await harness.do(2, Send([b"x"], None))
    harness.clock.advance(20_000)
    await harness.until_quiet()
    harness.take(2)
    failed = one(await harness.do(1, scheduling(harness, late)), Failed)
    assert failed.reason is Reason.PARTITION_UNAVAILABLE


async def test_a_full_disk_leaves_nothing_and_gives_no_number_twice() -> None:
    harness = Harness()
    held = await harness.send(b"held")
    tokens = (await harness.receive(2)).tokens
    (soon,) = await harness.do(1, Send([b"soon"], None, scheduled_ms=[harness.clock.now_ms() + HOUR_MS]))
    assert isinstance(soon, Sent)
    numbers = await promised(harness, 2)
    asked = scheduling(harness, numbers, sends=1)
    asked.settlements, asked.cancelled = [Complete(tokens)], [soon.first]
    harness.log.fill_disk()
    failed = one(await harness.do(1, asked), Failed)
    assert failed.reason is Reason.DISK_FULL
    harness.log.empty_disk()
    assert (await harness.peek()).sequence_numbers == [held, soon.first]
    assert one(await harness.do(1, Complete(tokens)), Settled).failures == {}, "the lock is as it was"
    assert await harness.send(b"x") == numbers[-1] + 1
    only = scheduling(harness, await promised(harness, 1))
    harness.log.fill_disk()
    assert one(await harness.do(1, only), Failed).reason is Reason.DISK_FULL
    harness.log.empty_disk()
    await harness.restart()
    assert (await harness.peek()).messages == [b"soon", b"x"]


async def test_a_promise_beside_sends_that_are_undone_stands() -> None:
    harness = Harness()
    await harness.send(b"first")
    harness.log.fill_disk()
    operations: list[Operation] = [Send([b"x"], None), PromiseNumbers(2)]
    failed, promise = await harness.do(1, *operations)
    harness.log.empty_disk()
    assert isinstance(failed, Failed) and isinstance(promise, Promised)
    assert await harness.send(b"y") == promise.first + 2


async def test_an_operation_of_the_same_cycle_waits_until_the_transaction_is_durable() -> None:
    """Otherwise it could remove a message that the transaction has cancelled already."""
    harness = Harness()
    times: list[int | None] = [harness.clock.now_ms() + HOUR_MS] * 2
    first = one(await harness.do(1, Send([b"a", b"b"], None, scheduled_ms=times)), Sent).first
    numbers = await promised(harness, 1)
    asked = scheduling(harness, numbers, sends=1)
    asked.cancelled = [first, first]
    transacted, settled, again = await harness.do(
        1, asked, CancelScheduled([first, first + 1, *numbers]), Transact(NOTHING, [], cancelled=[first])
    )
    assert transacted == Transacted(2, "mine")
    assert settled == Settled(None, {0: Reason.MESSAGE_NOT_FOUND})
    assert isinstance(again, Failed) and again.reason is Reason.MESSAGE_NOT_FOUND
    assert (await harness.peek()).messages == [b"sent 0"]


async def test_a_cancelled_message_is_gone_with_the_commit_and_a_missing_one_fails_everything() -> None:
    harness = Harness()
    times: list[int | None] = [harness.clock.now_ms() + HOUR_MS, None]
    later = one(await harness.do(1, Send([b"later", b"now"], None, scheduled_ms=times)), Sent).first
    failed = one(await harness.do(1, Transact(Send([b"x"], None), [], cancelled=[later, later + 1])), Failed)
    assert failed.reason is Reason.MESSAGE_NOT_FOUND and str(later + 1) in failed.description
    assert (await harness.peek()).messages == [b"later", b"now"]
    assert await harness.do(1, Transact(NOTHING, [], cancelled=[later])) == [Transacted(0, None)]
    await harness.restart()
    assert (await harness.peek()).messages == [b"now"]


async def test_sessions_duplicates_and_quotas_count_as_with_other_sends() -> None:
    settings = QueueSettings(requires_session=True, requires_duplicate_detection=True, max_size_mb=1)
    harness = Harness(settings)
    numbers = await promised(harness, 3)
    asked = scheduling(harness, numbers)
    assert asked.scheduled is not None
    asked.scheduled.columns = {SESSION_ID: [b"s", b"s", b"t"]}
    asked.scheduled.identities = [bytes([each]) * IDENTITY_BYTES for each in (1, 1, 2)]
    assert await harness.do(1, asked) == [Transacted(3, "mine")]
    seen = await harness.peek()
    assert seen.sequence_numbers == [numbers[0], numbers[2]]
    await harness.restart()
    again = Send([b"x"], None, identities=[bytes([2]) * IDENTITY_BYTES], columns={SESSION_ID: [b"t"]})
    assert one(await harness.do(1, again), Sent).duplicates == [0]
    large = scheduling(harness, await promised(harness, 1))
    assert large.scheduled is not None
    large.scheduled.messages = [bytes(1 << 20)]
    assert one(await harness.do(1, large), Failed).reason is Reason.QUOTA_EXCEEDED
    await harness.advance(HOUR_MS + 20)
    assert harness.task.counts()[MAIN].active == 2


async def test_messages_with_promised_numbers_survive_trimming_and_compaction() -> None:
    harness = Harness(limits=EAGER, segment_bytes=4_000)
    numbers = await promised(harness, 2)
    await harness.send(b"between")
    begun = harness.log.end
    await harness.do(1, scheduling(harness, numbers))
    await harness.do(2, Complete((await harness.receive(2)).tokens))
    for _ in range(60):
        await harness.send(*[b"y" * 200] * 5)
        found = await harness.receive(2, 5)
        await harness.do(2, Complete(found.tokens))
    assert harness.log.start > begun, "it was trimmed, and the messages moved"
    for _ in range(2):
        seen = await harness.peek()
        assert seen.sequence_numbers == numbers and set(seen.states) == {MessageState.SCHEDULED}
        await harness.restart()


async def test_a_transaction_with_many_schedules_ends_its_cycle() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(work_max=4)))
    numbers = await promised(harness, 3)
    asked = scheduling(harness, numbers, sends=9)
    assert await harness.do(1, asked) == [Transacted(12, "mine")]
    assert len((await harness.peek()).messages) == 12
