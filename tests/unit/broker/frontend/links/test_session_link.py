"""Links that receive from a message session: what the attach asks for, and what it is answered (AMQP contract
5.4).
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import EntityStatus, QueueSettings
from broker.operations.browsing import Arrived
from broker.operations.general import Detach, Failed, Unavailable
from broker.operations.receiving import Demand
from broker.operations.sessions import AcceptSession, SessionAccepted, SessionLost, WatchSessions
from broker.operations.settling import Release
from protocol.codec import Described, Long, Symbol, UInt, ULong
from tests.support import raw_amqp as raw
from tests.support.link_stack import Client, LinkStack, Part, tags_of, until
from tests.support.receiving import LONG_MS, give
from tests.support.waiting import WAIT_S

FILTER = "com.microsoft:session-filter"
GO, NON_EXCLUSIVE = ULong(0x0000_0013_7000_000C), ULong(0x0000_0013_7000_000E)
TOKEN = uuid.UUID(int=7)


def attach_fields(value: Any, *, key: str = FILTER, timeout_ms: int | None = None) -> list[Any]:
    fields = raw.receiver_attach(0, "queue")
    source = ["queue", *[None] * 6, {Symbol(key): value}]
    fields[5] = Described(ULong(raw.SOURCE), source)
    if timeout_ms is not None:
        fields += [None] * (13 - len(fields)) + [{Symbol("com.microsoft:timeout"): UInt(timeout_ms)}]
    return fields


def stack_of(partitions: int = 1, **given: Any) -> LinkStack:
    return LinkStack(partitions, QueueSettings(requires_session=True), **given)


def accept(stack: LinkStack, part: Part, session_id: str) -> AcceptSession:
    """Let a partition lock the session that a link asks for."""
    until_ms = stack.clock.monotonic_ms() + LONG_MS
    id, token = session_id.encode(), TOKEN.bytes
    operation = part.answer(
        AcceptSession, lambda each: SessionAccepted(part.number, "", id, token, until_ms, each.cookie)
    )
    assert isinstance(operation, AcceptSession)
    return operation


async def holding(stack: LinkStack, session_id: str = "a") -> Client:
    """A client whose link holds a session."""
    client = await stack.connect()
    client.say(raw.frame(raw.ATTACH, attach_fields(session_id)))
    await until(lambda: any(part.has(AcceptSession) for part in stack.parts))
    accept(stack, stack.part_of(AcceptSession), session_id)
    (attach,) = await client.hear()
    assert attach.code == raw.ATTACH
    return client


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("cart", "cart"),
        (Described(GO, "cart"), Described(GO, "cart")),
        (Described(NON_EXCLUSIVE, ["cart", None]), Described(NON_EXCLUSIVE, ["cart", TOKEN])),
        (
            Described(Symbol("com.microsoft:non-exclusive-session-filter:list"), ["cart", TOKEN]),
            Described(NON_EXCLUSIVE, ["cart", TOKEN]),
        ),
    ],
    ids=["Python, JavaScript, .NET, Java", "Go", "the first of several", "one more"],
)
async def test_a_named_session_is_granted_with_its_id_and_the_end_of_its_lock(
    asked: Any, answered: Any
) -> None:
    stack = stack_of()
    client = await stack.connect()
    client.say(raw.frame(raw.ATTACH, attach_fields(asked)))
    assert await client.hear() == []
    operation = accept(stack, stack.parts[0], "cart")
    shared = isinstance(answered, Described) and answered.descriptor == NON_EXCLUSIVE
    joins = shared and asked.value[1] is not None
    assert (operation.session_id, operation.is_shared) == (b"cart", shared)
    assert operation.token == (TOKEN.bytes if joins else None)
    (attach,) = await client.hear()
    assert attach.field(5).value[0] == "queue" and attach.field(5).value[7] == {FILTER: answered}
    ticks = 621_355_968_000_000_000 + (stack.clock.now_ms() + LONG_MS) * 10_000
    assert attach.field(13) == {"com.microsoft:locked-until-utc": ticks}
    assert isinstance(attach.field(13)["com.microsoft:locked-until-utc"], Long | int)


async def test_what_the_window_holds_back_goes_back_to_its_session_when_the_client_goes() -> None:
    stack = stack_of()
    client = await holding(stack)
    fields = raw.flow_fields(0, 0, 10)
    fields[1] = UInt(0)
    client.say(raw.frame(raw.FLOW, fields))
    given = give(stack, 0, 3)
    assert tags_of(await client.hear()) == []
    client.detach(0)
    assert sorted(stack.parts[0].take(Detach)[0].unseen) == given.tokens


async def test_credit_that_came_before_the_answer_counts_and_only_the_sessions_partition_is_asked() -> None:
    stack = stack_of(4)
    client = await stack.connect()
    client.say(raw.frame(raw.ATTACH, attach_fields("cart")))
    client.flow(0, 0, 3)
    await client.hear()
    part = stack.part_of(AcceptSession)
    accept(stack, part, "cart")
    await client.hear()
    assert stack.part_of(Demand) is part
    sent = give(stack, part.number, 3)
    assert tags_of(await client.hear()) == sent.tokens
    client.detach(0)
    await client.hear()
    assert stack.part_of(Detach) is part


async def test_messages_that_the_client_does_not_want_any_more_go_back_and_are_not_kept_ready() -> None:
    stack = stack_of()
    client = await holding(stack)
    client.flow(0, 0, 2)
    await client.hear()
    client.flow(0, 0, 1)
    await client.hear()
    sent = give(stack, 0, 2)
    assert tags_of(await client.hear()) == sent.tokens[:1]
    released, _ = stack.parts[0].take(Release)
    assert list(released.tokens) == sent.tokens[1:]


async def test_a_session_that_is_held_is_refused() -> None:
    stack = stack_of()
    client = await stack.connect()
    client.say(raw.frame(raw.ATTACH, attach_fields("cart")))
    await client.hear()
    stack.parts[0].answer(AcceptSession, lambda each: Failed(Reason.SESSION_LOCKED, "held", each.cookie))
    attach, detach = await client.hear()
    assert attach.field(5) is None and attach.field(6) is None
    assert detach.field(2).value[:2] == ["com.microsoft:session-cannot-be-locked", "held"]
    assert stack.metrics.entities["queue"].user_errors == 1
    assert stack.parts[0].has(Detach)


@pytest.mark.parametrize("value", [7, b"cart", Described(NON_EXCLUSIVE, "cart"), "x" * 129], ids=repr)
async def test_a_filter_that_names_no_session_is_refused(value: Any) -> None:
    client = await stack_of().connect()
    _, detach = await client.attach(attach_fields(value))
    assert detach.field(2).value[0] == "com.microsoft:argument-error"


async def test_the_next_free_session_is_the_one_of_a_partition_that_has_some() -> None:
    stack = stack_of(3)
    client = await stack.connect()
    client.say(raw.frame(raw.ATTACH, attach_fields(None)))
    assert await client.hear() == []
    assert all(part.has(WatchSessions) for part in stack.parts)
    stack.parts[1].answer(WatchSessions, lambda each: Arrived(1, each.subqueue))
    accept(stack, stack.part_of(AcceptSession), "found")
    (attach,) = await client.hear()
    assert attach.field(5).value[7] == {FILTER: "found"}


async def test_the_wait_for_a_free_session_ends_before_the_client_stops_waiting() -> None:
    stack = stack_of()
    client = await stack.connect()
    client.say(raw.frame(raw.ATTACH, attach_fields(None, timeout_ms=50)))
    frames: list[raw.Frame] = []
    async with asyncio.timeout(WAIT_S):
        while len(frames) < 2:
            await asyncio.sleep(0.001)
            frames += await client.hear()
    assert [frame.code for frame in frames] == [raw.ATTACH, raw.DETACH]
    assert frames[1].field(2).value[0] == "com.microsoft:timeout"


async def test_a_client_that_goes_away_while_it_waits_gives_the_session_back() -> None:
    stack = stack_of()
    client = await stack.connect()
    client.say(raw.frame(raw.ATTACH, attach_fields(None)))
    await client.hear()
    stack.parts[0].answer(WatchSessions, lambda each: Arrived(0, each.subqueue))
    client.detach(0)
    await client.hear()
    accept(stack, stack.parts[0], "a")
    await until(lambda: stack.parts[0].has(Detach))
    assert await client.hear() == []


@pytest.mark.parametrize("answer", [SessionLost(0, ""), Unavailable(0)], ids=["expired", "partition down"])
async def test_a_link_whose_session_is_lost_is_closed(answer: Any) -> None:
    stack = stack_of()
    client = await holding(stack)
    client.flow(0, 0, 1)
    await client.hear()
    stack.parts[0].take(Demand)[1](answer)
    (detach,) = await client.heard(raw.DETACH)
    assert detach.field(1) is True
    assert detach.field(2).value[0] == "com.microsoft:session-lock-lost"


async def test_a_session_lost_before_the_client_asks_for_anything_closes_the_link_too() -> None:
    stack = stack_of()
    client = await stack.connect()
    client.say(raw.frame(raw.ATTACH, attach_fields("a")))
    await client.hear()
    _, sink = stack.parts[0].take(AcceptSession)
    sink(SessionAccepted(0, "", b"a", TOKEN.bytes, stack.clock.monotonic_ms() + LONG_MS, None))
    await client.hear()
    sink(SessionLost(0, ""))
    (detach,) = await client.heard(raw.DETACH)
    assert detach.field(2).value[0] == "com.microsoft:session-lock-lost"


async def test_a_link_that_waits_is_refused_when_receiving_is_disabled() -> None:
    stack = stack_of()
    client = await stack.connect()
    client.say(raw.frame(raw.ATTACH, attach_fields(None)))
    await client.hear()
    description = stack.queue.description
    stack.queue.description = replace(
        description, settings=replace(description.settings, status=EntityStatus.RECEIVE_DISABLED)
    )
    for watcher in list(stack.queue.watchers):
        watcher.queue_changed()
    attach, detach = await client.hear()
    assert attach.field(5) is None
    assert detach.field(2).value[0] == "com.microsoft:entity-disabled" and not stack.queue.watchers


@pytest.mark.parametrize("value", [None, "cart"])
async def test_a_queue_without_sessions_has_none_to_receive_from(value: str | None) -> None:
    client = await LinkStack(1).connect()
    _, detach = await client.attach(attach_fields(value))
    assert detach.field(2).value[0] == "amqp:not-allowed"
