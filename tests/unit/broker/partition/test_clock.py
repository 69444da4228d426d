"""A partition while the wall clock is set: no lock or expiry comes early and none freezes; the wall clock
matters only for times read back from the log."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.operations.general import Failed
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send
from broker.operations.settling import Complete, Renewed, RenewLocks, Settled
from broker.partition.cycle_bounds import Bounds
from storage.errors import CommitFailed
from tests.support.partition_harness import Harness, one

HOUR_MS = 3_600_000
LOCK_MS = QueueSettings().lock_duration_ms
TICK_MS = Bounds().tick_ms

steps = pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS], ids=["forward", "back"])


@steps
@pytest.mark.parametrize("at_ms", [0, 1, LOCK_MS // 2, LOCK_MS - 1])
async def test_a_lock_ends_after_its_duration_whatever_the_wall_clock_does(step_ms: int, at_ms: int) -> None:
    harness = Harness()
    await harness.send(b"a")
    await harness.receive(1)
    await harness.do(2, Demand(MAIN, 1))
    harness.take(2)
    await harness.advance(at_ms)
    harness.clock.step(step_ms)
    await harness.advance(LOCK_MS - 1 - at_ms)
    assert not any(isinstance(answer, Locked) for answer in harness.take(2)), "the step has ended the lock"
    await harness.advance(1 + TICK_MS)
    assert one(harness.take(2), Locked).delivery_counts == [1]


@steps
async def test_a_lock_is_renewed_and_settled_whatever_the_wall_clock_does(step_ms: int) -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    tokens = (await harness.receive(1, 2)).tokens
    harness.clock.advance(LOCK_MS - 1)
    harness.clock.step(step_ms)
    assert one(await harness.do(1, RenewLocks(tokens)), Renewed) == Renewed(
        harness.clock.monotonic_ms() + LOCK_MS, None
    )
    await harness.advance(LOCK_MS - 1)
    assert await harness.do(1, Complete(tokens[:1])) == [Settled(None)]
    harness.clock.advance(1)
    assert await harness.do(1, Complete(tokens[1:])) == [Settled(None, {0: Reason.LOCK_LOST})]


@steps
async def test_a_time_to_live_is_over_after_that_time_whatever_the_wall_clock_does(step_ms: int) -> None:
    harness = Harness(QueueSettings(dead_lettering_on_expiration=True))
    await harness.send(b"before", ttl=[10_000])
    harness.clock.step(step_ms)
    await harness.send(b"after", b"for ever", ttl=[20_000, None])
    await harness.advance(9_999)
    assert (await harness.peek()).messages == [b"before", b"after", b"for ever"]
    await harness.advance(1 + TICK_MS)
    assert (await harness.peek()).messages == [b"after", b"for ever"]
    harness.clock.step(-2 * step_ms)
    await harness.advance(9_999 - TICK_MS)
    assert (await harness.peek()).messages == [b"after", b"for ever"]
    await harness.advance(1 + TICK_MS)
    assert (await harness.peek()).messages == [b"for ever"]
    assert (await harness.peek(DEAD_LETTER)).messages == [b"before", b"after"]


async def test_while_nobody_runs_the_partition_the_wall_clock_counts_for_the_time_to_live() -> None:
    for clean in (True, False):
        harness = Harness()
        await harness.send(b"a", b"b", ttl=[60_000, 2 * HOUR_MS])
        harness.clock._monotonic_ms = 7  # the machine restarted: monotonic time begins again
        harness.clock.step(HOUR_MS)
        await harness.restart(clean=clean)
        assert (await harness.peek()).messages == [b"b"]
        await harness.advance(HOUR_MS - 1)
        assert (await harness.peek()).messages == [b"b"]
        await harness.advance(1 + TICK_MS)
        assert (await harness.peek()).messages == []


async def test_what_is_stored_and_shown_of_a_message_is_wall_time_and_says_its_time_to_live() -> None:
    harness = Harness()
    wall_ms = harness.clock.now_ms()
    await harness.send(b"a", ttl=[10_000])
    harness.clock.step(-HOUR_MS)
    await harness.send(b"b", ttl=[10_000])
    for _ in range(2):
        shown = await harness.peek()
        assert shown.enqueued_at_ms == [wall_ms, wall_ms]
        assert shown.expires_at_ms == [wall_ms + 10_000] * 2, (
            "receivers compute the time to live from the two"
        )
        await harness.restart()


@steps
@pytest.mark.parametrize("full", [False, True], ids=["failed commit", "full disk"])
async def test_a_recovery_within_the_process_keeps_the_deadlines_that_counted_before(
    step_ms: int, full: bool
) -> None:
    harness = Harness()
    await harness.send(b"stored by an earlier process", ttl=[10_000])
    await harness.restart()
    await harness.send(b"before the step", b"for ever", ttl=[10_000, None])
    harness.clock.step(step_ms)
    await harness.send(b"after the step", ttl=[20_000])
    await recover(harness, full)
    await harness.send(b"after the recovery", ttl=[30_000])
    harness.clock.step(-step_ms)
    await recover(harness, full)
    await harness.advance(9_999)
    everything = [
        b"stored by an earlier process",
        b"before the step",
        b"for ever",
        b"after the step",
        b"after the recovery",
    ]
    assert (await harness.peek()).messages == everything
    await harness.advance(1 + TICK_MS)
    assert (await harness.peek()).messages == everything[2:]
    await harness.advance(9_999 - TICK_MS)
    harness.clock.step(step_ms)
    await recover(harness, full)
    assert (await harness.peek()).messages == everything[2:]
    await harness.advance(1 + TICK_MS)
    assert (await harness.peek()).messages == [b"for ever", b"after the recovery"]
    await harness.advance(10_000)
    assert (await harness.peek()).messages == [b"for ever"]


async def recover(harness: Harness, full: bool) -> None:
    """Make the partition read its log again: a commit fails, or not even a settlement finds room."""
    if full:
        tokens = (await harness.receive(7)).tokens
        harness.log.fill_disk(reserve=False)
        answers = await harness.do(7, Complete(tokens, "full"))
        harness.log.empty_disk()
        reason = Reason.DISK_FULL
    else:
        harness.log.fail_append(CommitFailed("no"))
        answers = await harness.do(7, Send([b"refused"], [1_000], "full"))
        reason = Reason.PARTITION_UNAVAILABLE
    assert [(each.reason, each.cookie) for each in answers if isinstance(each, Failed)] == [(reason, "full")]
