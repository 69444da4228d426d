"""What a message is in each subscription that gets it: its expiry, its session, and its body in memory."""

from __future__ import annotations

from broker.operations.general import Failed
from broker.operations.sending import Send, Sent
from broker.operations.sessions import AcceptSession, SessionAccepted
from broker.operations.settling import Complete, Settled
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
