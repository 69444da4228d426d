"""broker/partition/schedule.py: scheduled messages wait, become active on time and only once, and survive
whatever happens to a log."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, QUEUE_SUBQUEUES, QueueSettings
from broker.operations.deleting import Delete, Deleted
from broker.operations.general import Failed
from broker.operations.message_states import MessageState, SubqueueCounts
from broker.operations.receiving import ReceiveDeferred
from broker.operations.scheduling import CancelScheduled, Reschedule
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete, Defer, Settled
from broker.partition.cycle_bounds import Bounds
from broker.partition.health import Health
from broker.partition.salvage import Salvage
from broker.partition.scheduled_times import LATEST_MS
from broker.partition.snapshot import Snapshot
from broker.partition.summary import Wake, summary_of
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from storage.log import Position
from storage.survey import Gap
from tests.support.partition_harness import Harness, one

HOUR_MS = 3_600_000
EAGER = TaskLimits(
    upkeep=UpkeepLimits(
        checkpoint_bytes=20_000,
        garbage_bytes_max=10_000,
        garbage_bytes_at_rest=10_000,
        relocation_bytes=4_000,
    )
)
"""Checkpoints, trimming and compaction are due after little traffic."""


async def schedule(
    harness: Harness, *times_ms: int | None, ttl_ms: int | None = None, size: int = 1
) -> list[int]:
    """Send one message for each time, relative to now; gives their sequence numbers."""
    now_ms = harness.clock.now_ms()
    send = Send(
        [b"%04d" % place * size for place in range(len(times_ms))],
        None if ttl_ms is None else [ttl_ms] * len(times_ms),
        scheduled_ms=[None if each is None else now_ms + each for each in times_ms],
    )
    first = one(await harness.do(1, send), Sent).first
    return list(range(first, first + len(times_ms)))


def counts(harness: Harness) -> SubqueueCounts:
    return harness.task.counts()[MAIN]


async def open_again(harness: Harness, *, clean: bool = False) -> None:
    await harness.restart(clean=clean)
    harness.task._open_wanted = True
    await harness.until_quiet()
    assert harness.task.health is Health.HEALTHY


@pytest.mark.parametrize("restarts", [None, "crash", "clean"])
async def test_a_scheduled_message_is_seen_but_not_received_until_it_becomes_active_at_the_end_of_the_queue(
    restarts: str | None,
) -> None:
    harness = Harness()
    later, sooner, now, past = await schedule(harness, HOUR_MS, 1_000, None, -5)
    at_ms = harness.clock.now_ms()
    if restarts:
        await open_again(harness, clean=restarts == "clean")
    seen = await harness.peek()
    assert seen.sequence_numbers == [later, sooner, now, past] and seen.states == [2, 2, 0, 0]
    assert seen.enqueued_at_ms == [at_ms + HOUR_MS, at_ms + 1_000, at_ms, at_ms]
    assert counts(harness) == SubqueueCounts(2, 0, 0, 2, 4 * (4 + 256))
    found = await harness.receive(2, 2)
    assert found.sequence_numbers == [now, past]
    await harness.do(2, Complete(found.tokens))
    await harness.advance(1_020)
    if restarts:
        await open_again(harness, clean=restarts == "clean")
    seen = await harness.peek()
    assert seen.sequence_numbers == [later, past + 1] and seen.states == [2, 0]
    assert seen.enqueued_at_ms == [at_ms + HOUR_MS, harness.clock.now_ms()]
    assert seen.messages == [b"0000", b"0001"]
    await harness.advance(HOUR_MS)
    found = await harness.receive(3, 2)
    assert found.sequence_numbers == [past + 1, past + 2] and found.messages == [b"0001", b"0000"]
    await harness.do(3, Complete(found.tokens))
    if restarts:
        await open_again(harness, clean=restarts == "clean")
    assert await schedule(harness, None) == [past + 3], "no number is given twice"


async def test_a_partition_that_was_closed_past_the_time_enqueues_as_soon_as_it_is_open() -> None:
    harness = Harness()
    (number,) = await schedule(harness, 1_000)
    await harness.restart()
    harness.clock.advance(HOUR_MS)
    harness.task._open_wanted = True
    await harness.until_quiet()
    assert counts(harness).active == 1
    await harness.restart()
    assert (await harness.peek()).sequence_numbers == [number + 1], "that is durable"


async def test_messages_that_are_due_together_become_active_in_the_order_of_their_times() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(activated_max=3)))
    await schedule(harness, *(place * 40 for place in (9, 3, 7, 1, 8, 2)))
    first = await harness.send(b"before them")
    await harness.advance(HOUR_MS)
    seen = await harness.peek()
    assert seen.messages == [b"before them", b"0003", b"0005", b"0001", b"0002", b"0004", b"0000"]
    assert seen.sequence_numbers == list(range(first, first + 7))


async def test_a_message_scheduled_after_the_year_9999_waits_until_then() -> None:
    harness = Harness()
    await schedule(harness, 1 << 62)
    assert (await harness.peek()).enqueued_at_ms == [LATEST_MS]


async def test_the_time_to_live_begins_when_the_message_is_enqueued_and_survives_a_restart() -> None:
    harness = Harness(QueueSettings(default_time_to_live_ms=5_000))
    at_ms = harness.clock.now_ms() + HOUR_MS
    await schedule(harness, HOUR_MS, HOUR_MS, ttl_ms=9_000)
    assert (await harness.peek()).expires_at_ms == [at_ms + 5_000] * 2
    await harness.advance(6_000)
    assert counts(harness).scheduled == 2, "nothing expires before it is enqueued"
    await open_again(harness)
    await harness.advance(HOUR_MS - 6_000 + 500)
    assert (await harness.peek()).expires_at_ms == [at_ms + 500 + 5_000] * 2
    await harness.advance(4_980)
    assert counts(harness).active == 2
    await open_again(harness)
    await harness.advance(40)
    assert counts(harness) == SubqueueCounts()


async def test_schedules_follow_the_wall_clock() -> None:
    harness = Harness()
    await schedule(harness, HOUR_MS)
    harness.clock.step(HOUR_MS)
    harness.task.wake()
    await harness.until_quiet()
    assert counts(harness).active == 1
    await schedule(harness, 1_000)
    harness.clock.step(-HOUR_MS)
    await harness.advance(2_000)
    assert counts(harness).scheduled == 1
    await harness.advance(HOUR_MS)
    assert counts(harness).scheduled == 0


async def test_messages_that_come_due_wait_again_if_the_clock_is_set_back_before_their_cycle() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(activated_max=4)))
    due = await schedule(harness, *[1_000] * 10, 500, HOUR_MS)
    harness.clock.advance(1_020)
    assert await harness.task.step() and counts(harness).scheduled == 8, "others are left for the next cycle"
    harness.clock.step(-120)
    await schedule(harness, 100)
    assert counts(harness).scheduled == 9
    assert one(await harness.do(1, CancelScheduled([due[9]])), Settled).failures == {}
    moved = Reschedule([due[8]], harness.clock.now_ms() + HOUR_MS)
    assert one(await harness.do(1, moved), Settled).failures == {}
    # Symptom: they were enqueued when the partition was opened again, if ever.
    await harness.advance(120)
    assert counts(harness).scheduled == 2
    seen = await harness.peek()
    assert seen.messages[-6:] == [b"0003", b"0004", b"0005", b"0006", b"0007", b"0000"]
    await harness.advance(HOUR_MS)
    assert counts(harness).scheduled == 0
    await open_again(harness)
    assert counts(harness).active == 12


async def test_cancelled_messages_are_gone_for_good_and_others_are_reported() -> None:
    harness = Harness()
    first, second, active = await schedule(harness, 1_000, 1_000, None)
    cancel = CancelScheduled([second, active, active + 7, second], "c")
    answer = one(await harness.do(1, cancel), Settled)
    assert answer == Settled("c", {1: Reason.MESSAGE_NOT_FOUND, 2: Reason.MESSAGE_NOT_FOUND})
    await open_again(harness)
    assert (await harness.peek()).sequence_numbers == [first, active]
    await harness.advance(1_020)
    answer = one(await harness.do(1, CancelScheduled([first])), Settled)
    assert answer.failures == {0: Reason.MESSAGE_NOT_FOUND}, "its number was valid while it was scheduled"
    assert (await harness.peek()).messages == [b"0002", b"0000"]


async def test_a_message_sent_in_the_same_cycle_is_not_cancelled_because_it_may_be_refused() -> None:
    harness = Harness()
    number = await harness.send(b"first") + 1
    send = Send([b"x"], None, scheduled_ms=[harness.clock.now_ms() + 1_000])
    sent, settled = await harness.do(1, send, CancelScheduled([number]))
    assert sent == Sent(number, None) and settled == Settled(None, {0: Reason.MESSAGE_NOT_FOUND})


async def test_scheduled_messages_are_neither_fetched_nor_purged() -> None:
    harness = Harness()
    scheduled, active = await schedule(harness, HOUR_MS, None)
    failed = one(await harness.do(1, ReceiveDeferred(MAIN, [scheduled])), Failed)
    assert failed.reason is Reason.MESSAGE_NOT_FOUND
    answer = one(await harness.do(1, Delete(MAIN, 9, harness.clock.now_ms() + 2 * HOUR_MS)), Deleted)
    assert answer.count == 1 and (await harness.peek()).sequence_numbers == [scheduled]
    assert active not in (await harness.peek()).sequence_numbers


async def test_a_full_disk_undoes_a_scheduled_send_and_its_time() -> None:
    harness = Harness(QueueSettings(default_time_to_live_ms=50_000))
    (due,) = await schedule(harness, 1_000)
    harness.clock.advance(1_020)
    harness.log.fill_disk()
    failed = one(
        await harness.do(1, Send([b"x", b"y"], None, scheduled_ms=[harness.clock.now_ms() + 50, None])),
        Failed,
    )
    assert failed.reason is Reason.DISK_FULL
    harness.log.empty_disk()
    assert (await harness.peek()).sequence_numbers == [due + 1], "what came due in that cycle is active"
    again, _ = await schedule(harness, 50, None)
    assert again == due + 2
    await harness.advance(100)
    assert counts(harness).active == 3 and counts(harness).scheduled == 0


async def test_the_index_is_told_when_the_partition_must_be_open() -> None:
    harness = Harness()
    await schedule(harness, HOUR_MS, 1_000)
    partition = harness.task._partition
    assert partition is not None
    summary = summary_of(partition, harness.clock)
    at_ms = summary.wakes[Wake.SCHEDULE]
    assert 0 <= at_ms - (harness.clock.now_ms() + 1_000) <= 20 and summary.counts[0].scheduled == 2
    await harness.advance(HOUR_MS + 20)
    assert Wake.SCHEDULE not in summary_of(partition, harness.clock).wakes


@pytest.mark.parametrize("restarts", [False, True])
async def test_compaction_moves_messages_that_became_active_since_they_were_stored(restarts: bool) -> None:
    """Their records have another number than they, also after a restart from a checkpoint."""
    harness = Harness(limits=EAGER, segment_bytes=4_000)
    await schedule(harness, 1_000, 1_000, HOUR_MS, size=10)
    await harness.advance(1_020)
    await harness.do(2, Complete((await harness.receive(2)).tokens))
    await harness.do(2, Defer((await harness.receive(2)).tokens))
    begun = harness.log.end
    if restarts:
        await open_again(harness, clean=True)
    for _ in range(60):
        await harness.send(*[b"y" * 200] * 5)
        await harness.do(2, Complete((await harness.receive(2, 5)).tokens))
    assert harness.log.start > begun, "it was trimmed, and the messages moved"
    for _ in range(2):
        assert (await harness.peek()).messages == [b"0002" * 10, b"0001" * 10]
        await open_again(harness)
    await harness.advance(HOUR_MS)
    assert (await harness.peek()).messages == [b"0001" * 10, b"0002" * 10]


async def test_a_replay_without_a_checkpoint_passes_over_messages_in_trimmed_frames() -> None:
    """A message becomes active, is relocated, and what stored it first is trimmed; then the checkpoints are
    lost."""
    harness = Harness(limits=EAGER, segment_bytes=4_000)
    await schedule(harness, 1_000, size=10)
    stays = await harness.send(b"s" * 40)
    await harness.advance(1_020)
    for _ in range(60):
        await harness.send(*[b"y" * 200] * 5)
        found = await harness.receive(2, 7)
        await harness.do(2, Complete(found.tokens[-5:]))
        await open_again(harness)
    harness.log.disk.checkpoint = None
    await open_again(harness)
    seen = await harness.peek()
    assert seen.messages == [b"s" * 40, b"0000" * 10] and seen.sequence_numbers == [stays, stays + 1]


async def test_a_checkpoint_keeps_schedules_and_earlier_numbers() -> None:
    harness = Harness()
    await schedule(harness, HOUR_MS, 1_000, 1_000)
    await harness.advance(1_020)
    before = await harness.peek()
    await open_again(harness, clean=True)
    assert await harness.peek() == before and harness.log.disk.checkpoint is not None
    partition = harness.task._partition
    assert partition is not None
    renumbered = partition.messages.renumbered
    references = partition.messages.main.references
    assert [renumbered.has(references[number]) for number in before.sequence_numbers] == [False, True, True]
    cost = Snapshot(partition.messages).cost(None)
    taking = Snapshot(partition.messages).take(None)
    deque(taking.steps(), maxlen=0)
    written = taking.checkpoint(harness.log.end)
    assert cost >= sum(len(block) for section in written.sections for block in section.blocks.values())


async def test_salvage_brings_active_and_scheduled_messages_back_and_names_the_lost_ones() -> None:
    harness = Harness()
    lost, *_ = await schedule(harness, 1_000)
    gap_end = harness.log.end
    kept, waiting = await schedule(harness, 2_000, HOUR_MS)
    await harness.advance(1_020)
    await harness.advance(1_020)
    salvage = Salvage(harness.number, QUEUE_SUBQUEUES)
    salvage.begin((), Position(0), is_start_known=True)
    salvage.gap(Gap(Path("1.seg"), 0, Position(0), gap_end, "its bytes are zero"))
    async for frame in harness.log.replay(gap_end):
        salvage.frame(frame)
    salvage.finish()
    main = salvage.messages.main.references
    assert sorted(main) == [waiting, waiting + 2] and main[waiting].state is MessageState.SCHEDULED
    assert [(each.first, each.last) for each in salvage.gone] == [(lost, lost)]
    assert kept not in main and salvage.messages.next_number == waiting + 3


@pytest.mark.parametrize("restarts", [None, "crash", "clean", "no checkpoint"])
async def test_a_message_becomes_active_at_the_time_that_it_was_given_last(restarts: str | None) -> None:
    harness = Harness()
    sooner, later, kept, active = await schedule(harness, 1_000, HOUR_MS, 2_000, None, ttl_ms=50_000)
    at_ms = harness.clock.now_ms()
    asked = Reschedule([sooner, active, sooner, 99], at_ms + 2 * HOUR_MS, "c")
    failures = {1: Reason.MESSAGE_NOT_FOUND, 3: Reason.MESSAGE_NOT_FOUND}
    assert one(await harness.do(1, asked), Settled) == Settled("c", failures)
    assert one(await harness.do(1, Reschedule([later], at_ms + 500)), Settled).failures == {}
    if restarts:
        if restarts == "no checkpoint":
            harness.log.disk.checkpoint = None
        await open_again(harness, clean=restarts == "clean")
    seen = await harness.peek()
    assert seen.enqueued_at_ms[:3] == [at_ms + 2 * HOUR_MS, at_ms + 500, at_ms + 2_000]
    assert seen.expires_at_ms[:2] == [at_ms + 2 * HOUR_MS + 50_000, at_ms + 500 + 50_000]
    await harness.advance(520)
    assert (await harness.receive(2, 2)).sequence_numbers == [active, active + 1]
    await harness.advance(1_500)
    assert (await harness.peek()).messages[-1] == b"0002", "the first one's old time has passed"
    assert counts(harness).scheduled == 1
    await harness.advance(2 * HOUR_MS)
    assert counts(harness).scheduled == 0 and kept


async def test_messages_are_delivered_now_in_the_order_of_their_numbers() -> None:
    harness = Harness()
    first, second, third = await schedule(harness, HOUR_MS, 2 * HOUR_MS, HOUR_MS)
    assert one(await harness.do(1, Reschedule([third, first], 0)), Settled).failures == {}
    await harness.advance(21)
    assert (await harness.peek()).sequence_numbers == [second, third + 1, third + 2]
    assert (await harness.receive(2, 9)).messages == [b"0000", b"0002"]
    await open_again(harness)
    assert (await harness.peek()).sequence_numbers == [second, third + 1, third + 2]


async def test_a_message_that_is_moved_away_and_back_becomes_active_once() -> None:
    harness = Harness()
    (number,) = await schedule(harness, 1_000)
    at_ms = harness.clock.now_ms()
    for time_ms in (HOUR_MS, 1_000, HOUR_MS, 1_000):
        await harness.do(1, Reschedule([number], at_ms + time_ms))
    await harness.advance(1_020)
    assert (await harness.peek()).sequence_numbers == [number + 1]
    await harness.advance(2 * HOUR_MS)
    assert counts(harness) == SubqueueCounts(1, 0, 0, 0, 4 + 256)


async def test_messages_that_have_come_due_but_wait_for_their_cycle_can_still_be_moved() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(activated_max=1)))
    due = await schedule(harness, 1_000, 1_000, 1_000)
    harness.clock.advance(1_020)
    asked = Reschedule([due[2]], harness.clock.now_ms() + HOUR_MS)
    assert one(await harness.do(1, asked), Settled).failures == {}
    await harness.until_quiet()
    assert counts(harness).scheduled == 1 and (await harness.peek()).sequence_numbers[0] == due[2]


async def test_a_full_disk_keeps_a_new_time_and_undoes_the_sends_beside_it() -> None:
    harness = Harness()
    (number,) = await schedule(harness, 1_000)
    at_ms = harness.clock.now_ms() + HOUR_MS
    harness.log.fill_disk()
    settled, failed = await harness.do(1, Reschedule([number], at_ms), Send([b"x"], None))
    harness.log.empty_disk()
    assert settled == Settled(None, {}) and isinstance(failed, Failed)
    await open_again(harness)
    seen = await harness.peek()
    assert (seen.sequence_numbers, seen.enqueued_at_ms) == ([number], [at_ms])


async def test_salvage_keeps_new_times() -> None:
    harness = Harness()
    first, second = await schedule(harness, 1_000, 2_000)
    at_ms = harness.clock.now_ms() + HOUR_MS
    await harness.do(1, Reschedule([second, first], at_ms))
    salvage = Salvage(harness.number, QUEUE_SUBQUEUES)
    salvage.begin((), Position(0), is_start_known=True)
    async for frame in harness.log.replay(Position(0)):
        salvage.frame(frame)
    salvage.finish()
    main = salvage.messages.main.references
    assert {number: each.enqueued_at_ms for number, each in main.items()} == {first: at_ms, second: at_ms}
