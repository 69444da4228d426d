"""Requests and responses of `$cbs` and `$management` as messages. test_connection.py covers how they travel
over links."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.base.pace import PACE_S, Pace
from broker.frontend.connection import Connection
from broker.frontend.nodes.management import ManagementNode
from broker.frontend.nodes.request_node import Request, Response, decode_request, encode_response
from protocol.codec import (
    Array,
    DecodeError,
    Described,
    Int,
    Symbol,
    Timestamp,
    TypeCode,
    UInt,
    ULong,
    decode,
    encode,
)
from protocol.events import MessagesReceived, TransactionalState
from tests.support import raw_amqp as raw
from tests.support.link_stack import Client, LinkStack, turn, until
from tests.support.management_bench import bench
from tests.support.raw_amqp import Frame


async def test_requests_that_come_together_begin_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symptom: a client that ignores credit sent 1,000 requests at once, and all of them began in one turn of
    the event loop: 41 ms."""
    work = await bench()
    now_s, begun = 0.0, 0

    async def respond(node: ManagementNode, request: Request) -> Response:
        nonlocal now_s, begun
        now_s, begun = now_s + PACE_S / 4, begun + 1
        return Response({"statusCode": 200})

    monkeypatch.setattr(ManagementNode, "respond", respond)
    work.stack.services.request_pace = Pace(lambda: now_s)
    work.client.say(raw.frame(raw.ATTACH, raw.sender_attach(0, "queue/$management")))
    for number in range(40):
        request = sections((0x74, {"operation": "com.microsoft:peek"}), (0x77, {}))
        work.client.say(raw.frame(raw.TRANSFER, raw.transfer_fields(0, number, settled=True), request))
    steps: list[int] = []
    while begun < 40:
        before = begun
        await asyncio.sleep(0)
        steps.append(begun - before)
        assert len(steps) < 1_000
    assert max(steps) == 4


