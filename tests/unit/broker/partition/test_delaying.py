"""Abandoning with a delay: when the message is offered again, and what a restart does to it."""

from __future__ import annotations

import pytest

from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.identifiers import LockToken
from broker.message.changes import encode_changes
from broker.operations.deleting import DeletedExactly, DeleteExactly
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send
from broker.operations.settling import Abandon, Complete, Renewed, RenewLocks, Settled
from broker.operations.transactions import Transact, Transacted
from broker.partition.cycle_bounds import Bounds
from broker.partition.delays import Delays
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import Harness, one


def delays_of(harness: Harness) -> Delays:
    partition = harness.task._partition
    assert partition is not None
    return partition.messages.states.of(Delays)


async def abandon(harness: Harness, tokens: list[LockToken], delay_ms: int) -> None:
    answer = one(await harness.do(1, Abandon(tokens, delay_ms=delay_ms)), Settled)
    assert answer.failures == {}


async def delayed(harness: Harness, *bodies: bytes, delay_ms: int = 5_000) -> list[int]:
    """Send messages, receive them and abandon them with a delay."""
    await harness.send(*bodies)
    locked = await harness.receive(1, len(bodies))
    await abandon(harness, locked.tokens, delay_ms)
    return locked.sequence_numbers


async def test_a_message_is_offered_again_after_the_delay_with_its_number_and_in_its_place() -> None:
    harness = Harness()
    (number,) = await delayed(harness, b"first")
    await harness.send(b"second", b"third")
    assert (await harness.receive(1, 1)).messages == [b"second"]
    assert one(await harness.do(2, Demand(MAIN, 3)), Locked).messages == [b"third"]
    await harness.advance(4_999)
    assert harness.take(2) == []
    await harness.advance(1)
    again = one(harness.take(2), Locked)
    assert (again.messages, again.sequence_numbers, again.delivery_counts) == ([b"first"], [number], [1])


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_a_delay_outlives_a_restart_and_ends_at_its_time(checkpoint: bool) -> None:
    harness = Harness()
    numbers = await delayed(harness, b"a", b"b")
    await harness.advance(2_000)
    await harness.restart(clean=checkpoint)
    await harness.send(b"c")
    assert one(await harness.do(2, Demand(MAIN, 3)), Locked).messages == [b"c"]
    await harness.advance(2_999)
    assert harness.take(2) == []
    await harness.advance(1)
    assert one(harness.take(2), Locked).sequence_numbers == numbers
    await harness.restart(clean=checkpoint)
    assert (await harness.receive(3, 3)).delivery_counts == [1, 1, 0], "the delay is over"


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_a_delay_that_has_ended_does_not_come_back_because_the_clock_was_set_back(
    checkpoint: bool,
) -> None:
    harness = Harness()
    numbers = await delayed(harness, b"a", b"b")
    harness.clock.step(-3_600_000)
    await harness.advance(5_020)
    await harness.restart(clean=checkpoint)
    assert (await harness.receive(2, 2)).sequence_numbers == numbers
    assert list(delays_of(harness).entries()) == []


async def test_a_delay_that_ended_while_the_broker_was_down_holds_nothing_back() -> None:
    harness = Harness()
    await delayed(harness, b"a")
    harness.clock.advance(5_000)
    await harness.restart()
    assert (await harness.receive(2, 1)).messages == [b"a"]
    assert delays_of(harness).state_bytes == 0


async def test_a_delayed_message_counts_as_locked_and_no_token_reaches_it() -> None:
    harness = Harness()
    await harness.send(b"a")
    tokens = (await harness.receive(1, 1)).tokens
    await abandon(harness, tokens, 5_000)
    counts = harness.task.counts()[MAIN]
    assert (counts.active, counts.locked) == (1, 1)
    assert len(one(await harness.do(1, Complete(tokens)), Settled).failures) == 1
    assert len(one(await harness.do(1, RenewLocks(tokens)), Renewed).failures) == 1
    number = int.from_bytes(tokens[0][:8], "big")
    answer = one(await harness.do(1, DeleteExactly(MAIN, [number])), DeletedExactly)
    assert (answer.locked, answer.recalls) == ([number], False)


async def test_the_last_allowed_delivery_is_dead_lettered_at_once() -> None:
    harness = Harness(QueueSettings(max_delivery_count=1))
    await delayed(harness, b"a")
    assert (await harness.peek(DEAD_LETTER)).messages == [b"a"]


async def test_a_message_whose_time_to_live_ends_during_the_delay_is_never_offered() -> None:
    harness = Harness(QueueSettings(dead_lettering_on_expiration=True))
    await harness.send(b"a", ttl=[3_000])
    locked = await harness.receive(1, 1)
    await abandon(harness, locked.tokens, 5_000)
    await harness.do(2, Demand(MAIN, 1))
    await harness.advance(5_000)
    assert harness.take(2) == [] and (await harness.peek(DEAD_LETTER)).messages == [b"a"]


async def test_a_dead_letter_can_be_delayed_too_and_properties_change_at_once() -> None:
    harness = Harness(QueueSettings(dead_lettering_on_expiration=True))
    await harness.send(b"a", ttl=[1_000])
    await harness.advance(1_000)
    locked = await harness.receive(1, 1, DEAD_LETTER)
    changed = encode_changes({"tried": True})
    await harness.do(1, Abandon(locked.tokens, changed, delay_ms=5_000))
    await harness.restart()
    await harness.do(2, Demand(DEAD_LETTER, 1))
    assert harness.take(2) == []
    await harness.advance(5_000)
    again = one(harness.take(2), Locked)
    assert again.delivery_counts == [0] and b"tried" in (again.changed[0] or b"")


async def test_a_delay_within_a_transaction_begins_with_its_commit() -> None:
    harness = Harness()
    await harness.send(b"a")
    locked = await harness.receive(1, 1)
    transact = Transact(Send([b"result"], None), [Abandon(locked.tokens, delay_ms=5_000)])
    one(await harness.do(1, transact), Transacted)
    await harness.restart()
    assert one(await harness.do(2, Demand(MAIN, 2)), Locked).messages == [b"result"]
    await harness.advance(5_000)
    assert one(harness.take(2), Locked).messages == [b"a"]


async def test_many_delays_are_restored_and_end_in_steps() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(ended_locks_max=10, granted_max=4_096)))
    bodies = [b"%d" % number for number in range(1_500)]
    await harness.send(*bodies)
    tokens = (await harness.receive(1, len(bodies))).tokens
    for start in range(0, len(tokens), 100):
        await abandon(harness, tokens[start : start + 100], 5_000 + start)
    await harness.restart(clean=True)
    assert (await harness.peek(count=2)).delivery_counts == [1, 1]
    assert harness.subqueues[0].locked == len(bodies)
    await harness.advance(10_000)
    assert (await harness.receive(2, len(bodies))).messages == bodies
    assert delays_of(harness).state_bytes == 0
