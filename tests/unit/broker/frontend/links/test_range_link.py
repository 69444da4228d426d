"""A link on which a client reads a range: real engine and connection, with a partition that the tests answer
for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntityStatus, QueueSettings
from broker.frontend.links.range_link import BYTES_MAX, MESSAGES, Range
from broker.identifiers import PARTITION_SHIFT
from broker.messaging.page_places import PAGES_AT_ONCE
from broker.operations.general import Failed
from broker.operations.interface import Answer
from broker.operations.streams import RangeRead, ReadRange
from protocol.codec import Described, Long, Symbol, UInt, ULong
from protocol.large_output import PAYLOAD_BYTES_MIN, LargeOutput
from tests.support import raw_amqp as raw
from tests.support.link_stack import Client, LinkStack, turn, until
from tests.support.locked import stored
from tests.support.range_envelopes import Envelope, envelope_of
from tests.support.raw_amqp import Frame

FIRST = 1 << PARTITION_SHIFT | 1


def range_attach(value: Any, handle: int = 0, address: str = "queue", *also: str, **given: Any) -> list[Any]:
    fields = raw.receiver_attach(handle, address, **given)
    filters = {Symbol("partibus:range"): value} | {Symbol(key): None for key in also}
    source = [address, None, None, None, None, None, Symbol("copy"), filters]
    fields[5] = Described(ULong(raw.SOURCE), source)
    return fields


def asked(begin: int = FIRST, **fields: Any) -> Described:
    value = {Symbol("from"): Long(begin)} | {Symbol(key): each for key, each in fields.items()}
    return Described(Symbol("partibus:range:map"), value)


def answered(read: ReadRange, head: int) -> Answer:
    """The answer of a partition in which all numbers below the head belong to messages."""
    end = head if read.end is None else read.end
    if end > head:
        return Failed(Reason.ARGUMENT, f"{end} is beyond {head}.", read.cookie)
    numbers = list(range(read.start, min(end, read.start + read.count)))
    count = len(numbers)
    bodies = [stored(b"%d" % number) for number in numbers]
    found = RangeRead(numbers, [0] * count, [0] * count, [None] * count, bodies, [None] * count, read.cookie)
    found.next, found.end, found.start, found.head = read.start + count, end, FIRST, head
    return found


async def serve(client: Client, head: int) -> list[ReadRange]:
    """Answer all reads; gives them."""
    reads: list[ReadRange] = []
    await turn()
    while client.stack.parts[1].has(ReadRange):
        reads.append(client.stack.parts[1].answer(ReadRange, lambda read: answered(read, head)))  # type: ignore[arg-type]
        await turn()
    return reads


def envelopes(frames: Sequence[Frame]) -> list[Envelope]:
    return [envelope_of(frame.payload) for frame in frames if frame.code == raw.TRANSFER]


async def reading(value: Any, *, credit: int = 0, **given: Any) -> Client:
    client = await LinkStack(2, **given).connect()
    (attach,) = await client.attach(range_attach(value))
    assert attach.field(5).value[7] == {Symbol("partibus:range"): value}, "the filter is in the answer"
    if credit:
        client.flow(0, 0, credit)
    return client


async def test_each_credit_is_an_envelope_and_the_last_one_says_so() -> None:
    client = await reading(asked(messages=UInt(2)), credit=9)
    reads = await serve(client, FIRST + 5)
    found = envelopes(await client.hear())
    assert [each.fields["sequence-numbers"] for each in found] == [
        [FIRST, FIRST + 1],
        [FIRST + 2, FIRST + 3],
        [FIRST + 4],
    ]
    assert [each.fields["last"] for each in found] == [False, False, True]
    assert [(each.fields["from"], each.fields["next"]) for each in found] == [
        (FIRST, FIRST + 2),
        (FIRST + 2, FIRST + 4),
        (FIRST + 4, FIRST + 5),
    ]
    assert [each.end for each in reads] == [None, FIRST + 5, FIRST + 5], "the head is that of the first read"
    client.flow(0, 3, 9)
    assert await serve(client, FIRST + 9) == [] and envelopes(await client.hear()) == []


async def test_what_is_undecided_is_read_if_the_client_wants_that() -> None:
    for fields in ({}, {"undecided": True}):
        client = await reading(asked(**fields), credit=1)
        assert [read.undecided for read in await serve(client, FIRST + 1)] == [bool(fields)]


async def test_no_more_is_read_than_the_credit_and_the_next_credit_goes_on_from_there() -> None:
    client = await reading(asked(messages=UInt(1), to=Long(FIRST + 3)), credit=1)
    assert len(await serve(client, FIRST + 9)) == 1
    assert await serve(client, FIRST + 9) == []
    await client.hear()
    client.flow(0, 1, 5)
    assert [read.start for read in await serve(client, FIRST + 9)] == [FIRST + 1, FIRST + 2]


async def test_a_range_without_messages_ends_with_an_empty_envelope() -> None:
    client = await reading(asked(), credit=1)
    await serve(client, FIRST)
    (found,) = envelopes(await client.hear())
    assert found.messages == [] and found.fields["last"] is True and found.fields["to"] == FIRST


async def test_an_envelope_has_bounds() -> None:
    client = await reading(asked(), credit=1)
    (read,) = await serve(client, FIRST + 9)
    assert (read.count, read.bytes_max) == (MESSAGES, BYTES_MAX)
    client = await reading(asked(messages=UInt(7), bytes=UInt(500)), credit=1)
    (read,) = await serve(client, FIRST + 9)
    assert (read.count, read.bytes_max) == (7, 500)


async def test_the_engine_gets_a_reference_to_a_large_envelope(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would copy the envelope into four buffers, which a connection keeps."""
    client = await reading(asked(), credit=1)
    kept: list[int] = []
    rests = LargeOutput.rests

    def noted(self: LargeOutput, *given: Any) -> tuple[list[bytes], list[int]]:
        passed = rests(self, *given)
        kept.append(self.bytes)
        return passed

    monkeypatch.setattr(LargeOutput, "rests", noted)
    body = bytes(PAYLOAD_BYTES_MIN)

    def large(read: ReadRange) -> RangeRead:
        found = answered(read, FIRST + 1)
        assert isinstance(found, RangeRead)
        return replace(found, messages=[stored(body)])

    await turn()
    client.stack.parts[1].answer(ReadRange, large)
    await turn()
    (envelope,) = envelopes(await client.hear())
    assert [size > PAYLOAD_BYTES_MIN for size in kept] == [True] and envelope.fields["last"]


