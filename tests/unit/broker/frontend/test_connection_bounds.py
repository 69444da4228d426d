"""Bounds of one connection: before a token, on unfinished messages, on requests and on the work of one
turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.frontend import token_expiry
from broker.frontend.nodes.cbs import AUDIENCE_CHARACTERS_MAX
from broker.frontend.nodes.request_node import VALUE_BYTES
from broker.operations.receiving import Demand
from broker.operations.sending import Send, Sent
from broker.throttle.memory_mark import TRAFFIC_PARTS
from protocol.codec import UInt
from protocol.values import VALUES_MAX
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import APPLICATION, VALUE, section, sections
from tests.support.link_stack import Client, LinkStack, turn, until
from tests.support.sas import sas_token
from tests.unit.broker.frontend.test_connection import put_token, request, responders, responses

RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
KIB, MIB = 1024, 1024 * 1024


def lists(count: int) -> bytes:
    """An amqp-value section: a list of this many empty lists."""
    return b"\x00\x53\x77\xd0" + (4 + count).to_bytes(4, "big") + count.to_bytes(4, "big") + b"\x45" * count


async def closed_with(client: Client) -> str | None:
    """The condition of the broker's close; None if it has not closed."""
    found = await client.heard(raw.CLOSE)
    return raw.condition_of(found[0]) if found else None


# --- before a token -----------------------------------------------------------------------------------------


async def test_without_a_token_a_client_may_send_64_kib_and_no_more() -> None:
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    await client.sender(0, "$cbs")
    for _ in range(3):
        client.transfer(0, 0, bytes(20_000), more=True)
    assert client.connection.engine.partial_bytes == 60_000
    assert stack.services.inflight.partial_bytes < 64 * KIB
    client.transfer(0, 0, bytes(20_000), more=True)
    assert await closed_with(client) == RESOURCE_LIMIT and client.stream.closed
    client.connection.connection_lost()
    assert stack.services.inflight.bytes == stack.services.inflight.partial_bytes == 0


