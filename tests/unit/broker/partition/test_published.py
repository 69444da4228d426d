"""What a message is in each subscription that gets it: its expiry, its session, and its body in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from broker.base.slices import Slices
from broker.entities.topics import TopicDescription
from broker.operations.general import Failed
from broker.operations.sending import Send, Sent
from broker.operations.sessions import AcceptSession, SessionAccepted
from broker.operations.settling import Complete, Settled
from broker.partition import published, publishing
from broker.partition.cycle import Cycle
from broker.partition.messages import Messages
from broker.partition.publishing import Destinations, Distribution
from broker.partition.sending import Sending
from broker.partition.state import Partition
from broker.partition.targets import Target
from tests.support.partition_harness import Harness, one
from tests.support.topics import (
    DEAD,
    A,
    B,
    C,
    bodies,
    topic,
    with_subscription,
)


async def test_the_smaller_time_to_live_counts() -> None:
    description = with_subscription(
        topic("a", default_time_to_live_ms=5_000), "b", default_time_to_live_ms=1_000
    )
    harness = Harness(description=description)
    await harness.send(b"own", b"theirs", ttl=[500, None])
    await harness.restart()
    await harness.advance(600)
    assert (await bodies(harness, A), await bodies(harness, B)) == ([b"theirs"], [b"theirs"])
    await harness.advance(600)
    assert (await bodies(harness, A), await bodies(harness, B)) == ([b"theirs"], [])
    await harness.advance(4_000)
    assert await bodies(harness, A) == []


async def test_a_subscription_with_sessions_has_them_and_the_others_do_not() -> None:
    harness = Harness(description=with_subscription(topic("a"), "b", requires_session=True))
    send = Send([b"1", b"2", b"none"], None, columns={"session_id": [b"s", b"s", None]})
    one(await harness.do(9, send), Sent)
    await harness.restart()
    assert (await harness.receive(1, 3, A)).messages == [b"1", b"2", b"none"]
    one(await harness.do(2, AcceptSession(B, b"s")), SessionAccepted)
    assert (await harness.receive(2, 2, B)).messages == [b"1", b"2"]
    assert await bodies(harness, B + DEAD) == [b"none"]
    refused = one(await harness.do(3, AcceptSession(A, b"s")), Failed)
    assert "'orders/Subscriptions/a' does not require sessions" in refused.description


async def test_memory_holds_a_body_once_and_gives_it_back_when_it_is_needed() -> None:
    harness = Harness(description=topic("a", "b", "c"), payload_bytes=2_500)
    for number in range(6):
        await harness.send(bytes([number]) * 1_000)
    assert harness.budget.used <= 2_500
    for name in (A, B, C):
        locked = await harness.receive(1, 6, name)
        assert [each[0] for each in locked.messages] == list(range(6))
        one(await harness.do(1, Complete(locked.tokens)), Settled)
    assert harness.budget.used == 0


def messages_of(harness: Harness) -> Messages:
    """What the partition knows."""
    partition = harness.task._partition
    assert partition is not None
    return partition.messages


class WatchedSteps(Slices):
    """Calls a function after each step of long work, and runs them all at once."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__(0)
        self._look = look

    async def run(self, steps: Iterable[object]) -> None:
        """Run all steps."""
        for _ in steps:
            self._look()


