"""A quiet partition looks for nothing besides its operations, and notices when that ends."""

from __future__ import annotations

import pytest

from broker.entities.descriptions import MAIN, QueueSettings
from broker.operations.browsing import Watch
from broker.operations.interface import Operation
from broker.operations.receiving import Demand
from broker.operations.scheduling import CancelScheduled
from broker.operations.selecting import WatchReturned
from broker.operations.sending import Send
from broker.operations.sessions import WatchSessions
from broker.partition.looking_ahead import LookingAhead
from tests.support.partition_harness import LOCK_MS, Harness

FAR_MS = 1 << 60


def _ahead(harness: Harness) -> LookingAhead:
    assert harness.task._partition is not None
    return harness.task._partition._ahead


async def test_a_partition_that_only_stores_messages_is_quiet() -> None:
    harness = Harness()
    for _ in range(3):
        await harness.send(b"a", b"b")
        assert _ahead(harness).is_quiet(FAR_MS) and not _ahead(harness).has_more
        assert _ahead(harness).next_due_ms() is None


async def test_quiet_ends_when_the_first_time_to_live_does_however_late_that_message_came() -> None:
    harness = Harness()
    await harness.send(b"a", ttl=[9_000])
    await harness.send(b"b", b"c", ttl=[None, 1_000])
    now_ms = harness.clock.monotonic_ms()
    assert _ahead(harness).is_quiet(now_ms + 999) and not _ahead(harness).is_quiet(now_ms + 1_000)
    harness.clock.advance(1_100)
    await harness.send(b"d")
    assert (await harness.peek()).messages == [b"a", b"b", b"d"]


async def test_a_lock_bounds_quiet_and_still_ends() -> None:
    harness = Harness()
    await harness.send(b"a")
    await harness.receive(1)
    now_ms = harness.clock.monotonic_ms()
    assert not _ahead(harness).is_quiet(now_ms + LOCK_MS + 100)
    harness.clock.advance(LOCK_MS + 100)
    await harness.send(b"b")
    assert (await harness.receive(2, 2)).messages == [b"a", b"b"]


@pytest.mark.parametrize(
    "operation", [Demand(MAIN, 1), Watch(MAIN, 0), WatchReturned(MAIN), WatchSessions(MAIN)], ids=repr
)
async def test_a_partition_is_not_quiet_while_a_client_waits(operation: Operation) -> None:
    harness = Harness(QueueSettings(requires_session=isinstance(operation, WatchSessions)))
    await harness.do(1, operation)
    assert not _ahead(harness).is_quiet(0)


async def test_schedules_and_the_window_of_duplicate_detection_end_quiet() -> None:
    harness = Harness()
    await harness.send(b"a")
    assert _ahead(harness).is_quiet(FAR_MS)
    await harness.do(1, Send([b"b"], None, scheduled_ms=[harness.clock.now_ms() + 1_000]))
    assert not _ahead(harness).is_quiet(0)
    harness = Harness(QueueSettings(requires_duplicate_detection=True))
    await harness.send(b"a")
    assert _ahead(harness).is_quiet(FAR_MS)
    await harness.do(1, Send([b"b"], None, identities=[bytes(15)]))
    assert not _ahead(harness).is_quiet(0)


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["enqueued", "cancelled"])
async def test_quiet_comes_back_once_no_message_is_scheduled_any_more(is_cancelled: bool) -> None:
    harness = Harness()
    for _ in range(2):
        await harness.do(1, Send([b"later"], None, scheduled_ms=[harness.clock.now_ms() + 1_000]))
        assert not _ahead(harness).is_quiet(0) and _ahead(harness).next_due_ms() is not None
        if is_cancelled:
            await harness.do(1, CancelScheduled((await harness.peek()).sequence_numbers[-1:]))
        else:
            harness.clock.advance(3_000)
        await harness.send(b"now")
        # Symptom: from the first schedule on, each cycle looked for all that a partition may have to do.
        await harness.send(b"now")
        assert _ahead(harness).is_quiet(FAR_MS) and _ahead(harness).next_due_ms() is None
    assert (await harness.peek()).messages.count(b"later") == (0 if is_cancelled else 2)
