"""The bounds of one cycle end it in time, and nothing is left out."""

from __future__ import annotations

import asyncio

from broker.entities.descriptions import MAIN
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete, Settled
from broker.partition.cycle_bounds import Bounds
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import Harness
from tests.support.ticker import Ticker


async def test_a_cycle_ends_with_the_operation_that_has_done_enough_and_the_others_come_in_order() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(work_max=450)))
    await harness.send(b"x")
    before = harness.log.appends
    answers = await harness.do(1, *[Send([b"%d" % index] * 100, None, index) for index in range(20)])
    assert [answer.cookie for answer in answers if isinstance(answer, Sent)] == list(range(20))
    assert harness.log.appends - before == 4  # five operations of 100 messages each reach 450
    locked = [await harness.receive(1, 100) for _ in range(20)]
    before = harness.log.appends
    settled = await harness.do(1, *[Complete(each.tokens, place) for place, each in enumerate(locked)])
    assert [answer.cookie for answer in settled if isinstance(answer, Settled)] == list(range(20))
    assert harness.log.appends - before == 4


async def test_while_cycle_follows_cycle_others_have_their_turns() -> None:
    """Cycles that await no commit (here: handing out, giving back) let the event loop run other tasks in
    between."""
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_max=100)))
    await harness.send(*[b"x"] * 5_000)
    running = asyncio.create_task(harness.task.run())
    try:
        async with Ticker() as ticker, asyncio.timeout(30):
            harness.post(1, Demand(MAIN, 5_000))
            while sum(len(each.tokens) for each in harness.received[1] if isinstance(each, Locked)) < 5_000:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert ticker.turns >= 50
    finally:
        await asyncio.wait_for(harness.task.stop(), 30)
        await asyncio.wait_for(running, 30)