@pytest.mark.parametrize("is_scheduled", [False, True], ids=["sent", "scheduled"])
async def test_a_message_for_many_subscriptions_is_added_to_a_few_of_them_at_a_time(
    is_scheduled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: one message for 1,000 subscriptions took 8 to 20 ms in one turn of the event loop, and twice
    as much with 2,000."""
    for each in ("WORK_AT_ONCE", "WORK_IN_ALL"):
        monkeypatch.setattr(published, each, 10 * (published.SUBQUEUE_WORK + 2))
    held: list[int] = []

    def look() -> None:
        messages = messages_of(harness)
        held.append(messages.count)
        messages.bodies.check(each for one in messages.subqueues for each in one.references.values())
        sizes.add(messages.live_bytes)

    sizes: set[int] = set()
    description = topic(*(f"s{number}" for number in range(35)))
    harness = Harness(description=description, turns=WatchedSteps(look))
    send = Send([b"m", b"of 5"], None, scheduled_ms=[harness.clock.now_ms() + 60_000] * 2)
    one(await harness.do(9, send if is_scheduled else Send([b"m", b"of 5"], None)), Sent)
    await harness.advance(61_000)
    assert held[-1] == 60 and all(after - before <= 20 for before, after in pairwise(held))
    assert sizes <= {0, 5}, "each message counts once from the first step on"
    for name in ("subscriptions/s0", "subscriptions/s34"):
        assert await bodies(harness, name) == [b"m", b"of 5"]
    await harness.restart()
    assert await bodies(harness, "subscriptions/s34") == [b"m", b"of 5"]


class References:
    """How many references a partition adds in each step of long work, as `turns`."""

    def __init__(self, description: TopicDescription, *, payload_bytes: int = 1 << 26) -> None:
        self._held: list[int] = []
        turns = WatchedSteps(lambda: self._held.append(messages_of(self.harness).work.messages))
        self.harness = Harness(description=description, turns=turns, payload_bytes=payload_bytes)

    async def added(self, sends: Sequence[Send]) -> list[int]:
        """What each step adds while these are carried out together."""
        await self.harness.send(b"first")
        self._held = [messages_of(self.harness).work.messages]
        for send in sends:
            self.harness.post(9, send)
        await self.harness.until_quiet()
        assert [type(each) for each in self.harness.take(9)] == [Sent] * len(sends)
        self._held.append(messages_of(self.harness).work.messages)
        return [after - before for before, after in pairwise(self._held)]


MANY = 200
"""Subscriptions."""


async def test_a_step_adds_few_references_however_many_messages_each_subscription_gets() -> None:
    """Symptom: a batch of 2,000 messages for 200 subscriptions held the event loop for 5 to 10 ms in each of
    four hundred turns, and another client waited for several of them."""
    steps = References(topic(*(f"s{number}" for number in range(MANY))))
    added = await steps.added([Send([b"%d" % each for each in range(30)], None)])
    assert sum(added) == 30 * MANY and max(added) <= published.WORK_AT_ONCE
    assert len(await bodies(steps.harness, "subscriptions/s199")) == 31


async def test_sends_that_cannot_be_joined_take_turns_with_others_as_well() -> None:
    """Symptom: several sends with a message-id each, to a topic that detects duplicates, were added to all
    subscriptions in one turn of the event loop."""
    names = [f"s{number}" for number in range(MANY)]
    steps = References(topic(*names, requires_duplicate_detection=True))
    sends = [Send([b"%d" % each], None, identities=[each.to_bytes(15, "big")]) for each in range(20)]
    added = await steps.added(sends)
    assert sum(added) == 20 * MANY and max(added) <= published.WORK_AT_ONCE
    assert len(await bodies(steps.harness, "subscriptions/s199")) == 21


async def test_several_sends_that_take_steps_share_a_commit() -> None:
    names = [f"s{number}" for number in range(MANY)]
    steps = References(topic(*names))
    frames = len(steps.harness.log.disk.frames)
    await steps.added([Send([b"%d" % each], None, tells_numbers=True) for each in range(5)])
    assert len(steps.harness.log.disk.frames) <= frames + 3, "the first message, and at most two for five"


async def test_few_messages_without_room_in_memory_stay_there_until_the_cycle_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Symptom: a long batch without room left hundreds of thousands of references to be looked at in the last
    step."""
    passing: list[int] = []
    finish = Partition.finish

    def counted(self: Partition, waiting_since_ms: int | None = None) -> Cycle:
        passing.append(len(self._space.cycle.passing))
        return finish(self, waiting_since_ms)

    monkeypatch.setattr(Partition, "finish", counted)
    steps = References(topic(*(f"s{number}" for number in range(MANY))), payload_bytes=0)
    bodies_sent = [b"%d" % each for each in range(50)]
    assert sum(await steps.added([Send(bodies_sent, None)])) == 50 * MANY
    assert MANY <= max(passing) <= published.PASSING_MAX
    assert await bodies(steps.harness, "subscriptions/s7") == [b"first", *bodies_sent]


async def test_dead_letters_of_many_subscriptions_get_their_reasons_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "REASONS_AT_ONCE", 10)
    given: list[int] = []
    description = topic()
    for number in range(45):
        description = with_subscription(description, f"s{number}", requires_session=True)
    harness = Harness(description=description, turns=WatchedSteps(lambda: given.append(reasons())))

    def reasons() -> int:
        return messages_of(harness).work.changed_bytes

    await harness.send(b"none")
    assert len({*given}) == 3, "in several steps, of which the first comes before these"
    for number in (0, 44):
        assert await bodies(harness, f"subscriptions/s{number}{DEAD}") == [b"none"]


def test_sums_over_messages_look_at_shared_destinations_once() -> None:
    shared = Destinations((Target(4), Target(8)))
    nobody, dead = Destinations(()), Destinations((Target(5),), dead=((5, None),), made=300)
    each, sizes = [shared, shared, nobody, dead, shared], [10, 20, 30, 40, 50]
    found = Distribution(each)
    assert found.room(sizes) == sum(one.room(size) for one, size in zip(each, sizes, strict=True))
    assert found.memory == sum(one.memory for one in each)
    assert found.made == 300 and found.copies == []
    assert found.efforts == [one.effort for one in each] and found.effort == sum(found.efforts)


async def test_the_destinations_of_a_long_send_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symptom: all 4,000 messages of a batch were gone through again when they were stored, in one turn."""
    looked: list[int] = []
    find_ahead = Sending.find_ahead

    def counted(sending: Sending, cycle: Cycle, sends: Sequence[Send]) -> Any:
        looked.append(sum(len(send.messages) for send in sends))
        return find_ahead(sending, cycle, sends)

    monkeypatch.setattr(Sending, "find_ahead", counted)
    harness = Harness(description=topic(*(f"s{number}" for number in range(30))))
    one(await harness.do(9, Send([b"%d" % each for each in range(100)], None)), Sent)
    assert looked == [100]
