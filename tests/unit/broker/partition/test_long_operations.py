"""Operations with more messages than one cycle may take: settlements in parts, a long send in steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.identifiers import LockToken
from broker.message.changes import encode_changes
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Failed
from broker.operations.receiving import Demand, Locked, ReceiveDeferred, Withdraw
from broker.operations.sending import Send
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Renewed, RenewLocks, Settled
from broker.partition.changed_properties import MERGED_AT_ONCE, PROPERTY_COST, Merging
from broker.partition.cycle_bounds import Bounds
from broker.partition.locks import Locks
from broker.partition.long_operations import Divisible
from broker.partition.references import Reference
from broker.partition.settling import Settling
from broker.partition.task_limits import TaskLimits
from storage.errors import CommitFailed
from tests.support.partition_harness import Harness, one
from tests.support.ticker import Ticker

PART = 10
MANY = 35
LIMITS = TaskLimits(bounds=Bounds(settled_max=PART, work_max=PART))
KINDS: tuple[type[Divisible], ...] = (Complete, Abandon, Defer, DeadLetter, RenewLocks)


async def _locked(harness: Harness) -> list[LockToken]:
    await harness.send(*[b"x"] * MANY)
    return list((await harness.receive(1, MANY)).tokens)


async def received(harness: Harness, count: int) -> list[LockToken]:
    """Receive messages whose changed properties do not fit into one answer."""
    tokens: list[LockToken] = []
    harness.post(1, Demand(MAIN, count))
    while len(tokens) < count:
        await harness.task.step()
        tokens += [token for each in harness.take(1) if isinstance(each, Locked) for token in each.tokens]
    return tokens


async def _steps(harness: Harness) -> list[int]:
    """Step until the client is answered; returns the number of locked messages after each step."""
    locked: list[int] = []
    while not harness.received[1]:
        await harness.task.step()
        harness.task.check()
        locked.append(harness.subqueues[0].locked)
    return locked


@pytest.mark.parametrize("kind", KINDS)
async def test_a_long_settlement_takes_several_cycles_and_is_answered_once(kind: type[Divisible]) -> None:
    harness = Harness(limits=LIMITS)
    tokens = await _locked(harness)
    tokens[25] = bytes(16)
    harness.post(1, kind(tokens, cookie="mine"))
    harness.post(1, Peek(DEAD_LETTER, 0, 1, cookie="behind it"))
    locked = await _steps(harness)
    answer = harness.received[1][0]
    assert isinstance(answer, Settled | Renewed) and answer.cookie == "mine"
    assert answer.failures == {25: Reason.LOCK_LOST}
    assert len(locked) == 4
    if kind is not RenewLocks:
        assert locked == [25, 15, 6, 1], "ten at a time, but for the token that opens nothing"
    await harness.until_quiet()
    assert [each.cookie for each in harness.received[1] if isinstance(each, Settled | Renewed | Peeked)] == [
        "mine",
        "behind it",
    ]
    await harness.restart()
    left = (await harness.peek()).sequence_numbers
    assert len(left) == (1 if kind in (Complete, DeadLetter) else MANY)
    assert len((await harness.peek(DEAD_LETTER)).sequence_numbers) == (MANY - 1 if kind is DeadLetter else 0)


async def test_a_long_settlement_counts_from_its_arrival() -> None:
    harness = Harness(QueueSettings(lock_duration_ms=5_000), limits=LIMITS)
    tokens = await _locked(harness)
    harness.post(1, Complete(tokens))
    await harness.task.step()
    harness.clock.advance(10_000)
    await harness.until_quiet()
    assert one(harness.take(1), Settled).failures == {}
    assert not (await harness.peek()).sequence_numbers


async def test_what_a_later_part_is_refused_fails_alone() -> None:
    harness = Harness(QueueSettings(max_size_mb=1), limits=LIMITS)
    tokens = await _locked(harness)
    changed = encode_changes({"why": "x" * 30_000, "where": "y" * 30_000})
    answer = one(await harness.do(1, Defer(tokens, changed)), Settled)
    assert answer.failures == dict.fromkeys(range(PART, MANY), Reason.QUOTA_EXCEEDED)
    assert one(await harness.do(1, Defer(tokens[PART:], changed)), Failed).reason is Reason.QUOTA_EXCEEDED, (
        "nothing was settled"
    )
    assert one(await harness.do(1, Complete(tokens[PART:])), Settled).failures == {}, "these are locked still"


@pytest.mark.parametrize("refused_part", [1, 2, 4])
@pytest.mark.parametrize("changed", [None, encode_changes({"more": 1})], ids=["as it is", "changed"])
async def test_a_part_whose_subqueue_is_gone_fails_alone_with_those_behind_it(
    changed: bytes | None, refused_part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: the client was told that all had failed, and part of it was durable."""
    harness = Harness(limits=LIMITS)
    tokens = await _locked(harness)
    parts, within = 0, Settling.merging

    def merging(settling: Settling, operation: Divisible, begin: int = 0) -> Merging:
        nonlocal parts
        parts += 1
        if parts == refused_part:
            raise Refused(Reason.ENTITY_NOT_FOUND, "There is no subqueue 'gone'.")
        return within(settling, operation, begin)

    monkeypatch.setattr(Settling, "merging", merging)
    [answer] = await harness.do(1, Defer(tokens, changed, "mine"))
    done = PART * (refused_part - 1)
    assert isinstance(answer, Settled | Failed) and answer.cookie == "mine"
    if isinstance(answer, Settled):
        assert answer.failures == dict.fromkeys(range(done, MANY), Reason.ENTITY_NOT_FOUND)
    else:
        assert answer.reason is Reason.ENTITY_NOT_FOUND and not done, "nothing was settled"
    assert harness.subqueues[0].locked == MANY - done
    assert one(await harness.do(1, Complete(tokens[done:])), Settled).failures == {}, "these are locked still"
    assert len((await harness.peek()).sequence_numbers) == done


