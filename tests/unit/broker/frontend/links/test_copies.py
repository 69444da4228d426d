"""Outcomes on links that only show messages are answered and change nothing, whatever the link shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.operations.browsing import Peek, Peeked
from broker.operations.streams import RangeRead, ReadRange
from broker.throttle.throttle import HELD_MS_MAX
from protocol.codec import Described, Long, Symbol, UInt, ULong
from protocol.events import Outcome
from tests.support import raw_amqp as raw
from tests.support.link_stack import LinkStack, turn
from tests.support.locked import stored
from tests.support.raw_amqp import Frame


def page(peek: Peek) -> Peeked:
    found = [1] if peek.from_sequence_number <= 1 else []
    messages = [stored()] * len(found)
    return Peeked(
        found, [0] * len(found), [0] * len(found), [None] * len(found), messages, [None] * len(found),
        [0] * len(found), peek.cookie,
    )  # fmt: skip


def part(read: ReadRange) -> RangeRead:
    return RangeRead([1], [0], [0], [None], [stored()], [None], read.cookie, next=2, end=2)


@pytest.mark.parametrize(
    ("filters", "kind", "answer"),
    [({}, Peek, page), ({Symbol("partibus:range"): {Symbol("from"): Long(1)}}, ReadRange, part)],
)
@pytest.mark.parametrize("outcome", [Outcome.ACCEPTED, Outcome.REJECTED, Outcome.MODIFIED])
async def test_an_outcome_is_answered_with_the_same_one(
    filters: dict[Any, Any], kind: type[Any], answer: Any, outcome: Outcome
) -> None:
    client = await LinkStack(1).connect()
    fields = raw.receiver_attach(0, "queue")
    source = ["queue", None, None, None, None, None, Symbol("copy"), filters]
    fields[5] = Described(ULong(raw.SOURCE), source)
    await client.attach(fields)
    client.flow(0, 0, 1)
    await turn()
    client.stack.parts[0].answer(kind, answer)
    assert len(await client.heard(raw.TRANSFER)) == 1 and client.stack.memory.unsettled == 1
    client.stack.parts[0].posted.clear()
    client.dispose(0, 0, raw.outcome(outcome))
    (disposition,) = await client.heard(raw.DISPOSITION)
    assert disposition.field(3) is True and disposition.field(4).descriptor == outcome
    assert client.stack.memory.unsettled == 0 and not client.stack.parts[0].posted


@pytest.mark.parametrize(
    ("filters", "kind", "answer"),
    [({}, Peek, page), ({Symbol("partibus:range"): {Symbol("from"): Long(1)}}, ReadRange, part)],
)
async def test_what_is_shown_is_paid_for_and_waits_for_credits(
    filters: dict[Any, Any], kind: type[Any], answer: Any
) -> None:
    stack = LinkStack(1, throttle_credits=1)
    assert stack.throttle is not None
    stack.throttle.charge(1)
    client = await stack.connect()
    fields = raw.receiver_attach(0, "queue")
    fields[5] = Described(ULong(raw.SOURCE), ["queue", None, None, None, None, None, Symbol("copy"), filters])
    await client.attach(fields)
    client.flow(0, 0, 5)
    await turn()
    assert not stack.parts[0].has(kind)
    stack.clock.advance(1_000)
    stack.throttle.look()
    await turn()
    stack.parts[0].answer(kind, answer)
    assert len(await client.heard(raw.TRANSFER)) == 1 and stack.throttle.left_for_receivers() == 0


@pytest.mark.parametrize("drains_at_once", [True, False])
@pytest.mark.parametrize(
    ("filters", "kind", "answer"),
    [({}, Peek, page), ({Symbol("partibus:range"): {Symbol("from"): Long(1)}}, ReadRange, part)],
)
async def test_a_drain_is_answered_behind_what_waits_for_the_window(
    filters: dict[Any, Any], kind: type[Any], answer: Any, drains_at_once: bool
) -> None:
    """Symptom: it was never answered, however often it was asked for."""
    client = await LinkStack(1).connect(window=0)
    fields = raw.receiver_attach(0, "queue")
    fields[5] = Described(ULong(raw.SOURCE), ["queue", None, None, None, None, None, Symbol("copy"), filters])
    await client.attach(fields)

    def flow(window: int, *, drain: bool) -> None:
        fields = raw.flow_fields(0, 0, 10, drain=drain)
        fields[1] = UInt(window)
        client.say(raw.frame(raw.FLOW, fields))

    flow(0, drain=drains_at_once)
    await turn()
    client.stack.parts[0].answer(kind, answer)
    await turn()
    flow(0, drain=True)
    await turn()
    assert not [frame for frame in await client.hear() if frame.code == raw.TRANSFER or frame.field(8)]
    flow(10, drain=True)
    await turn()
    while client.stack.parts[0].has(kind):
        client.stack.parts[0].answer(kind, answer)
        await turn()
    frames = [frame for frame in await client.hear() if frame.code in (raw.TRANSFER, raw.FLOW)]
    assert [frame.code for frame in frames] == [raw.TRANSFER, raw.FLOW]
    assert (frames[1].field(5), frames[1].field(6)) == (10, 0)


async def test_the_drains_of_links_that_share_a_window_are_answered_behind_what_they_show() -> None:
    """Symptom: each link counted on the whole window. If what the other showed took it, proton forgot the
    answer, and the link had no credit any more."""
    client = await LinkStack(1).connect(window=0)
    filters = {Symbol("partibus:range"): {Symbol("from"): Long(1)}}
    for handle in (0, 1):
        fields = raw.receiver_attach(handle, "queue")
        source = ["queue", None, None, None, None, None, Symbol("copy"), filters]
        fields[5] = Described(ULong(raw.SOURCE), source)
        await client.attach(fields)
    heard: list[Frame] = []

    def flow(handle: int, window: int, *, drain: bool = True) -> None:
        received = [each.field(0) for each in heard if each.code == raw.TRANSFER]
        own = received.count(handle)
        fields = raw.flow_fields(handle, own, 10 - own, received=len(received), drain=drain)
        fields[1] = UInt(window)
        client.say(raw.frame(raw.FLOW, fields))

    for handle in (0, 1):
        flow(handle, 0, drain=False)
        await turn()
        client.stack.parts[0].answer(ReadRange, lambda read: replace(part(read), next=2, end=3))
        await turn()
        client.stack.parts[0].answer(ReadRange, lambda read: replace(part(read), next=3, end=3))
        await turn()
    flow(0, 0)
    for window in (2, 10):
        flow(1, window)
        heard += await client.hear()
    for handle in (0, 1):
        assert len([each for each in heard if each.code == raw.TRANSFER and each.field(0) == handle]) == 2
        answers = [each for each in heard if each.code == raw.FLOW and each.field(4) == handle]
        assert [(each.field(5), each.field(6)) for each in answers] == [(10, 0)]


async def test_a_link_without_credits_for_too_long_is_closed() -> None:
    stack = LinkStack(1, throttle_credits=1)
    assert stack.throttle is not None
    stack.throttle.charge(100)
    client = await stack.connect()
    for handle, mode in enumerate((None, Symbol("copy"))):
        fields = raw.receiver_attach(handle, "queue")
        fields[5] = Described(ULong(raw.SOURCE), ["queue", None, None, None, None, None, mode, {}])
        await client.attach(fields)
        client.flow(handle, 0, 5)
        await turn()
    for _ in range(HELD_MS_MAX // 1_000):
        stack.clock.advance(1_000)
        stack.throttle.look()
        await turn()
    detaches = await client.heard(raw.DETACH)
    assert [raw.condition_of(each) for each in detaches] == ["com.microsoft:server-busy"] * 2
