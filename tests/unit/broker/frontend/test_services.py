"""What all connections share: who is connected, and who waits for memory."""

from __future__ import annotations

import asyncio

import pytest

from protocol.codec import Symbol
from tests.support import raw_amqp as raw
from tests.support.link_stack import LinkStack
from tests.support.waiting import WAIT_S, until


async def test_connections_are_counted_while_they_last() -> None:
    stack = LinkStack()
    registry = stack.metrics.registry

    def shown() -> list[float | None]:
        names = ("active_connections", "connections_opened_total", "connections_closed_total", "active_links")
        return [registry.get_sample_value(f"partibus_{name}") for name in names]

    first, second = await stack.connect(), await stack.connect()
    await first.sender()
    assert shown() == [2, 2, 0, 1] and stack.memory.connections == 2
    alone = asyncio.create_task(stack.services.wait_until_alone())
    first.connection.connection_lost()
    assert shown() == [1, 2, 1, 0] and stack.memory.connections == 1
    assert not alone.done()
    second.connection.connection_lost()
    await asyncio.wait_for(alone, WAIT_S)
    assert shown() == [0, 2, 2, 0]


async def test_what_a_connection_had_counts_no_more_when_it_is_gone() -> None:
    stack = LinkStack()
    stays, goes = await stack.connect(), await stack.connect()
    fields = [*raw.receiver_attach(1, "queue"), *[None] * 6, {Symbol("many"): [None] * 1_800}]
    assert [frame.code for frame in await goes.attach(fields)] == [raw.ATTACH]
    memory = stack.memory
    assert memory.sessions_and_links == 3 and memory.parts > 20, "values are no sessions and links"
    goes.connection.connection_lost()
    assert memory.sessions_and_links == memory.parts == 1
    stays.connection.connection_lost()
    assert memory.sessions_and_links == memory.parts == 0


async def test_who_waits_for_memory_is_told_when_it_has_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.frontend.services.LOOK_AGAIN_S", 0.001)
    stack = LinkStack()
    waiting, gone = await stack.connect(), await stack.connect()
    told: list[str] = []
    monkeypatch.setattr(waiting.connection, "flush_soon", lambda: told.append("waiting"))
    monkeypatch.setattr(gone.connection, "flush_soon", lambda: told.append("gone"))
    looks = 0
    exceeded = [True]

    def is_exceeded(_: object) -> bool:
        nonlocal looks
        looks += 1
        return exceeded[0]

    monkeypatch.setattr(type(stack.memory), "exceeded", property(is_exceeded))
    for client in (waiting, gone, waiting):
        stack.services.hold(client.connection, by_others=False)
    stack.services.left(gone.connection)
    await until(lambda: looks >= 3)
    assert told == []
    exceeded[0] = False
    await until(lambda: told)
    assert told == ["waiting"]
    await until(lambda: stack.services._held_timer is None)


async def test_rules_that_change_are_told_to_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = LinkStack()
    told: list[int] = []
    for number in range(2):
        client = await stack.connect()
        monkeypatch.setattr(client.connection, "rules_changed", lambda number=number: told.append(number))
    stack.namespace.change_rules("queue")
    assert sorted(told) == [0, 1]