async def test_a_commit_that_fails_refuses_a_long_settlement_as_a_whole() -> None:
    harness = Harness(limits=LIMITS)
    tokens = await _locked(harness)
    harness.post(1, Complete(tokens))
    await harness.task.step()
    harness.log.fail_append(CommitFailed("no"))
    await harness.until_quiet()
    assert [type(each) for each in harness.take(1)][:1] == [Failed]
    assert len((await harness.peek()).sequence_numbers) == MANY - PART, "the first part was durable"


async def test_one_request_for_more_deferred_messages_than_one_cycle_may_give_is_refused() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_max=PART)))
    first = await harness.send(*[b"x"] * MANY)
    for _ in range(4):
        await harness.do(1, Defer((await harness.receive(1, PART)).tokens))
        await harness.do(1, Withdraw(MAIN))
    numbers = list(range(first, first + MANY))
    refused = one(await harness.do(1, ReceiveDeferred(MAIN, numbers)), Failed)
    assert refused.reason is Reason.ARGUMENT and harness.task.counts()[MAIN].locked == 0
    locked = one(await harness.do(1, ReceiveDeferred(MAIN, numbers[:PART])), Locked)
    assert locked.sequence_numbers == numbers[:PART]


async def test_a_long_send_is_one_commit_and_lets_others_have_the_loop_meanwhile() -> None:
    harness = Harness(limits=LIMITS)
    await harness.send(b"x")
    frames = len(harness.log.disk.frames)
    times: list[int | None] = [60_000 + number for number in range(MANY)]
    async with Ticker() as ticker:
        first = await harness.send(*(b"%d" % number for number in range(MANY)), ttl=times)
    assert ticker.turns >= MANY // PART and len(harness.log.disk.frames) == frames + 1
    for _ in range(2):
        page = await harness.peek(start=first)
        assert page.sequence_numbers == list(range(first, first + MANY))
        assert page.messages == [b"%d" % number for number in range(MANY)]
        await harness.restart()


async def test_a_long_send_that_fails_leaves_nothing() -> None:
    harness = Harness(limits=LIMITS)
    await harness.send(b"x")
    harness.log.fail_append(CommitFailed("no"))
    assert one(await harness.do(2, Send([b"y"] * MANY, None)), Failed).reason is Reason.PARTITION_UNAVAILABLE
    assert len((await harness.peek(MAIN)).sequence_numbers) == 1


