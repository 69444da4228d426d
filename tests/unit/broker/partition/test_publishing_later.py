"""Scheduled messages of a topic: matched when they become active."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES
from broker.entities.rules import FalseFilter, RuleDescription
from broker.operations.general import Failed
from broker.operations.message_states import MessageState
from broker.operations.scheduling import CancelScheduled
from broker.operations.sending import Send, Sent
from broker.operations.settling import Settled
from broker.partition.cycle_bounds import Bounds
from broker.partition.publishing_later import PAUSE_MS
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import Harness, one
from tests.support.rule_messages import stored_with
from tests.support.topics import (
    BLUE,
    CHANGING,
    ONLY_RED,
    RED,
    A,
    B,
    C,
    bodies,
    check_restart,
    topic,
    with_subscription,
)


@pytest.mark.parametrize("payload_bytes", [1 << 20, 0], ids=["in memory", "on the disk"])
async def test_a_scheduled_message_is_matched_when_it_becomes_active(payload_bytes: int) -> None:
    description = topic("a")
    harness = Harness(description=description, payload_bytes=payload_bytes)
    due_ms = harness.clock.now_ms() + 1_000
    one(await harness.do(9, Send([RED, BLUE, RED], None, scheduled_ms=[due_ms, due_ms, None])), Sent)
    assert await bodies(harness, A) == [RED]
    assert (await harness.peek("")).states == [MessageState.SCHEDULED] * 2
    await harness.describe(with_subscription(with_subscription(description, "b", ONLY_RED), "c", CHANGING))
    await harness.restart()
    assert await bodies(harness, C) == []
    await harness.advance(1_100)
    assert await bodies(harness, A) == [RED, RED, BLUE]
    assert await bodies(harness, B) == [RED]
    changed = await bodies(harness, C)
    assert len(changed) == 1 and changed != [RED]
    assert await bodies(harness, "") == []
    await check_restart(harness, A, B, C)


async def test_no_other_message_gets_the_number_of_one_that_nobody_gets() -> None:
    harness = Harness(description=with_subscription(topic(), "b", ONLY_RED))
    past_ms, later_ms = harness.clock.now_ms() - 1_000, harness.clock.now_ms() + 1_000
    send = Send([BLUE] * 2, None, scheduled_ms=[past_ms] * 2, tells_numbers=True)
    lost = one(await harness.do(9, send), Sent).first
    kept = one(await harness.do(9, Send([RED], None, scheduled_ms=[later_ms])), Sent).first
    # Symptom: both answers had the same number, and cancelling the first message cancelled the second.
    assert kept == lost + 2
    await harness.restart()
    harness.log.fill_disk()
    send = Send([BLUE], None, scheduled_ms=[past_ms], tells_numbers=True)
    failed = one(await harness.do(9, send), Failed)
    harness.log.empty_disk()
    assert failed.reason is Reason.DISK_FULL
    assert (await harness.peek("")).sequence_numbers == [kept]
    assert await harness.send(RED) == kept + 1
    await check_restart(harness, "", B)


async def test_on_a_full_disk_scheduled_messages_with_changed_copies_wait() -> None:
    harness = Harness(description=with_subscription(topic("a"), "c", CHANGING))
    due_ms = harness.clock.now_ms() + 1_000
    one(await harness.do(9, Send([BLUE, RED, BLUE], None, scheduled_ms=[due_ms] * 3)), Sent)
    harness.log.fill_disk()
    await harness.advance(1_100)
    assert (await harness.peek("")).messages == [RED, BLUE]
    assert await bodies(harness, A) == [BLUE]
    harness.log.empty_disk()
    await harness.advance(1_100)
    assert await bodies(harness, A) == [BLUE, RED, BLUE]
    assert len(await bodies(harness, C)) == 1
    await check_restart(harness, A, C)


async def test_no_message_is_forgotten_that_waits_behind_those_undone_on_a_full_disk() -> None:
    harness = Harness(
        description=with_subscription(topic("a"), "c", CHANGING),
        limits=TaskLimits(bounds=Bounds(activated_max=4)),
    )
    due_ms = harness.clock.now_ms() + 1_000
    first = one(await harness.do(9, Send([RED] * 14, None, scheduled_ms=[due_ms] * 14)), Sent).first
    harness.log.fill_disk()
    await harness.advance(1_100)
    await harness.advance(PAUSE_MS)
    one(await harness.do(9, CancelScheduled([first, first + 13])), Settled)
    harness.log.empty_disk()
    # Symptom: the timer that those undone were added to again was told of the others, and failed or was lost.
    await harness.advance(PAUSE_MS)
    assert await bodies(harness, A) == [RED] * 12
    assert await bodies(harness, "") == []
    await check_restart(harness, A, C)


@pytest.mark.parametrize("payload_bytes", [1 << 20, 0], ids=["in memory", "on the disk"])
async def test_one_cycle_publishes_only_as_many_messages_as_its_work_allows(payload_bytes: int) -> None:
    description = topic(*(f"s{number}" for number in range(10)))
    bounds = Bounds(work_max=25)
    harness = Harness(description=description, limits=TaskLimits(bounds=bounds), payload_bytes=payload_bytes)
    due_ms = harness.clock.now_ms() + 1_000
    messages = [b"%d" % number for number in range(12)]
    first = one(await harness.do(9, Send(messages, None, scheduled_ms=[due_ms] * 12)), Sent).first
    harness.clock.advance(1_100)
    left = [12]
    while await harness.task.step() or left[-1] > 0:
        left.append(harness.task.counts()[""].scheduled)
        if left[-1] == 6:
            harness.post(9, CancelScheduled([first + 10]))
    # Symptom: all of them at once, up to 1,024, however many subscriptions there were.
    assert sorted({*left}) == [0, 2, 6, 9, 12]
    assert await bodies(harness, "subscriptions/s9") == [*messages[:10], messages[11]]
    await check_restart(harness, "subscriptions/s0", "subscriptions/s9")


async def test_what_becomes_active_gets_all_copies_in_as_many_commits_as_these_take() -> None:
    description = topic()
    for number in range(30):
        description = with_subscription(description, f"s{number}", CHANGING)
    harness = Harness(description=description, limits=TaskLimits(bounds=Bounds(work_max=100)))
    due_ms = harness.clock.now_ms() + 1_000
    big = [stored_with(subject="red", body=b"x" * 10_000) for _ in range(5)]
    one(await harness.do(9, Send(big, None, scheduled_ms=[due_ms] * 5)), Sent)
    await harness.advance(1_100)
    assert [len(await bodies(harness, f"subscriptions/s{number}")) for number in range(30)] == [5] * 30
    assert max(map(len, harness.log.disk.frames.values())) < 400_000, "the copies of one message"
    await check_restart(harness, "subscriptions/s0", "subscriptions/s29")


async def test_on_a_full_disk_a_partition_rests_until_it_tries_again() -> None:
    harness = Harness(
        description=with_subscription(topic("a"), "c", CHANGING),
        limits=TaskLimits(bounds=Bounds(activated_max=2)),
    )
    due_ms = harness.clock.now_ms() + 900
    send = Send([RED, RED, BLUE, BLUE], None, scheduled_ms=[due_ms, due_ms, due_ms + 100, due_ms + 100])
    first = one(await harness.do(9, send), Sent).first
    harness.log.fill_disk()
    # Symptom: it began one cycle after the other until the pause was over.
    await harness.advance(1_100)
    one(await harness.do(9, CancelScheduled([first, first + 1])), Settled)
    assert (await harness.peek("")).messages == [BLUE, BLUE]
    partition = harness.task._partition
    assert partition is not None
    assert partition.next_due_ms() == harness.clock.monotonic_ms() + PAUSE_MS
    harness.log.empty_disk()
    await harness.advance(PAUSE_MS)
    assert await bodies(harness, A) == [BLUE, BLUE]
    await check_restart(harness, A, C)


@pytest.mark.parametrize("together", [False, True], ids=["after another send", "in one send"])
async def test_the_numbers_in_an_answer_are_those_of_the_scheduled_messages(together: bool) -> None:
    harness = Harness(
        description=with_subscription(topic("a", "b", "d"), "c", CHANGING),
        limits=TaskLimits(bounds=Bounds(work_max=6)),
    )
    await harness.send(BLUE)  # now a step takes two messages
    due_ms = harness.clock.now_ms() + 1_000
    if together:
        times = [None, None, None, due_ms]
        sends = [Send([RED, RED, RED, BLUE], None, scheduled_ms=times, tells_numbers=True)]
    else:
        last = Send([BLUE], None, scheduled_ms=[due_ms], tells_numbers=True)
        sends = [Send([RED, RED, RED], None), last]
    answer = (await harness.do(9, *sends))[-1]
    assert isinstance(answer, Sent)
    number = answer.first + len(sends[-1].messages) - 1
    # Symptom: it was the number of a changed copy.
    assert (await harness.peek("")).sequence_numbers == [number]
    assert one(await harness.do(9, CancelScheduled([number])), Settled).failures == {}


@pytest.mark.parametrize("payload_bytes", [1 << 20, 0], ids=["in memory", "on the disk"])
async def test_messages_left_for_the_next_cycle_wait_again_if_the_clock_is_set_back(
    payload_bytes: int,
) -> None:
    limits = TaskLimits(bounds=Bounds(work_max=6))
    harness = Harness(description=topic("a", "b", "d"), payload_bytes=payload_bytes, limits=limits)
    messages = [b"%d" % number for number in range(8)]
    due_ms = harness.clock.now_ms() + 1_000
    one(await harness.do(9, Send(messages, None, scheduled_ms=[due_ms] * 8)), Sent)
    harness.clock.advance(1_100)
    assert await harness.task.step()
    harness.clock.step(-5_000)
    await harness.until_quiet()
    # Symptom: they were published when the partition was opened again, if ever.
    assert len(await bodies(harness, A)) < 8
    await harness.advance(5_000)
    assert await bodies(harness, A) == messages
    await check_restart(harness, A, B)


async def test_a_pause_ends_when_the_clock_is_set_back() -> None:
    harness = Harness(description=with_subscription(topic("a"), "c", CHANGING))
    due_ms = harness.clock.now_ms() + 10_000
    send = Send([RED] * 4, None, scheduled_ms=[due_ms - 9_000, due_ms, due_ms, due_ms])
    one(await harness.do(9, send), Sent)
    harness.log.fill_disk()
    await harness.advance(10_100)
    assert await bodies(harness, A) == []
    harness.log.empty_disk()
    harness.clock.step(-5_000)
    await harness.advance(PAUSE_MS)
    assert await bodies(harness, A) == [RED]
    await harness.advance(5_000)
    assert await bodies(harness, A) == [RED] * 4
    await check_restart(harness, A, C)


@pytest.mark.parametrize("change", ["rules", "cancelled", "clock"])
async def test_a_message_that_waits_for_the_next_cycle_is_matched_as_things_are_then(change: str) -> None:
    description = topic("a")
    for number in range(50):
        description = with_subscription(description, f"s{number}", CHANGING)
    harness = Harness(description=description, limits=TaskLimits(bounds=Bounds(matching_max=100)))
    due_ms = harness.clock.now_ms() + 1_000
    first = one(await harness.do(9, Send([RED] * 3, None, scheduled_ms=[due_ms] * 3)), Sent).first
    harness.clock.advance(1_100)
    assert await harness.task.step()
    kept = copied = 3
    if change == "rules":
        for each in description.subscriptions[1:]:
            description = description.with_changed(each.with_rules([RuleDescription("no", FalseFilter())], 0))
        await harness.describe(description)
        copied = 2
    elif change == "cancelled":
        one(await harness.do(9, CancelScheduled([first + 2])), Settled)
        kept = copied = 2
    else:
        harness.clock.step(-500)
        await harness.until_quiet()
        assert await bodies(harness, A) == [RED]
        harness.clock.advance(600)
    await harness.until_quiet()
    assert await bodies(harness, A) == [RED] * kept
    assert len(await bodies(harness, "subscriptions/s49")) == copied
    await check_restart(harness, A)


async def test_messages_that_come_due_wait_for_the_memory_that_all_subscriptions_need() -> None:
    """Symptom: scheduled messages are admitted as one each, and took the broker far above its mark when they
    came due in a topic with many subscriptions."""
    harness = Harness(description=topic("a", "b", "c"))
    each = 2 * MESSAGE_OVERHEAD_BYTES
    due_ms = harness.clock.now_ms() + 1_000
    one(await harness.do(9, Send([RED, BLUE] * 4, None, scheduled_ms=[due_ms] * 8)), Sent)
    harness.budget.growth_bytes_min = 0
    harness.budget.set_room(3 * each)
    await harness.advance(1_100)
    assert await bodies(harness, A) == [RED, BLUE, RED]
    assert (await harness.peek("")).states == [MessageState.SCHEDULED] * 5
    harness.budget.growth_bytes_min = 2 * each
    harness.budget.set_scarce(True)
    await harness.advance(PAUSE_MS)
    assert len(await bodies(harness, A)) == 5, "scarce memory lets state grow a little"
    await harness.restart()
    assert (await harness.peek("")).states == [MessageState.SCHEDULED] * 3
    harness.budget.set_scarce(False)
    harness.budget.set_room(100 * each)
    await harness.advance(PAUSE_MS)
    assert await bodies(harness, A) == await bodies(harness, C) == [RED, BLUE] * 4
    assert await bodies(harness, "") == []
    await check_restart(harness, "", A, B, C)
