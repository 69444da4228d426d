"""A connection with many links ends in slices, in which nothing is delivered any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import cast

from broker.base.slices import Slices
from broker.frontend.departure import HELD_IN_LOOP_MAX, LINKS_AT_ONCE, SESSIONS_AT_ONCE, Departure
from broker.operations.general import Detach
from broker.operations.receiving import Demand
from broker.operations.settling import Release
from protocol.codec import UInt
from protocol.engine import Engine
from tests.support import raw_amqp as raw
from tests.support.link_stack import Client, LinkStack, turn, until
from tests.support.locked import locked

RECEIVERS = 5 * LINKS_AT_ONCE


async def with_receivers(stack: LinkStack, count: int, window: int = 100_000) -> Client:
    """A client with as many receivers, each of which waits for a message."""
    client = await stack.connect()
    for handle in range(count):
        fields = raw.flow_fields(handle, 0, 1)
        fields[1] = UInt(window)
        client.say(
            raw.frame(raw.ATTACH, raw.receiver_attach(handle, "queue")),
            raw.frame(raw.FLOW, fields),
        )
    await client.hear()
    assert len(stack.queue.watchers) == count
    return client


async def test_links_end_a_few_in_each_turn_and_the_connection_after_the_last() -> None:
    stack = LinkStack()
    client = await with_receivers(stack, RECEIVERS)
    client.connection.connection_lost()
    # Symptom: 5,000 receivers that went together held the event loop for 215 ms.
    assert len(stack.queue.watchers) == RECEIVERS - LINKS_AT_ONCE
    assert client.connection in stack.services.connections
    client.connection.connection_lost()
    await stack.services.wait_until_alone()
    assert not stack.queue.watchers and not stack.services.connections
    assert client.connection.engine.link_count == 0


async def test_a_connection_with_few_links_ends_at_once() -> None:
    stack = LinkStack()
    client = await with_receivers(stack, LINKS_AT_ONCE - 1)
    client.connection.connection_lost()
    assert not stack.queue.watchers and not stack.services.connections


async def test_a_connection_with_many_sessions_is_freed_in_slices() -> None:
    """Symptom: dozens of connections with 249 sessions each, lost together, held the event loop for 50 ms."""
    stack = LinkStack()
    client = await stack.connect()
    client.say(
        *(raw.frame(raw.BEGIN, raw.begin_fields(), channel=1 + each) for each in range(SESSIONS_AT_ONCE))
    )
    await client.hear()
    client.connection.connection_lost()
    assert client.connection in stack.services.connections
    await stack.services.wait_until_alone()
    assert stack.services.memory.parts == 0


async def test_what_the_window_holds_back_goes_back_in_the_slices_in_which_links_end() -> None:
    stack = LinkStack(partitions=1)
    client = await with_receivers(stack, RECEIVERS, window=0)
    part = stack.parts[0]
    sinks = [part.take(Demand)[1] for _ in range(RECEIVERS)]
    given = [locked(0) for _ in sinks]
    for sink, messages in zip(sinks, given, strict=True):
        sink(messages)
    await client.hear()
    client.connection.connection_lost()
    await stack.services.wait_until_alone()
    unseen = [token for detach in part.take_all(Detach) for token in detach.unseen]
    assert unseen == [token for messages in given for token in messages.tokens]


async def test_a_message_for_a_link_that_is_about_to_end_goes_back() -> None:
    stack = LinkStack(partitions=1)
    client = await with_receivers(stack, RECEIVERS)
    part = stack.parts[0]
    for _ in range(RECEIVERS - 1):
        part.take(Demand)
    _, sink = part.take(Demand)  # of the receiver that ends last
    client.connection.eof_received()
    assert len(stack.queue.watchers) > 0
    sink(locked(0))
    await until(lambda: not stack.queue.watchers)
    await turn()
    assert part.has(Release)


async def test_the_memory_of_many_deliveries_is_freed_in_a_thread() -> None:
    """Symptom: a client that had received 90,000 messages, settled them and left held the event loop for
    62 ms."""
    threads: list[threading.Thread] = []

    class Freed:
        unsettled, held_most, session_count = 0, HELD_IN_LOOP_MAX + 1, 1

        def free_in_steps(self) -> Iterator[None]:
            threads.append(threading.current_thread())
            yield

    departure = Departure(cast(Engine, Freed()), Slices(), asyncio.create_task)
    departure.free_engine()
    await until(lambda: threads)
    assert threads[0] is not threading.current_thread()
