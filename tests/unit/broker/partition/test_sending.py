"""Sends: sequence numbers, enqueued times and the quota, on a partition with a log in memory."""

from __future__ import annotations

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, MESSAGE_OVERHEAD_BYTES, QueueSettings
from broker.identifiers import partition_of
from broker.operations.browsing import Peek
from broker.operations.columns import SESSION_ID
from broker.operations.general import Failed
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete
from broker.partition import records
from broker.partition.cycle_bounds import Bounds
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import NUMBER, Harness, one


async def frames_of(harness: Harness) -> list[list[int]]:
    """The kinds of the records in each frame of the log."""
    frames = [frame.records() async for frame in harness.log.replay(harness.log.start)]
    return [[record.kind for record in each] for each in frames if each]


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
    assert harness.live_bytes == limit - state


async def test_each_message_counts_for_its_state_in_memory_so_that_the_smallest_ones_fill_a_queue_too() -> (
    None
):
    most = (1 << 20) // (1 + MESSAGE_OVERHEAD_BYTES)
    limits = TaskLimits(bounds=Bounds(granted_max=most))
    harness = Harness(QueueSettings(max_size_mb=1), limits=limits)
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


async def test_sends_that_wait_together_become_one_record_and_are_answered_one_by_one() -> None:
    harness = Harness()
    await harness.until_quiet()
    for place, client in enumerate((1, 2, 1, 3)):
        harness.post(client, Send([b"%d" % place] * (place + 1), None, f"cookie {place}"))
    await harness.until_quiet()
    answers = {client: harness.take(client) for client in (1, 2, 3)}
    base = NUMBER << 48
    assert answers == {
        1: [Sent(base | 1, "cookie 0", []), Sent(base | 4, "cookie 2", [])],
        2: [Sent(base | 2, "cookie 1", [])],
        3: [Sent(base | 7, "cookie 3", [])],
    }
    assert await frames_of(harness) == [[records.ENQUEUED]]
    assert (await harness.peek()).messages == [b"0", *[b"1"] * 2, *[b"2"] * 3, *[b"3"] * 4]


async def test_sends_that_wait_together_keep_what_is_known_of_each_message() -> None:
    harness = Harness(QueueSettings(requires_session=True))
    await harness.until_quiet()
    wall_ms = harness.clock.now_ms()
    sends = [
        Send([b"a", b"b"], None, columns={SESSION_ID: [b"\0one", b"\0two"]}),
        Send([b"c"], [5_000], columns={SESSION_ID: [b"\0one"]}),
        Send([b"d"], [7_000], columns={SESSION_ID: [b"\0two"]}, scheduled_ms=[wall_ms + 60_000]),
    ]
    answers = await harness.do(1, *sends)
    assert [type(each) for each in answers] == [Sent] * 3
    assert await frames_of(harness) == [[records.ENQUEUED]]
    for _ in range(2):
        found = await harness.peek()
        assert list(found.messages) == [b"a", b"b", b"c", b"d"]
        assert list(found.expires_at_ms) == [None, None, wall_ms + 5_000, wall_ms + 67_000]
        assert list(found.enqueued_at_ms) == [wall_ms] * 3 + [wall_ms + 60_000]
        main = harness.subqueues[0]
        sessions = [getattr(each, SESSION_ID) for each in main.references.values()]
        assert sessions == [b"\0one", b"\0two", b"\0one", b"\0two"]
        await harness.restart()
        await harness.until_quiet()


async def test_of_sends_that_wait_together_only_those_without_room_are_refused() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    half = (1 << 20) // 2 - MESSAGE_OVERHEAD_BYTES
    sizes = (half, half + 1, 10, half - MESSAGE_OVERHEAD_BYTES - 10, 1)
    answers = await harness.do(1, *(Send([b"x" * size], None, size) for size in sizes))
    assert [(type(each), each.cookie) for each in answers if isinstance(each, Sent | Failed)] == [
        (Sent, half), (Failed, half + 1), (Sent, 10), (Sent, half - MESSAGE_OVERHEAD_BYTES - 10), (Failed, 1),
    ]  # fmt: skip
    assert [len(each) for each in (await harness.peek()).messages] == [half, 10, sizes[3]]


async def test_sends_that_wait_together_are_divided_by_the_bound_of_a_cycle() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(work_max=5)))
    await harness.until_quiet()
    answers = await harness.do(1, *(Send([b"x"] * count, None, count) for count in (2, 2, 2, 12, 1)))
    assert [each.cookie for each in answers if isinstance(each, Sent)] == [2, 2, 2, 12, 1]
    assert [len(kinds) for kinds in await frames_of(harness)] == [2, 3, 1], (
        "the send that reaches the bound ends it"
    )
    assert len((await harness.peek()).messages) == 19


async def test_other_operations_keep_their_place_between_sends() -> None:
    harness = Harness()
    await harness.send(b"first")
    harness.post(1, Send([b"a"], None))
    harness.post(1, Peek(MAIN, 0, 10))
    harness.post(1, Send([b"b"], None))
    harness.post(2, Demand(MAIN, 10))
    harness.post(1, Send([b"c"], None))
    await harness.until_quiet()
    assert [type(each).__name__ for each in harness.take(1)] == ["Sent", "Peeked", "Sent", "Sent"]
    assert one(harness.take(2), Locked).messages == [b"first", b"a", b"b", b"c"]