async def test_a_request_of_a_transaction_joins_it_before_its_end_may_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Symptom: it waited for its turn among the requests of others, and the transaction was committed without
    it, although its transfer had been accepted."""
    work = await bench()
    begun: list[bytes | None] = []

    async def respond(node: ManagementNode, request: Request) -> Response:
        begun.append(request.txn_id)
        return Response({"statusCode": 200})

    monkeypatch.setattr(ManagementNode, "respond", respond)
    monkeypatch.setattr(Pace, "_may_begin", lambda pace: False)
    work.client.say(raw.frame(raw.ATTACH, raw.sender_attach(0, "queue/$management")))
    (link,) = work.client.connection.engine.links()
    request = sections((0x74, {"operation": "com.microsoft:update-disposition"}))
    monkeypatch.setattr(work.client.connection.engine, "settle_in_transaction", lambda *given: None)
    for transaction in (TransactionalState(b"t"), None):
        event = MessagesReceived(link, [], [request], True, False, transaction)
        (link.context.received_in_transaction if transaction else link.context.received)(event)
    await turn()
    assert begun == [b"t"], "the other one waits"


@pytest.mark.parametrize("settled", [True, False])
async def test_a_client_whose_time_is_used_up_goes_on_in_a_later_turn(
    settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: 1,000 requests of a client that ignores credit were decoded in one turn: 40 ms."""
    work = await bench()
    asked: list[Any] = []

    async def respond(node: ManagementNode, request: Request) -> Response:
        asked.append(request.message_id)
        return Response({"statusCode": 200})

    monkeypatch.setattr(ManagementNode, "respond", respond)
    work.client.say(raw.frame(raw.ATTACH, raw.sender_attach(0, "queue/$management")))
    (link,) = work.client.connection.engine.links()
    requests = [
        sections((0x73, [number, None]), (0x74, {"operation": "com.microsoft:x"})) for number in range(50)
    ]
    deliveries: list[Any] = [] if settled else list(range(50))
    accepted: list[Any] = []
    monkeypatch.setattr(work.client.connection.engine, "accept", accepted.extend)
    event = MessagesReceived(link, deliveries, requests, settled, False)
    monkeypatch.setattr(Connection, "is_late", True)
    calls = 1
    while not link.context.received(event):
        calls += 1
        assert calls < 50
    assert calls == 4, "15 at a time"
    await until(lambda: len(asked) == 50)
    assert asked == list(range(50)) and accepted == ([] if settled else list(range(50)))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request gets a small response."""

    async def respond(node: ManagementNode, request: Request) -> Response:
        return Response({"statusCode": 200})

    monkeypatch.setattr(ManagementNode, "respond", respond)


async def asking(client: Client, *replies: str) -> None:
    """Attach a link for requests, handle 0, and one for each address that responses go to, from 1 on."""
    client.say(raw.frame(raw.ATTACH, raw.sender_attach(0, "queue/$management")))
    for handle, reply in enumerate(replies, 1):
        fields = raw.receiver_attach(handle, "queue/$management")
        fields[6] = Described(ULong(raw.TARGET), [reply])
        client.say(raw.frame(raw.ATTACH, fields))
    await client.hear()


async def ask(client: Client, number: int, reply: str = "reply") -> None:
    request = sections((0x73, [str(number), None, None, None, reply]), (0x74, {"operation": "x"}))
    client.say(raw.frame(raw.TRANSFER, raw.transfer_fields(0, number, settled=True), request))
    await turn()


@pytest.mark.usefixtures("answered")
async def test_a_drain_is_answered_behind_a_response_that_waits_for_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Symptom: it was never answered, and later requests had no responses."""

    write, writes = Connection._write, 0

    def counted(connection: Connection) -> None:
        nonlocal writes
        writes += 1
        write(connection)

    monkeypatch.setattr(Connection, "_write", counted)
    client = await LinkStack(1).connect(window=0)
    await asking(client, "reply")

    def flow(received: int, credit: int, window: int, *, drain: bool = False) -> None:
        fields = raw.flow_fields(1, received, credit, received=received, drain=drain)
        fields[1] = UInt(window)
        client.say(raw.frame(raw.FLOW, fields))

    flow(0, 30, 0)
    await ask(client, 0)
    flow(0, 30, 0, drain=True)
    await turn()
    assert not [frame for frame in await client.hear() if frame.code == raw.TRANSFER or frame.field(8)]
    before = writes
    for _ in range(10):
        await turn()
    assert writes == before, "nothing is tried again and again meanwhile"
    flow(0, 30, 10, drain=True)
    await turn()
    heard = [frame for frame in await client.hear() if frame.code in (raw.TRANSFER, raw.FLOW)]
    assert [frame.code for frame in heard] == [raw.TRANSFER, raw.FLOW]
    assert (heard[1].field(5), heard[1].field(6)) == (30, 0)
    flow(30, 5, 10)
    await ask(client, 1)
    assert len(await client.heard(raw.TRANSFER)) == 1


@pytest.mark.usefixtures("answered")
async def test_a_response_that_is_settled_twice_in_one_read_is_settled_once() -> None:
    """Symptom: the client's connection ended."""
    client = await LinkStack(1).connect()
    await asking(client, "reply")
    client.say(raw.frame(raw.FLOW, raw.flow_fields(1, 0, 10)))
    for number in range(2):
        await ask(client, number)
    first, second = [each.field(1) for each in await client.heard(raw.TRANSFER)]
    accepted = raw.outcome(raw.ACCEPTED)
    client.say(
        *[
            raw.frame(raw.DISPOSITION, raw.disposition_fields(raw.RECEIVER, each, each, False, accepted))
            for each in (first, second, first)
        ]
    )
    await turn()
    await ask(client, 2)
    assert len(await client.heard(raw.TRANSFER)) == 1


@pytest.mark.usefixtures("answered")
@pytest.mark.parametrize("window", [1, 2, 3, 10])
async def test_the_drains_of_links_that_share_a_window_are_answered_behind_their_responses(
    window: int,
) -> None:
    """Symptom: each link counted on the whole window. If the other's responses took it, proton forgot the
    answer, and the link had no credit any more."""

    client = await LinkStack(1).connect(window=0)
    await asking(client, "reply1", "reply2")
    heard: list[Frame] = []

    def flow(handle: int, window: int, *, drain: bool = True) -> None:
        received = [frame.field(0) for frame in heard if frame.code == raw.TRANSFER]
        own = received.count(handle)
        fields = raw.flow_fields(handle, own, 30 - own, received=len(received), drain=drain)
        fields[1] = UInt(window)
        client.say(raw.frame(raw.FLOW, fields))

    for number, handle in enumerate((1, 1, 2, 2)):
        flow(handle, 0, drain=False)
        await ask(client, number, f"reply{handle}")
    flow(1, 0)
    for opened in (window, 10):
        flow(2, opened)
        heard += [each for each in await client.hear() if each.code == raw.TRANSFER or each.field(4)]
    for handle in (1, 2):
        own = [each for each in heard if each.field(0 if each.code == raw.TRANSFER else 4) == handle]
        assert [each.code for each in own] == [raw.TRANSFER, raw.TRANSFER, raw.FLOW]
        assert (own[2].field(5), own[2].field(6)) == (30, 0)