async def test_a_drain_is_answered_at_the_end_of_the_range() -> None:
    client = await reading(asked())
    client.flow(0, 0, 10, drain=True)
    await serve(client, FIRST + 3)
    frames = await client.hear()
    assert len(envelopes(frames)) == 1
    (flow,) = [frame for frame in frames if frame.code == raw.FLOW]
    assert (flow.field(5), flow.field(6)) == (10, 0)


@pytest.mark.parametrize(
    "value",
    [
        5,
        Described(Symbol("another:map"), {Symbol("from"): Long(FIRST)}),
        {},
        {Symbol("from"): "the start"},
        {Symbol("from"): Long(-1)},
        {Symbol("from"): Long(2 << PARTITION_SHIFT)},
        {Symbol("from"): Long(FIRST), Symbol("to"): Long(FIRST - 1)},
        {Symbol("from"): Long(FIRST), Symbol("to"): Long(5)},
        {Symbol("from"): Long(FIRST), Symbol("messages"): UInt(4_097)},
        {Symbol("from"): Long(FIRST), Symbol("messages"): UInt(0)},
        {Symbol("from"): Long(FIRST), Symbol("bytes"): UInt(BYTES_MAX + 1)},
        {Symbol("from"): Long(FIRST), Symbol("undecided"): UInt(1)},
        {Symbol("from"): Long(FIRST), Symbol("until"): Long(FIRST)},
    ],
)
async def test_a_range_that_cannot_be_read_is_refused(value: Any) -> None:
    client = await LinkStack(2).connect()
    attach, detach = await client.attach(range_attach(value))
    assert attach.field(5) is None and detach.field(2).value[0] == "com.microsoft:argument-error"


def test_partitions_are_told_plain_numbers() -> None:
    """They may be in another process, and AMQP's types of numbers do not pass to it."""
    found = Range.of(asked(to=Long(FIRST + 1), messages=UInt(1), bytes=UInt(1)), 2)
    values = (found.begin, found.end, found.messages, found.bytes)
    assert [type(each) for each in values] == [int] * 4


def test_the_map_need_not_be_described() -> None:
    assert Range.of({Symbol("from"): FIRST}, 2) == Range.of(asked(), 2)
    with pytest.raises(Refused):
        Range.of(asked(), 1)


