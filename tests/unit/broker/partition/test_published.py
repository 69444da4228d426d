"""What a message is in each subscription that gets it: its expiry, its session, and its body in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest

from broker.base.slices import Slices
from broker.operations.general import Failed
from broker.operations.sending import Send, Sent
from broker.operations.sessions import AcceptSession, SessionAccepted
from broker.operations.settling import Complete, Settled
from broker.partition import published, publishing
from broker.partition.messages import Messages
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
    monkeypatch.setattr(published, "SUBQUEUES_AT_ONCE", 10)
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


async def test_dead_letters_of_many_subscriptions_get_their_reasons_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "SUBQUEUES_AT_ONCE", 10)
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
