"""Locks: when they end, how they are renewed, and which tokens are valid."""

from __future__ import annotations

import gc

from broker.base.errors import Reason
from broker.entities.descriptions import QUEUE_SUBQUEUES
from broker.entities.roles import SubqueueTable
from broker.operations.settling import Complete, Renewed, RenewLocks, Settled
from broker.partition.locks import DROPPED_AT_ONCE, SPARSE, Locks
from broker.partition.references import Reference, StoredFrame
from broker.partition.subqueues import Subqueues
from storage.log import Position
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


def test_a_lease_for_each_of_many_messages_takes_little_and_is_forgotten_in_steps() -> None:
    locks = Locks(Subqueues(SubqueueTable(QUEUE_SUBQUEUES, 4), 20), {}, 1, 0, 20)
    frame, count = StoredFrame(Position(0)), 10_000
    gc.collect()
    before = len(gc.get_objects())
    for number in range(count):
        lease = locks.new_lease(0, 1_000 + number)
        locks.start(lease)
        lease.references.append(Reference(number, frame, 0, 1, 0, None))
    assert len(gc.get_objects()) - before < 2 * count + 100, "only the leases, and the messages of this test"
    assert locks._leases.count == locks._homes.count == count
    assert max(locks.drop()) <= DROPPED_AT_ONCE
    assert not locks._leases and not locks._homes and locks.next_due_ms() is None


async def test_a_lease_forgets_settled_messages_while_others_of_it_are_locked() -> None:
    """Symptom: a client that settled all but one of every 512 messages kept 87 KiB of memory for each of the
    others, which nobody counted, until sends were refused."""
    harness = Harness()
    await harness.send(*[b"x"] * 600)
    locked = await harness.receive(1, 600)
    kept = locked.tokens[7]
    for begin in range(0, 600, 50):
        await harness.do(1, Complete([each for each in locked.tokens[begin : begin + 50] if each != kept]))
        (lease,) = {id(each.lease): each.lease for each in held(harness)}.values()
        assert lease is not None and len(lease.references) <= SPARSE * lease.left
    assert len(held(harness)) == 1
    await harness.do(1, RenewLocks([kept]))
    assert one(await harness.do(1, Complete([kept])), Settled).failures == {}


def held(harness: Harness) -> list[Reference]:
    return [each for each in harness.subqueues[0].references.values() if each.lease is not None]