async def test_a_range_without_distribution_mode_copy_or_with_a_session_is_refused() -> None:
    client = await LinkStack(2).connect()
    fields = range_attach(asked())
    fields[5].value[6] = None
    _, detach = await client.attach(fields)
    assert detach.field(2).value[0] == "amqp:not-implemented"
    _, detach = await client.attach(range_attach(asked(), 1, "queue", "com.microsoft:session-filter"))
    assert detach.field(2).value[0] == "amqp:not-implemented"


async def test_messages_of_sessions_are_read_like_others() -> None:
    client = await reading(asked(), credit=1, settings=QueueSettings(requires_session=True))
    assert len(await serve(client, FIRST + 2)) == 1


@pytest.mark.parametrize(
    ("failure", "condition"),
    [
        (Reason.PARTITION_UNAVAILABLE, "com.microsoft:server-busy"),
        (Reason.ARGUMENT, "com.microsoft:argument-error"),
    ],
)
async def test_the_link_is_closed_when_the_partition_refuses(failure: Reason, condition: str) -> None:
    client = await reading(asked(), credit=1)
    await turn()
    client.stack.parts[1].answer(ReadRange, lambda read: Failed(failure, "It is so.", read.cookie))
    (detach,) = await client.heard(raw.DETACH)
    assert detach.field(1) is True and detach.field(2).value[0] == condition


async def test_a_range_is_refused_and_ended_where_receiving_is() -> None:
    client = await reading(asked(), credit=1)
    description = client.stack.queue.description
    disabled = replace(description.settings, status=EntityStatus.RECEIVE_DISABLED)
    client.stack.queue.description = replace(description, settings=disabled)
    for watcher in list(client.stack.queue.watchers):
        watcher.queue_changed()
    (detach,) = await client.heard(raw.DETACH)
    assert detach.field(2).value[0] == "com.microsoft:entity-disabled"
    _, detach = await client.attach(range_attach(asked(), 1))
    assert detach.field(2).value[0] == "com.microsoft:entity-disabled"


async def test_an_envelope_for_which_the_credit_was_taken_back_is_read_again() -> None:
    client = await reading(asked(), credit=1)
    await turn()
    client.flow(0, 0, 0)
    assert len(await serve(client, FIRST + 2)) == 1
    assert envelopes(await client.hear()) == []
    client.flow(0, 0, 1)
    (read,) = await serve(client, FIRST + 2)
    assert read.start == FIRST and len(envelopes(await client.hear())) == 1


async def test_the_broker_reads_few_envelopes_at_a_time() -> None:
    stack = LinkStack(2)
    for _ in range(PAGES_AT_ONCE + 2):
        client = await stack.connect()
        await client.attach(range_attach(asked()))
        client.flow(0, 0, 1)
    await turn()
    assert len(stack.parts[1].posted) == PAGES_AT_ONCE


async def test_readers_of_a_partition_that_hangs_keep_nobody_from_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.messaging.page_places.LATE_S", 0.005)
    stack = LinkStack(2)
    for _ in range(PAGES_AT_ONCE + 1):
        hanging = await stack.connect()
        await hanging.attach(range_attach(asked()))
        hanging.flow(0, 0, 1)
    await until(lambda: stack.queue.router.late == {1} and not stack.services.pages.prompt.locked())
    monkeypatch.setattr("broker.messaging.page_places.LATE_S", 60)  # however slow the machine is
    client = await stack.connect()
    await client.attach(range_attach(asked(1)))
    client.flow(0, 0, 1)
    await until(lambda: stack.parts[0].has(ReadRange))
    stack.parts[0].answer(ReadRange, lambda read: answered(read, 3))
    assert [each.fields["next"] for each in envelopes(await client.hear())] == [3]
    assert envelopes(await hanging.hear()) == []
    await serve(hanging, FIRST + 2)
    assert [each.fields["next"] for each in envelopes(await hanging.hear())] == [FIRST + 2]


async def test_a_link_that_ends_while_its_envelope_is_read_leaves_nothing_behind() -> None:
    client = await reading(asked(), credit=1)
    await turn()
    client.detach(0)
    await client.hear()
    await serve(client, FIRST + 2)
    assert envelopes(await client.hear()) == []
    await asyncio.sleep(0)
    assert client.stack.memory.unsettled == 0
