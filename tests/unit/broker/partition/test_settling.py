"""Settlements: complete, abandon, defer and release, and the tokens that they name."""

from __future__ import annotations

import gc

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from broker.message.changes import encode_changes
from broker.operations.general import Failed
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Demand, Locked, ReceiveDeferred
from broker.operations.sending import Send, Sent
from broker.operations.sessions import AcceptSession, SessionAccepted
from broker.operations.settling import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    GiveBack,
    Release,
    Renewed,
    RenewLocks,
    Settled,
)
from broker.operations.transactions import Transact, Transacted
from broker.operations.transfers import FailTransfer
from broker.partition.changed_properties import VALUE_BYTES, WORK_COST
from broker.partition.cycle_bounds import Bounds
from broker.partition.settling import CHANGE_WORK
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import Harness, one, properties
from tests.support.topics import DEAD, A, B, bodies, topic, with_subscription


async def test_a_completed_message_is_gone_also_after_a_restart() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    locked = await harness.receive(1, 2)
    assert await harness.do(1, Complete([locked.tokens[0]], "mine")) == [Settled("mine", {})]
    await harness.restart()
    assert (await harness.peek()).messages == [b"b"]


async def test_a_settlement_reaches_the_good_tokens_and_names_the_others_by_place() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    good = (await harness.receive(1, 2)).tokens
    tokens = [bytes(16), good[0], b"short", good[0], good[1][:8] + bytes(8), good[1]]
    failures = dict.fromkeys((0, 2, 3, 4), Reason.LOCK_LOST)
    assert await harness.do(1, Complete(tokens)) == [Settled(None, failures)]
    assert (await harness.peek()).messages == []


async def test_changes_of_an_abandon_and_of_a_dead_lettering_are_both_there() -> None:
    harness = Harness()
    await harness.send(b"a")
    await harness.do(
        1, Abandon((await harness.receive(1)).tokens, encode_changes({"colour": "red", "size": 1}))
    )
    await harness.do(
        1,
        DeadLetter((await harness.receive(1)).tokens, encode_changes({"size": 2, "DeadLetterReason": "bad"})),
    )
    for _ in range(2):
        dead = await harness.peek(DEAD_LETTER)
        assert properties(dead.changed[0]) == {"colour": "red", "size": 2, "DeadLetterReason": "bad"}
        await harness.restart()


@pytest.mark.parametrize(("give_back", "count"), [(Abandon, 2), (Release, 1), (Defer, 2)])
async def test_a_deferred_message_that_is_given_back_stays_deferred(
    give_back: type[Abandon | Release | Defer], count: int
) -> None:
    harness = Harness()
    number = await harness.send(b"a")
    await harness.do(1, Defer((await harness.receive(1)).tokens))
    await harness.do(1, give_back(one(await harness.do(1, ReceiveDeferred(MAIN, [number])), Locked).tokens))
    assert await harness.do(1, Demand(MAIN, 1)) == []
    assert one(await harness.do(1, ReceiveDeferred(MAIN, [number])), Locked).delivery_counts == [count]


async def test_messages_of_a_failed_request_are_free_once_it_is_told_so() -> None:
    harness = Harness()
    await harness.send(b"a")
    held = await harness.receive(1)
    assert one(await harness.do(1, GiveBack([*held.tokens, bytes(16)], 7)), Settled) == Settled(7)
    assert harness.task.counts()[MAIN].locked == 0
    assert (await harness.receive(2)).delivery_counts == held.delivery_counts


Settling = Complete | Abandon | Defer | DeadLetter


async def dead_letters_of_a(harness: Harness) -> Locked:
    """Two locked dead letters of the subscription a; another two are locked in b."""
    await harness.send(b"1", b"2")
    await harness.receive(2, 2, B)
    await harness.do(1, DeadLetter((await harness.receive(1, 2, A)).tokens))
    return await harness.receive(1, 2, A + DEAD)


