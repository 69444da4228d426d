"""Sends: sequence numbers, enqueued times and the quota, on a partition with a log in memory."""

from __future__ import annotations

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, MESSAGE_OVERHEAD_BYTES, QueueSettings
from broker.operations import Complete, Failed, Send, Sent, partition_of
from tests.support.partition_harness import NUMBER, Harness, one


async def test_sequence_numbers_carry_the_partition_and_follow_each_other_without_a_gap() -> None:
    harness = Harness()
    assert await harness.send(b"a", b"b") == NUMBER << 48 | 1
    assert await harness.send(b"c") == NUMBER << 48 | 3
    assert partition_of(NUMBER << 48 | 3) == NUMBER


async def test_sequence_numbers_are_never_used_again_after_a_restart_or_when_all_messages_are_gone() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    await harness.do(1, Complete((await harness.receive(1, 2)).tokens))
    await harness.restart()
    assert await harness.send(b"c") == NUMBER << 48 | 3


async def test_a_partition_holds_the_whole_of_max_size_and_a_send_beyond_it_is_refused_whole() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    limit = 1 << 20
    assert harness.description.partitions == 16
    state = 2 * MESSAGE_OVERHEAD_BYTES
    await harness.send(b"x" * (limit - state - 10))
    refused = one(await harness.do(1, Send([b"1234567890", b"1"], None, "mine")), Failed)
    assert (
        refused.reason is Reason.QUOTA_EXCEEDED
        and refused.cookie == "mine"
        and str(limit) in refused.description
    )
    await harness.send(b"1234567890")
    assert harness.task.live_bytes == limit - state


async def test_each_message_counts_for_its_state_in_memory_so_that_the_smallest_ones_fill_a_queue_too() -> (
    None
):
    harness = Harness(QueueSettings(max_size_mb=1))
    most = (1 << 20) // (1 + MESSAGE_OVERHEAD_BYTES)
    await harness.send(*[b"x"] * most)
    assert one(await harness.do(1, Send([b"x"], None)), Failed).reason is Reason.QUOTA_EXCEEDED
    counts = harness.task.counts()[MAIN]
    assert (counts.active, counts.bytes) == (most, most * (1 + MESSAGE_OVERHEAD_BYTES))
    assert harness.budget.state_bytes == most * MESSAGE_OVERHEAD_BYTES
    lease = await harness.receive(2, most)
    await harness.do(2, Complete(lease.tokens))
    assert (harness.budget.state_bytes, harness.task.counts()[MAIN].bytes) == (0, 0)
    assert await harness.send(b"x")


async def test_an_empty_send_is_answered_and_changes_nothing() -> None:
    harness = Harness()
    assert isinstance(one(await harness.do(1, Send([], None)), Sent), Sent)
    assert await harness.send(b"a") == NUMBER << 48 | 1
