"""A cycle: one answer per client, and answers whose messages are not in memory."""

from __future__ import annotations

from broker.entities.descriptions import MAIN
from broker.operations import Demand, Locked, Send
from tests.support.partition_harness import Harness, one


async def test_one_cycle_gives_a_client_one_answer_for_all_its_messages() -> None:
    harness = Harness()
    harness.post(1, Demand(MAIN, 100))
    for _ in range(5):
        harness.post(2, Send([b"x", b"y"], None))
    await harness.until_quiet()
    assert len(one(harness.take(1), Locked).tokens) == 10


async def test_without_any_budget_every_message_still_arrives() -> None:
    harness = Harness(payload_bytes=0)
    await harness.do(1, Demand(MAIN, 1))
    await harness.send(b"passes through")
    assert one(harness.take(1), Locked).messages == [b"passes through"] and harness.log.fetches == 0
    await harness.send(b"a", b"b", b"")
    await harness.restart()
    assert (await harness.peek()).messages == [b"passes through", b"a", b"b", b""]
    assert (await harness.receive(1, 4)).messages == [b"passes through", b"a", b"b", b""]
