"""Subqueues by their roles: a partition with many subqueues works like one with three, and costs no more."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from broker.base.slices import Slices
from broker.entities.descriptions import MAIN, QUEUE_SUBQUEUES, QueueDescription, QueueSettings
from broker.entities.roles import KEEPS_DEAD_LETTERS, SERVES_RECEIVERS, SubqueueDescription, SubqueueTable
from broker.operations.browsing import Peek, Watch
from broker.operations.receiving import Demand, Locked
from broker.operations.settling import Abandon, Complete, DeadLetter, Settled
from broker.partition import records
from broker.partition.records import Mark
from tests.support.partition_harness import Harness, one

OTHERS = 300
FIRST = len(QUEUE_SUBQUEUES)
"""The number of the first subqueue after those of a queue; the next one is for its dead letters."""


def many() -> SubqueueTable:
    """As a topic will have them: a subqueue for each subscription, and one for its dead letters."""
    subqueues = list(QUEUE_SUBQUEUES.values())
    for number in range(OTHERS):
        subqueues.append(
            SubqueueDescription(f"s{number}", SERVES_RECEIVERS, dead_letters_to=len(subqueues) + 1)
        )
        subqueues.append(SubqueueDescription(f"s{number}/dead", KEEPS_DEAD_LETTERS))
    return SubqueueTable(dict(enumerate(subqueues)), len(subqueues))


MANY = many()


@dataclass(slots=True, frozen=True)
class ManyDescription(QueueDescription):
    """A kind of entity with many subqueues."""

    @property
    def subqueues(self) -> SubqueueTable:
        return MANY


def with_many(settings: QueueSettings | None = None, turns: Slices | None = None) -> Harness:
    return Harness(settings, kind=ManyDescription, turns=turns)


async def given(harness: Harness, *bodies: bytes, ttl_ms: int | None = None) -> list[int]:
    """Put messages into the first of the other subqueues; returns their sequence numbers."""
    first = await harness.send(*bodies, ttl=[ttl_ms] * len(bodies))
    numbers = list(range(first, first + len(bodies)))
    messages = harness.subqueues and harness.task._partition and harness.task._partition.messages
    assert messages
    messages.position = harness.log.end
    messages.apply_mark(Mark(records.MOVED, 0, numbers, None, FIRST))
    harness.task.check()
    return numbers


async def test_a_subqueue_does_what_its_role_says_whichever_it_is() -> None:
    harness = with_many(QueueSettings(max_delivery_count=2))
    await given(harness, b"dead", b"spent", b"done")
    dead, spent, done = (await harness.receive(1, 3, "s0")).tokens
    assert one(await harness.do(1, DeadLetter([dead])), Settled).failures == {}
    assert one(await harness.do(1, Complete([done])), Settled).failures == {}
    await harness.do(1, Abandon([spent]))
    again = await harness.receive(1, 1, "s0")
    assert again.delivery_counts == [1]
    await harness.do(1, Abandon(again.tokens))
    assert (await harness.peek("s0")).messages == []
    assert (await harness.peek("s0/dead")).messages == [b"dead", b"spent"]
    stuck = await harness.receive(1, 1, "s0/dead")
    assert list(one(await harness.do(1, DeadLetter(stuck.tokens)), Settled).failures) == [0]


async def test_messages_expire_in_every_subqueue_that_serves_receivers() -> None:
    harness = with_many(QueueSettings(dead_lettering_on_expiration=True))
    await given(harness, b"a", b"b", ttl_ms=1_000)
    await harness.send(b"c", ttl=[2_000])
    assert await harness.do(7, Watch("s0/dead", 0)) == []
    await harness.advance(1_100)
    assert (await harness.peek("s0/dead")).messages == [b"a", b"b"] and len(harness.take(7)) == 1
    assert (await harness.peek(MAIN)).messages == [b"c"]
    await harness.advance(1_100)
    assert (await harness.peek(MAIN)).messages == []
    harness.task.check()


async def test_a_token_finds_its_message_in_any_subqueue_and_lapses_with_its_lock() -> None:
    harness = with_many(QueueSettings(lock_duration_ms=5_000))
    await given(harness, b"a")
    await harness.send(b"b")
    first, second = await harness.receive(1, 1, "s0"), await harness.receive(1)
    swapped = [first.tokens[0][:8] + second.tokens[0][8:], second.tokens[0][:8] + first.tokens[0][8:]]
    assert len(one(await harness.do(1, Complete(swapped)), Settled).failures) == 2
    await harness.advance(5_100)
    assert list(one(await harness.do(1, Complete(first.tokens)), Settled).failures) == [0]


def in_one_turn() -> Slices:
    """No work waits for another turn of the event loop, which costs calls, however busy the machine is."""
    return Slices(0, float)


async def calls_of_a_round(harness: Harness) -> int:
    """Count the Python and C calls to send a message, receive, peek and complete it."""
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async def round_trip() -> None:
        harness.post(1, Demand(MAIN, 1))
        await harness.task.step()
        await harness.send(b"m", ttl=[60_000])
        locked = one(harness.take(1), Locked)
        await harness.do(2, Peek(MAIN, 0, 1))
        await harness.do(1, Complete(locked.tokens))

    harness.until_quiet = harness.task.step  # type: ignore[method-assign,assignment]  # without its checks
    await round_trip()
    before: Callable[..., object] | None = sys.getprofile()
    gc.collect()
    gc.disable()  # a collection would add the calls of its callbacks
    sys.setprofile(count)
    try:
        await round_trip()
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls


async def test_subqueues_without_work_cost_nothing() -> None:
    few = await calls_of_a_round(Harness(turns=in_one_turn()))
    assert await calls_of_a_round(with_many(turns=in_one_turn())) == few