@pytest.mark.parametrize("settled_max", [1, 1_000], ids=["in parts", "at once"])
@pytest.mark.parametrize("elsewhere", [A, B, B + DEAD, MAIN])
@pytest.mark.parametrize("operation", [Complete, Abandon, Defer, DeadLetter])
async def test_a_lock_is_found_only_in_the_subqueue_that_a_client_addresses(
    operation: type[Settling], elsewhere: str, settled_max: int
) -> None:
    limits = TaskLimits(bounds=Bounds(settled_max=settled_max))
    harness = Harness(description=topic("a", "b"), limits=limits)
    held = await dead_letters_of_a(harness)
    lost = Settled(7, dict.fromkeys((0, 1), Reason.LOCK_LOST))
    assert await harness.do(3, operation(held.tokens, cookie=7, subqueue=elsewhere)) == [lost]
    renewal = RenewLocks(held.tokens, 7, 5, subqueue=elsewhere)
    assert one(await harness.do(3, renewal), Renewed).failures == lost.failures
    await harness.advance(100)  # longer than a renewal would have been for
    assert one(await harness.do(1, Complete(held.tokens, 8, A + DEAD)), Settled) == Settled(8)
    assert await bodies(harness, B) == [b"1", b"2"]
    assert await bodies(harness, A) == await bodies(harness, A + DEAD) == []


async def test_tokens_of_several_subqueues_are_settled_where_the_client_may() -> None:
    harness = Harness(description=topic("a", "b"))
    await harness.send(b"1", b"2")
    tokens = [*(await harness.receive(1, 2, A)).tokens, *(await harness.receive(1, 2, B)).tokens]
    failures = dict.fromkeys((0, 1), Reason.LOCK_LOST)
    assert await harness.do(1, Complete(tokens, subqueue=B)) == [Settled(None, failures)]
    assert (await bodies(harness, A), await bodies(harness, B)) == ([b"1", b"2"], [])


@pytest.mark.parametrize("operation", [Complete, Abandon, Defer, DeadLetter, RenewLocks])
async def test_a_subqueue_that_there_is_not_has_no_locks(operation: type[Settling | RenewLocks]) -> None:
    harness = Harness(description=topic("a"))
    await harness.send(b"1")
    tokens = (await harness.receive(1, 1, A)).tokens
    failed = one(await harness.do(1, operation(tokens, subqueue=B)), Failed)
    assert failed.reason is Reason.ENTITY_NOT_FOUND
    assert one(await harness.do(1, Complete(tokens, subqueue=A)), Settled).failures == {}


async def test_a_transaction_settles_where_its_client_may() -> None:
    harness = Harness(description=topic("a", "b"))
    await harness.send(b"1")
    tokens = (await harness.receive(1, 1, A)).tokens
    nothing = Send([], None)
    failed = one(await harness.do(1, Transact(nothing, [Complete(tokens, subqueue=B)])), Failed)
    assert failed.reason is Reason.LOCK_LOST
    one(await harness.do(1, Transact(nothing, [Complete(tokens, subqueue=A)])), Transacted)
    assert (await bodies(harness, A), await bodies(harness, B)) == ([], [b"1"])


async def test_locks_of_a_session_are_found_in_its_own_subqueue_alone() -> None:
    harness = Harness(description=with_subscription(topic("a"), "b", requires_session=True))
    one(await harness.do(9, Send([b"1"], None, columns={"session_id": [b"s"]})), Sent)
    one(await harness.do(2, AcceptSession(B, b"s")), SessionAccepted)
    tokens = (await harness.receive(2, 1, B)).tokens
    lost = one(await harness.do(3, Complete(tokens, subqueue=A)), Settled)
    assert lost.failures == {0: Reason.LOCK_LOST}
    assert one(await harness.do(2, Complete(tokens, subqueue=B)), Settled).failures == {}


GONE: list[bytes] = []


