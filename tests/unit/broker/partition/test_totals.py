"""What each subqueue holds, for the counts."""

from __future__ import annotations

from broker.operations.sending import Send
from broker.operations.settling import Defer
from broker.partition.totals import totals_of
from tests.support.partition_harness import Harness
from tests.support.topics import A, number_of, topic


async def test_a_queue_counts_the_messages_of_each_subqueue() -> None:
    harness = Harness()
    later_ms = harness.clock.now_ms() + 1_000
    await harness.do(1, Send([b"a", b"b", b"c"], None, scheduled_ms=[None, None, later_ms]))
    await harness.do(1, Defer((await harness.receive(1)).tokens))
    partition = harness.task._partition
    assert partition is not None
    assert totals_of(partition.messages)[0][:3] == (3, 1, 1)


async def test_a_topic_counts_what_is_stored_once() -> None:
    description = topic("a", "b")
    harness = Harness(description=description)
    await harness.send(b"x" * 1_000)
    partition = harness.task._partition
    assert partition is not None
    totals = totals_of(partition.messages)
    assert totals[0][0] == 0 and totals[0][3] == 1_000
    assert totals[number_of(description, "a")][0] == 1 and totals[number_of(description, "b")][3] < 1_000
    assert (await harness.peek(A)).messages == [b"x" * 1_000]
