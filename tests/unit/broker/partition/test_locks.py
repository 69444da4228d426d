"""Locks: when they end, how they are renewed, and which tokens are valid."""

from __future__ import annotations

from broker.base.errors import Reason
from broker.operations.settling import Complete, Renewed, RenewLocks, Settled
from tests.support.partition_harness import LOCK_MS, Harness, one


async def test_a_token_of_an_earlier_life_opens_nothing() -> None:
    harness = Harness()
    await harness.send(b"a")
    old = await harness.receive(1)
    await harness.restart()
    new = await harness.receive(1)
    assert new.tokens != old.tokens
    assert await harness.do(1, Complete(old.tokens)) == [Settled(None, {0: Reason.LOCK_LOST})]
    assert await harness.do(1, Complete(new.tokens)) == [Settled(None, {})]


async def test_a_lock_is_lost_at_the_millisecond_it_ends_although_no_timer_has_fired() -> None:
    harness = Harness()
    harness.clock.advance(7)  # so that the timer is due some milliseconds after the end of the lock
    await harness.send(b"a")
    locked = await harness.receive(1)
    harness.clock.advance(LOCK_MS)
    answers = await harness.do(1, RenewLocks(locked.tokens), Complete(locked.tokens))
    assert answers == [
        Renewed(harness.clock.monotonic_ms() + LOCK_MS, None, {0: Reason.LOCK_LOST}),
        Settled(None, {0: Reason.LOCK_LOST}),
    ]


async def test_a_renewed_lock_keeps_its_token_and_lasts_longer() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    tokens = (await harness.receive(1, 2)).tokens + (await harness.receive(1, 1)).tokens
    harness.clock.advance(LOCK_MS // 2)
    renewed = one(
        await harness.do(1, RenewLocks([tokens[0], bytes(16), tokens[2], tokens[0]], "mine")), Renewed
    )
    assert renewed == Renewed(harness.clock.monotonic_ms() + LOCK_MS, "mine", {1: Reason.LOCK_LOST})
    await harness.advance(LOCK_MS // 2 + 1000)
    assert await harness.do(1, Complete(tokens)) == [Settled(None, {1: Reason.LOCK_LOST})]
