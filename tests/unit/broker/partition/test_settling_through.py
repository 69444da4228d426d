"""Completing by position: one record, whatever the number of messages, and nothing that somebody holds."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.operations.general import Failed
from broker.operations.sending import Send
from broker.operations.settling import Complete, DeadLetter, Defer, Release, Settled
from broker.operations.streams import SettledThrough, SettleThrough
from broker.partition.settling_through import LOOKED_AT_AT_ONCE
from tests.support.partition_harness import NUMBER, Harness, one

FIRST = NUMBER << 48 | 1


async def settle(harness: Harness, position: int, subqueue: str = MAIN) -> SettledThrough:
    return one(await harness.do(4, SettleThrough(subqueue, position, "mine")), SettledThrough)


async def test_everything_before_a_position_is_gone_and_stays_so_after_a_restart() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    assert await settle(harness, FIRST + 2) == SettledThrough(2, 0, "mine")
    assert (await harness.peek()).messages == [b"c"]
    await harness.restart()
    assert (await harness.peek()).messages == [b"c"]
    assert await settle(harness, FIRST + 2) == SettledThrough(0, 0, "mine"), "again does no harm"


async def test_any_number_of_messages_is_one_record() -> None:
    harness = Harness()
    count = 5 * LOOKED_AT_AT_ONCE
    await harness.send(*[b"m"] * count)
    before = harness.log.end
    assert (await settle(harness, FIRST + count)).completed == count
    assert harness.log.end - before < 200
    await harness.restart()
    assert (await harness.peek()).messages == [] and harness.task.counts()[MAIN].active == 0


async def test_operations_behind_it_wait_for_its_last_step() -> None:
    harness = Harness()
    count = 2 * LOOKED_AT_AT_ONCE
    await harness.send(*[b"m"] * count)
    tokens = (await harness.receive(1)).tokens
    harness.post(2, SettleThrough(MAIN, FIRST + count))
    harness.post(2, Complete(tokens))
    harness.post(2, Send([b"after"], None))
    await harness.until_quiet()
    settled, completed, sent = harness.take(2)
    assert settled == SettledThrough(count - 1, 1, None)
    assert isinstance(completed, Settled) and not completed.failures
    assert (await harness.peek()).messages == [b"after"], sent


async def test_locked_deferred_scheduled_and_expired_messages_stay() -> None:
    harness = Harness(QueueSettings(dead_lettering_on_expiration=True))
    await harness.send(b"locked", b"deferred", b"free")
    await harness.send(b"expired", ttl=[500])
    later = harness.clock.now_ms() + 60_000
    await harness.do(1, Send([b"scheduled"], None, scheduled_ms=[later]))
    locked, deferred, free = (await harness.receive(1, 3)).tokens
    await harness.do(1, Defer([deferred]), Release([free]))
    harness.clock.advance(500)
    assert await settle(harness, FIRST + 5) == SettledThrough(1, 1, "mine")
    assert (await harness.peek()).messages == [b"locked", b"deferred", b"scheduled"]
    assert (await harness.peek(DEAD_LETTER)).messages == [b"expired"]
    await harness.do(1, Release([locked]))
    assert (await settle(harness, FIRST + 5)).completed == 1


async def test_a_dead_letter_subqueue_is_settled_on_its_own_and_its_holes_are_kept() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c", b"d")
    a, b, c, d = (await harness.receive(1, 4)).tokens
    await harness.do(1, DeadLetter([a, c]), Complete([b, d]))
    assert (await settle(harness, FIRST + 4, DEAD_LETTER)).completed == 2
    await harness.restart()
    assert (await harness.peek(DEAD_LETTER)).messages == []


async def test_a_position_beyond_the_head_is_refused() -> None:
    harness = Harness()
    await harness.send(b"a")
    refused = one(await harness.do(4, SettleThrough(MAIN, FIRST + 2, "mine")), Failed)
    assert (refused.reason, refused.cookie) == (Reason.ARGUMENT, "mine")
    assert (await harness.peek()).messages == [b"a"]


@pytest.mark.parametrize("sessions", [False, True])
async def test_messages_that_are_settled_are_handed_to_nobody(sessions: bool) -> None:
    harness = Harness(QueueSettings(requires_session=sessions))
    columns = {"session_id": [b"s"] * 2} if sessions else {}
    await harness.do(1, Send([b"a", b"b"], None, columns=columns))  # type: ignore[arg-type]
    assert (await settle(harness, FIRST + 2)).completed == 2
    assert (await harness.peek()).messages == [] and harness.live_bytes == 0
