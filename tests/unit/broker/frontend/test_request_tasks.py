"""The requests of a connection that run as tasks: counted until they end, bounded, cancelled with it."""

from __future__ import annotations

import asyncio

import pytest

from broker.frontend.nodes.request_node import QUEUED_BYTES_FREE
from tests.support.link_stack import LinkStack, turn, until

KIB = 1 << 10


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_request_counts_until_it_has_ended_and_ends_with_its_connection(is_lost: bool) -> None:
    stack, answered = LinkStack(), asyncio.Event()
    client = await stack.connect()
    ended = list[str]()

    async def work() -> None:
        try:
            await answered.wait()
            ended.append("answered")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    client.connection.spawn(work(), name="waits for others", size=3 * KIB, queued=True)
    client.connection.spawn(work(), name="does not", size=5 * KIB)
    await turn()
    assert stack.services.inflight.bytes == 8 * KIB and stack.services.queued_bytes == 3 * KIB
    if is_lost:
        client.connection.connection_lost()
    else:
        answered.set()
    await until(lambda: not stack.tasks)
    await turn()
    assert ended == ["cancelled" if is_lost else "answered"] * 2
    assert stack.services.inflight.bytes == stack.services.queued_bytes == 0


async def test_requests_wait_within_the_bounds_of_their_connection_and_of_all_but_each_may_keep_a_few() -> (
    None
):
    stack = LinkStack(connection_inflight_bytes_max=800 * KIB, total_inflight_bytes_max=4 << 20)
    first, second = [(await stack.connect()).connection for _ in range(2)]
    first.spawn(asyncio.Event().wait(), name="large", size=700 * KIB, queued=True)  # type: ignore[arg-type]
    assert first.may_queue(100 * KIB) and not first.may_queue(100 * KIB + 1)
    assert second.may_queue(324 * KIB) and not second.may_queue(324 * KIB + 1), "all have a quarter of 4 MiB"
    second.spawn(asyncio.Event().wait(), name="rest", size=324 * KIB, queued=True)  # type: ignore[arg-type]
    third = (await stack.connect()).connection
    assert third.may_queue(QUEUED_BYTES_FREE) and not third.may_queue(QUEUED_BYTES_FREE + 1)
    for each in (first, second):
        each.connection_lost()
    await until(lambda: not stack.tasks)