def sections(*parts: tuple[int, Any]) -> bytes:
    return b"".join(encode(Described(ULong(code), value)) for code, value in parts)


def sections_of(message: bytes) -> dict[int, Any]:
    found, offset = {}, 0
    while offset < len(message):
        assert message[offset : offset + 2] == b"\x00\x53", (
            "descriptors are smallulongs: the Python client reads them at a fixed place"
        )
        section, offset = decode(message, offset)
        found[int(section.descriptor)] = section.value
    return found


def test_a_request_is_its_id_its_reply_to_its_properties_and_its_body() -> None:
    request = decode_request(
        sections(
            (0x73, ["id-1", None, "$cbs", None, "reply-1"]),
            (0x74, {"operation": "put-token", "name": "sb://host/queue"}),
            (0x77, "token"),
        )
    )
    assert request == Request(
        "id-1", "reply-1", {"operation": "put-token", "name": "sb://host/queue"}, "token"
    )


@pytest.mark.parametrize(
    "message_id",
    ["text", uuid.UUID(int=7), ULong(7), b"binary", None],
    ids=lambda value: type(value).__name__,
)
def test_rule_2_the_correlation_id_repeats_the_message_id_with_its_type(message_id: Any) -> None:
    request = decode_request(sections((0x73, [message_id]), (0x77, None)))
    sent = encode(message_id)
    response = encode_response(Response({"status-code": Int(202)}), request.message_id)
    correlation_id = sections_of(response)[0x73][5]
    assert type(correlation_id) is type(request.message_id) and encode(correlation_id) == sent


def test_other_sections_are_passed_over_and_missing_ones_are_empty() -> None:
    request = decode_request(
        sections(
            (0x70, [True]),
            (0x71, {Symbol("x"): 1}),
            (0x72, {Symbol("y"): 2}),
            (0x78, {Symbol("z"): 3}),
            (0x77, {"from-sequence-number": 1}),
        )
    )
    assert request == Request(None, None, {}, {"from-sequence-number": 1})
    assert decode_request(b"") == Request(None, None, {}, None)


@pytest.mark.parametrize("fields", [[], [None], ["id", None, None, None, 7]])
def test_a_reply_to_that_is_missing_or_no_text_is_none(fields: list[Any]) -> None:
    assert decode_request(sections((0x73, fields))).reply_to is None


@pytest.mark.parametrize(
    "payload",
    [
        b"\x00",
        b"\x00\x53",
        encode("no section"),
        sections((0x77, "x"))[:-1],
        b"\x00\x53\x74\xd1\x00\x00\xff\xff\x00\x00\x00\x02",
    ],
)
def test_a_malformed_request_is_a_decode_error(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_request(payload)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_decoder_in_another_way(payload: bytes) -> None:
    with contextlib.suppress(DecodeError):
        assert isinstance(decode_request(payload), Request)


def test_a_response_keeps_the_types_that_the_clients_cast_to() -> None:
    response = Response(
        {"statusCode": Int(200), "statusDescription": "OK", "errorCondition": Symbol("amqp:not-found")},
        {"expirations": Array(TypeCode.TIMESTAMP, [Timestamp(1_000)])},
    )
    message = encode_response(response, "id")
    found = sections_of(message)
    assert encode("statusCode") + b"\x71\x00\x00\x00\xc8" in message, "an int"
    assert isinstance(found[0x74]["errorCondition"], Symbol)
    assert found[0x74]["statusDescription"] == "OK" and found[0x77]["expirations"] == Array(
        TypeCode.TIMESTAMP, [Timestamp(1_000)]
    )


def test_a_response_without_a_body_carries_a_null() -> None:
    assert sections_of(encode_response(Response({"statusCode": Int(204)}), "id"))[0x77] is None