async def test_a_token_lifts_the_bound_and_a_refused_one_does_not() -> None:
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    await responders(client)
    client.transfer(
        0,
        0,
        put_token(sas_token("sb://test/queue", key="wrong", expires_at_s=stack.clock.now_ms() // 1000 + 60)),
    )
    await client.hear()
    client.transfer(
        0, 1, put_token(sas_token("sb://test/queue", expires_at_s=stack.clock.now_ms() // 1000 + 60))
    )
    await client.hear()
    await client.sender(5)
    for number in range(2, 20):
        client.transfer(5, number, section(VALUE, bytes(16_000)))
    assert await closed_with(client) is None
    assert stack.services.inflight.bytes > 18 * 16_000


async def test_the_bound_holds_again_once_the_last_token_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_expiry, "STOPS_SENDING_WITHIN_S", 0.01)
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    await responders(client)
    client.transfer(
        0, 0, put_token(sas_token("sb://test/queue", expires_at_s=stack.clock.now_ms() // 1000 + 2))
    )
    await responses(client)
    for _ in range(2):
        client.transfer(0, 1, bytes(60_000), more=True)
    stack.clock.advance(5_000)
    client.connection.tokens.expire()
    await until(lambda: client.connection.engine._intake._allowance)
    client.transfer(0, 1, bytes(60_000), more=True)
    assert await closed_with(client) is None
    client.transfer(0, 1, bytes(60_000), more=True)
    assert await closed_with(client) == RESOURCE_LIMIT


async def test_a_token_put_in_time_leaves_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_expiry, "STOPS_SENDING_WITHIN_S", 0.01)
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    await responders(client)
    for number in range(2):
        client.transfer(
            0, number, put_token(sas_token("sb://test/queue", expires_at_s=stack.clock.now_ms() // 1000 + 2))
        )
        await responses(client)
        stack.clock.advance(5_000 * (1 - number))
        client.connection.tokens.expire()
    elapsed = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, elapsed.set)
    await elapsed.wait()
    assert client.connection.claims and client.connection.engine._intake._allowance is None


async def test_a_login_counts_as_a_token() -> None:
    client = await LinkStack().connect()
    await client.sender()
    for number in range(20):
        client.transfer(0, number, section(VALUE, bytes(16_000)))
    assert await closed_with(client) is None


async def test_a_request_to_cbs_is_small_with_a_token_too() -> None:
    client = await LinkStack().connect()
    await responders(client)
    client.transfer(0, 0, put_token("x" * 70_000))
    (disposition,) = await client.heard(raw.DISPOSITION)
    assert disposition.field(4).value[0].value[0] == "amqp:link:message-size-exceeded"
    client.transfer(0, 1, section(APPLICATION, {"operation": "put-token"}) + lists(1_000))
    (disposition,) = await client.heard(raw.DISPOSITION)
    assert disposition.field(4).value[0].value[0] == "amqp:decode-error"


async def test_an_audience_is_bounded_and_the_refusal_does_not_repeat_it() -> None:
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    await responders(client)
    token = sas_token("sb://test/queue", expires_at_s=stack.clock.now_ms() // 1000 + 60)
    for number, length in enumerate((AUDIENCE_CHARACTERS_MAX, AUDIENCE_CHARACTERS_MAX + 1)):
        client.transfer(0, number, put_token(token, name="sb://test/queue/".ljust(length, "x")))
    statuses = [sections(frame.payload)[APPLICATION] for frame in await client.heard(raw.TRANSFER)]
    assert [found["status-code"] for found in statuses] == [202, 400]
    assert len(statuses[1]["status-description"]) < 200
    assert sum(map(len, client.connection.claims)) == AUDIENCE_CHARACTERS_MAX


# --- parts of messages --------------------------------------------------------------------------------------


async def sending_parts(stack: LinkStack) -> Client:
    client = await stack.connect()
    await client.sender()
    return client


async def test_parts_count_among_the_bytes_in_flight_until_they_are_whole_or_gone() -> None:
    stack = LinkStack(1)
    client = await sending_parts(stack)
    client.transfer(0, 0, section(VALUE, bytes(40_000))[:30_000], more=True)
    assert stack.services.inflight.bytes == stack.services.inflight.partial_bytes == 30_000
    client.transfer(0, 0, section(VALUE, bytes(40_000))[30_000:])
    assert stack.services.inflight.partial_bytes == 0 and 40_000 < stack.services.inflight.bytes < 41_000
    client.transfer(0, 1, bytes(10_000), more=True)
    assert stack.services.inflight.partial_bytes == 10_000
    client.detach(0)
    assert stack.services.inflight.partial_bytes == 0


async def test_of_all_parts_those_go_first_that_have_waited_longest() -> None:
    stack = LinkStack(1, total_inflight_bytes_max=MIB)
    stale, sender, other = [await sending_parts(stack) for _ in range(3)]
    for client in (stale, sender):
        for _ in range(2):
            client.transfer(0, 0, bytes(100_000), more=True)
    other.transfer(0, 0, bytes(90_000), more=True)
    assert not stale.stream.ended and stack.services.inflight.partial_bytes == 490_000
    sender.transfer(0, 0, bytes(50_000), more=True)
    assert await closed_with(stale) == RESOURCE_LIMIT and stale.stream.ended
    assert await closed_with(sender) is None and await closed_with(other) is None
    assert stack.services.inflight.partial_bytes == 340_000
    stale.connection.connection_lost()
    assert stack.services.inflight.partial_bytes == 340_000


async def test_what_is_on_its_way_is_bounded_by_a_part_of_the_memory_mark_too() -> None:
    services = LinkStack(1, total_inflight_bytes_max=1 << 40, total_output_bytes_max=1 << 40).services
    part = services.memory.mark // TRAFFIC_PARTS
    assert services.inflight.bytes_max == services.output.bytes_max == part


async def test_a_single_message_may_be_as_large_as_its_queue_permits() -> None:
    stack = LinkStack(1, total_inflight_bytes_max=MIB, connection_inflight_bytes_max=64 * KIB)
    client = await sending_parts(stack)
    whole = section(VALUE, bytes(900_000))
    for begin in range(0, len(whole), 100_000):
        assert client.stream.reading
        client.transfer(0, 0, whole[begin : begin + 100_000], more=begin + 100_000 < len(whole))
    assert stack.services.inflight.partial_bytes == 0 and not client.stream.reading, (
        "whole, and over the bound until it is stored"
    )


async def test_parts_alone_never_keep_a_connection_from_being_read() -> None:
    stack = LinkStack(1, connection_inflight_bytes_max=64 * KIB)
    client = await sending_parts(stack)
    await client.sender(1)
    client.transfer(1, 0, bytes(60_000), more=True)
    client.transfer(0, 1, section(VALUE, bytes(10_000)))
    assert not client.stream.reading
    stack.parts[0].answer(Send, lambda send: Sent(1, send.cookie))
    assert stack.services.inflight.partial_bytes == stack.services.inflight.bytes == 60_000
    assert client.stream.reading


# --- requests -----------------------------------------------------------------------------------------------


async def test_requests_count_among_the_bytes_in_flight_until_they_are_answered() -> None:
    stack = LinkStack(1, connection_inflight_bytes_max=64 * KIB)
    client = await stack.connect()
    await responders(client, "queue/$management")
    peek: dict[str, Any] = {"from-sequence-number": 0, "message-count": 1, "padding": "x" * 40_000}
    client.transfer(0, 0, request("com.microsoft:peek-message", peek))
    assert 40_000 < stack.services.inflight.bytes < 42_000 and client.stream.reading
    client.transfer(0, 1, request("com.microsoft:peek-message", peek))
    assert not client.stream.reading
    client.connection.connection_lost()
    await until(lambda: not stack.tasks)
    await turn()
    assert stack.services.inflight.bytes == 0


async def test_a_request_of_too_many_values_is_refused_before_it_is_decoded() -> None:
    client = await LinkStack().connect()
    await responders(client, "queue/$management")
    client.transfer(0, 0, lists(VALUES_MAX))
    (disposition,) = await client.heard(raw.DISPOSITION)
    error = disposition.field(4).value[0].value
    assert error[0] == "amqp:decode-error" and str(VALUES_MAX) in error[1]


async def test_values_count_by_what_they_take_once_they_are_decoded() -> None:
    stack = LinkStack(1)
    client = await stack.connect()
    await responders(client, "queue/$management")
    client.transfer(0, 0, request("com.microsoft:peek-message", {"padding": [None] * 10_000}))
    assert stack.services.inflight.bytes > 10_000 * VALUE_BYTES


# --- work of one turn ---------------------------------------------------------------------------------------


async def test_what_takes_longer_than_a_slice_is_continued_in_order() -> None:
    stack = LinkStack()
    client = await stack.connect()
    frames = [raw.frame(raw.ATTACH, raw.sender_attach(handle, "no-such-queue")) for handle in range(100)]
    frames += [raw.frame(raw.DETACH, [UInt(handle), True]) for handle in range(100)]
    stack.services.turns._slice_ends = 0.0  # the slice is already over
    assert client.connection.serve(b"".join(frames[:150]))
    heard = await client.hear()
    assert 0 < len([frame for frame in heard if frame.code == raw.ATTACH]) < 20
    assert client.connection.serve(b"".join(frames[150:]))
    turns = 0
    while client.connection.serve(b""):
        turns += 1
        assert turns < 1_000
        heard += await client.hear()
    heard += await client.hear()
    assert turns > 10
    assert [frame.field(0) for frame in heard if frame.code == raw.ATTACH] == [
        f"sender-{handle}" for handle in range(100)
    ]
    assert len([frame for frame in heard if frame.code == raw.DETACH]) == 100
    assert client.connection.engine.link_count == 0


async def test_credit_that_takes_long_is_granted_to_few_links_after_a_slice_is_over() -> None:
    """Symptom: credit on a queue with 16 partitions that nobody has used starts them all, and eight such
    events were dispatched before anybody looked at the clock: the loop was held for 24 ms."""
    stack = LinkStack()
    client = await stack.connect()
    for handle in range(20):
        await client.receiver(handle, credit=0)
    stack.services.turns._slice_ends = 0.0  # the slice is already over
    flows = [raw.frame(raw.FLOW, raw.flow_fields(handle, 0, 5)) for handle in range(20)]
    has_more, served = client.connection.serve(b"".join(flows)), [len(stack.parts[0].take_all(Demand))]
    while has_more:
        has_more = client.connection.serve(b"")
        served.append(len(stack.parts[0].take_all(Demand)))
    assert max(served) <= 2 and sum(served) == 20


async def test_a_connection_that_is_lost_leaves_nothing_undone() -> None:
    stack = LinkStack()
    client = await stack.connect()
    stack.services.turns._slice_ends = 0.0
    assert client.connection.serve(
        b"".join(raw.frame(raw.ATTACH, raw.sender_attach(handle, "queue")) for handle in range(100))
    )
    client.connection.connection_lost()
    assert client.connection.serve(b"") is False


# --- links --------------------------------------------------------------------------------------------------


async def test_a_client_that_attaches_on_and_on_is_closed_however_its_links_were_refused() -> None:
    client = await LinkStack(links_per_connection_max=10).connect()
    frames = [raw.frame(raw.ATTACH, raw.sender_attach(handle, "no-such-queue")) for handle in range(30)]
    client.say(*frames)
    assert await closed_with(client) == RESOURCE_LIMIT


async def test_what_a_client_sends_beyond_the_end_of_its_connection_is_dropped() -> None:
    client = await LinkStack(links_per_connection_max=10).connect()
    client.say(*(raw.frame(raw.ATTACH, raw.sender_attach(handle, "no-such-queue")) for handle in range(30)))
    assert await closed_with(client) == RESOURCE_LIMIT
    links = client.connection.engine.link_count
    # Symptom: clients that lost their connection left links to be made faster than they were made.
    more = [raw.frame(raw.ATTACH, raw.sender_attach(handle, "more")) for handle in range(30, 60)]
    assert client.connection.serve(b"".join(more)) is False
    assert client.connection.engine.link_count == links


async def test_links_that_were_refused_and_ended_count_no_more() -> None:
    client = await LinkStack(links_per_connection_max=10).connect()
    for handle in range(30):
        client.say(raw.frame(raw.ATTACH, raw.sender_attach(handle, "no-such-queue")))
        assert (await client.heard(raw.DETACH))[0].field(1)
        client.say(raw.frame(raw.DETACH, [UInt(handle), True]))
    assert await closed_with(client) is None