@pytest.mark.parametrize("kind", [Abandon, Defer, DeadLetter])
async def test_a_change_that_is_merged_with_many_different_ones_takes_several_cycles(
    kind: type[Abandon] | type[Defer] | type[DeadLetter],
) -> None:
    """Symptom: one disposition of 1,500 messages with 60 KB of properties each held the loop for 285 ms."""
    harness = Harness(QueueSettings(max_delivery_count=100))
    await harness.send(*[b"x"] * MANY)
    for number, token in enumerate((await harness.receive(1, MANY)).tokens):
        earlier = {f"{number} {key}": None for key in range(2_000)}
        await harness.do(1, Abandon([token], encode_changes(earlier)))
    tokens = await received(harness, MANY)
    tokens[3] = bytes(16)
    harness.post(1, kind(tokens, encode_changes({"more": 1}), "mine"))
    locked = await _steps(harness)
    answer = harness.received[1][0]
    assert isinstance(answer, Settled) and answer.failures == {3: Reason.LOCK_LOST}
    assert len(locked) == 3 and locked[-1] == 1
    taken = [before - after for before, after in zip([MANY, *locked], locked, strict=False)]
    assert max(taken) * 2_000 * PROPERTY_COST <= MERGED_AT_ONCE
    found = harness.subqueues[1 if kind is DeadLetter else 0].references.values()
    assert sum(each.changed is not None and b"more" in each.changed for each in found) == MANY - 1


async def test_a_change_that_is_merged_with_the_same_ones_takes_one_cycle() -> None:
    harness = Harness(QueueSettings(max_delivery_count=100))
    await harness.send(*[b"x"] * MANY)
    earlier = encode_changes({f"{key}": None for key in range(2_000)})
    assert MANY * 2_000 * PROPERTY_COST > MERGED_AT_ONCE
    await harness.do(1, Abandon((await harness.receive(1, MANY)).tokens, earlier))
    harness.post(1, Abandon(await received(harness, MANY), encode_changes({"more": 1})))
    assert len(await _steps(harness)) == 1


async def test_settlements_of_single_messages_share_what_one_cycle_may_merge() -> None:
    """Symptom: 200 dispositions of one message with 5,000 changed properties each held the loop for 2 s."""
    harness = Harness(QueueSettings(max_delivery_count=100))
    await harness.send(*[b"x"] * MANY)
    for number, token in enumerate((await harness.receive(1, MANY)).tokens):
        earlier = {f"{number} {key}": None for key in range(2_000)}
        await harness.do(1, Abandon([token], encode_changes(earlier)))
    for token in await received(harness, MANY):
        harness.post(1, Abandon([token], encode_changes({"more": 1})))
    most = MERGED_AT_ONCE // (2_000 * PROPERTY_COST) + 1
    left = MANY
    while left:
        await harness.task.step()
        assert left - most <= harness.subqueues[0].locked
        left = harness.subqueues[0].locked


async def test_messages_at_their_last_delivery_are_abandoned_over_several_cycles_without_a_change() -> None:
    """Symptom: a client that abandoned 1,000 of them held the event loop until the broker had merged its
    reason with all of their changed properties."""
    harness = Harness(QueueSettings(max_delivery_count=2))
    await harness.send(*[b"x"] * MANY)
    for number, token in enumerate((await harness.receive(1, MANY)).tokens):
        earlier = {f"{number} {key}": None for key in range(2_000)}
        await harness.do(1, Abandon([token], encode_changes(earlier)))
    harness.post(1, Abandon(await received(harness, MANY)))
    locked = await _steps(harness)
    assert len(locked) == 3 and not harness.subqueues[0].references
    assert len(harness.subqueues[1].references) == MANY


async def test_a_divided_settlement_looks_at_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(QueueSettings(max_delivery_count=100))
    await harness.send(*[b"x"] * MANY)
    for number, token in enumerate((await harness.receive(1, MANY)).tokens):
        earlier = {f"{number} {key}": None for key in range(2_000)}
        await harness.do(1, Abandon([token], encode_changes(earlier)))
    tokens = await received(harness, MANY)
    looked_at, find = 0, Locks.references_of

    def counted(*arguments: Any) -> Iterator[Reference]:
        nonlocal looked_at
        for each in find(*arguments):
            looked_at += 1
            yield each

    monkeypatch.setattr(Locks, "references_of", counted)
    harness.post(1, Abandon(tokens, encode_changes({"more": 1})))
    parts = len(await _steps(harness))
    assert parts == 3 and looked_at == MANY + parts - 1, "and at the first one that does not fit"