class Body(bytes):
    """A message that reports when the last reference to it is gone. (Weak references to bytes are
    impossible.)"""

    def __del__(self) -> None:
        GONE.append(bytes(self[:1]))


async def test_the_body_of_a_settled_message_goes_at_once_while_others_of_its_lease_are_still_locked() -> (
    None
):
    GONE.clear()
    harness = Harness()
    await harness.send(*(Body(b"%d" % index * 1000) for index in range(3)))
    tokens = (await harness.receive(1, 3)).tokens
    await harness.do(1, Complete(tokens[:1]), DeadLetter(tokens[1:2]))
    await harness.do(2)
    gc.collect()
    assert GONE == [b"0"], "1 is in the dead-letter queue, 2 is locked"
    await harness.do(1, Complete(tokens[2:]))
    await harness.do(2)
    gc.collect()
    assert GONE == [b"0", b"2"]


@pytest.mark.parametrize("subqueue", [MAIN, DEAD_LETTER])
async def test_a_failed_transfer_moves_a_message_of_any_subqueue_with_its_reason(subqueue: str) -> None:
    harness = Harness()
    number = await harness.send(b"a")
    if subqueue == DEAD_LETTER:
        await harness.do(1, DeadLetter((await harness.receive(1)).tokens))
    tokens = [*(await harness.receive(1, subqueue=subqueue)).tokens, bytes(16)]
    changed = encode_changes({"DeadLetterReason": "why"})
    answer = one(await harness.do(1, FailTransfer(tokens, changed, 7)), Settled)
    assert answer == Settled(7, {1: Reason.LOCK_LOST})
    for _ in range(2):
        failed = await harness.peek(TRANSFER_DEAD_LETTER)
        assert failed.sequence_numbers == [number]
        assert properties(failed.changed[0]) == {"DeadLetterReason": "why"}
        assert not (await harness.peek(subqueue)).messages
        await harness.restart()


@pytest.mark.parametrize("kind", [Abandon, Defer, DeadLetter, FailTransfer])
@pytest.mark.parametrize("in_transaction", [False, True])
async def test_the_first_changed_properties_of_a_partition_need_room_in_memory(
    kind: type[Abandon | Defer | DeadLetter | FailTransfer], in_transaction: bool
) -> None:
    harness, changed = Harness(), encode_changes({"text": "v" * 4_000})
    assert changed is not None
    await harness.send(b"a")
    settlement = kind((await harness.receive(1)).tokens, changed)
    operation: Operation = settlement
    if in_transaction and not isinstance(settlement, FailTransfer):
        operation = Transact(Send([], None), [settlement])
    size = VALUE_BYTES + len(changed)
    harness.budget.growth_bytes_min, harness.budget.room_bytes = 0, size - 1
    failed = one(await harness.do(1, operation), Failed)
    assert failed.reason is Reason.SERVER_BUSY and f"no room for {size} bytes more" in failed.description
    harness.budget.room_bytes = size
    assert not isinstance(one(await harness.do(1, operation), object), Failed)


@pytest.mark.parametrize("kind", [Abandon, Defer, DeadLetter])
async def test_one_cycle_takes_few_settlements_that_each_change_something(
    kind: type[Abandon | Defer | DeadLetter],
) -> None:
    """Symptom: 250 dispositions of two messages with 4 KB of properties held the event loop for 24 ms."""
    harness = Harness()
    await harness.send(*[b"x"] * 600)
    tokens = (await harness.receive(1, 600)).tokens
    for place in range(0, 600, 2):
        harness.post(
            1, kind(tokens[place : place + 2], encode_changes({"number": place, "text": "v" * 4_000}))
        )
    most = Bounds().work_max // (CHANGE_WORK + 4_000 // WORK_COST) + 1
    answers: list[Answer] = []
    while len(answers) < 300:
        await harness.task.step()
        some = harness.take(1)
        assert 0 < len(some) <= most < 150
        answers += some
