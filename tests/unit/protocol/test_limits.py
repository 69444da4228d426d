"""Bounds on a peer's frames: on performatives always, and on everything before a token."""

from __future__ import annotations

import pytest

from protocol.codec import Described, Symbol, UInt, ULong, encode
from protocol.events import ConnectionClosed, LinkAttached, MessagesReceived
from protocol.limits import (
    BYTES_BEFORE_TOKEN,
    DISPOSITION_BYTES_MAX,
    FRAMES_BEFORE_TOKEN,
    LINKS_BEFORE_TOKEN,
    PERFORMATIVE_BYTES_MAX,
    RESOURCE_LIMIT,
    SESSIONS_BEFORE_TOKEN,
    TRANSFER_HEAD_BYTES_MAX,
    VALUES_BEFORE_TOKEN,
    VALUES_MAX,
    Allowance,
)
from tests.support import raw_amqp as raw
from tests.support.engine_peer import EnginePeer, message, of, only

SIGN_OF_LIFE = raw.raw_frame(b"")


def attach(properties: object = None, handle: int = 0) -> bytes:
    return raw.frame(raw.ATTACH, [*raw.sender_attach(handle, "$cbs"), None, None, None, properties])


def refused(frames: bytes, cut: int = 1 << 30) -> str | None:
    """Why a fresh allowance refuses the frames, given in pieces of `cut` bytes; None if all bytes came
    through."""
    allowance, through = Allowance(), b""
    stream = raw.AMQP_HEADER + frames
    for begin in range(0, len(stream), cut):
        whole, error = allowance.take(stream[begin : begin + cut])
        through += whole
        if error is not None:
            assert error.condition == RESOURCE_LIMIT
            return error.description
    assert through == stream
    return None


# --- before a token -----------------------------------------------------------------------------------------


def test_what_an_official_client_says_before_its_token_is_allowed_however_it_is_cut() -> None:
    properties = {Symbol("product"): "MSGolangClient", Symbol("user-agent"): "x" * 500}
    request = encode(Described(ULong(0x74), {"operation": "put-token", "name": "sb://host/queue"})) + encode(
        Described(ULong(0x77), "x" * 8_000)
    )
    frames = b"".join(
        (
            raw.frame(raw.OPEN, [*raw.open_fields(), None, None, None, None, properties]),
            raw.frame(raw.BEGIN, raw.begin_fields()),
            *(attach(handle=handle) for handle in range(8)),
            raw.frame(raw.FLOW, raw.flow_fields(1, 0, 1_000)),
            *(raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), request) for number in range(4)),
        )
    )
    for cut in (1, 7, 1_000, 1 << 20):
        assert refused(frames, cut) is None


TOO_MUCH = {
    "bytes": raw.frame(raw.TRANSFER, raw.transfer_fields(0, 0, more=True), bytes(8_000)) * 9,
    "a large frame, before it has come": raw.raw_frame(b"", size=BYTES_BEFORE_TOKEN + 1),
    "frames": raw.frame(raw.FLOW, raw.flow_fields()) * (FRAMES_BEFORE_TOKEN + 1),
    "signs of life in one breath": SIGN_OF_LIFE * (FRAMES_BEFORE_TOKEN + 1),
    "values of an open": raw.frame(
        raw.OPEN, [*raw.open_fields(), *[None] * 4, {Symbol("a"): [None] * VALUES_BEFORE_TOKEN}]
    ),
    "values of many attaches": attach({Symbol("a"): [None] * 500}) * 10,
    "values of a transfer's state": raw.frame(
        raw.TRANSFER, raw.transfer_fields(0, 0, state=[[None] * 5_000])
    ),
    "sessions": raw.frame(raw.BEGIN, raw.begin_fields()) * (SESSIONS_BEFORE_TOKEN + 1),
    "links": attach() * (LINKS_BEFORE_TOKEN + 1),
    "links, their descriptors spelled out": raw.raw_frame(
        b"\x00\xa3\x10amqp:attach:list" + encode(raw.sender_attach(0, "$cbs"))
    )
    * (LINKS_BEFORE_TOKEN + 1),
}


@pytest.mark.parametrize("what", TOO_MUCH)
@pytest.mark.parametrize("cut", [100, 1 << 20])
def test_more_than_a_token_needs_is_refused(what: str, cut: int) -> None:
    assert "before it has put a valid token" in (refused(TOO_MUCH[what], cut) or "")


def test_links_that_are_gone_again_count_all_the_same() -> None:
    pair = attach() + raw.frame(raw.DETACH, [UInt(0), True])
    assert "links" in (refused(pair * (LINKS_BEFORE_TOKEN + 1)) or "")


def test_a_client_that_only_says_that_it_lives_may_wait() -> None:
    allowance = Allowance()
    allowance.take(raw.AMQP_HEADER)
    for _ in range(100_000):
        assert allowance.take(SIGN_OF_LIFE) == (SIGN_OF_LIFE, None)


def test_the_engine_closes_a_connection_beyond_its_allowance_and_keeps_nothing_of_it() -> None:
    peer = EnginePeer()
    peer.engine.restrict()
    peer.open()
    peer.sender()
    transfer = raw.frame(raw.TRANSFER, raw.transfer_fields(0, 0, more=True), bytes(16_000))
    assert peer.say(transfer) == [] and peer.engine.partial_bytes == 16_000
    (closed,) = of(peer.say(transfer * 4), ConnectionClosed)
    error = closed.error
    assert error is not None and error.condition == RESOURCE_LIMIT
    (close,) = peer.heard(raw.CLOSE)
    assert raw.condition_of(close) == RESOURCE_LIMIT and peer.engine.finished


def test_what_is_beyond_the_allowance_is_refused_also_behind_what_is_too_much_for_one_turn() -> None:
    peer = EnginePeer()
    peer.engine.restrict()
    peer.open()
    for handle in range(2):
        peer.receiver(handle)
    # Every other flow makes an event; all events together are more than one turn takes.
    flows = [
        raw.frame(raw.FLOW, [*raw.flow_fields(each % 2, 0, 5 + each), None, None, None, {"a": "x" * 280}])
        for each in range(150)
    ]
    events = peer.engine.receive(b"".join((*flows, TOO_MUCH["values of a transfer's state"])), 64)
    assert peer.engine.has_more and not of(events, ConnectionClosed)
    while peer.engine.has_more:
        events = peer.engine.receive(SIGN_OF_LIFE, 64)
    (closed,) = of(events, ConnectionClosed)
    assert closed.error is not None and closed.error.condition == RESOURCE_LIMIT


def test_once_lifted_everything_may_come_and_nothing_was_lost() -> None:
    peer = EnginePeer()
    peer.engine.restrict()
    peer.open()
    peer.sender()
    first, second = (
        raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), message(bytes(30_000))) for number in range(2)
    )
    assert only(peer.say(first + second[:100]), MessagesReceived).payloads == [message(bytes(30_000))]
    peer.engine.lift_restriction()
    assert only(peer.say(second[100:]), MessagesReceived).payloads == [message(bytes(30_000))]
    for number in range(2, 10):
        only(
            peer.say(raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), message(bytes(30_000)))),
            MessagesReceived,
        )


def test_a_restriction_may_begin_in_the_middle_of_any_frame_and_hold_from_the_next_one() -> None:
    transfers = [
        raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), message(bytes(60))) for number in range(3)
    ]
    for cut in range(len(transfers[0]) + 1):
        peer = EnginePeer().open()
        peer.sender()
        events = peer.say(transfers[0][:cut])
        peer.engine.restrict()
        events += peer.say(transfers[0][cut:] + transfers[1][:cut])
        peer.engine.lift_restriction()
        peer.engine.restrict()
        events += peer.say(transfers[1][cut:], transfers[2])
        received = [payload for event in of(events, MessagesReceived) for payload in event.payloads]
        assert received == [message(bytes(60))] * 3
        (closed,) = of(peer.say(TOO_MUCH["frames"]), ConnectionClosed)
        assert closed.error is not None and "frames" in closed.error.description


# --- always -------------------------------------------------------------------------------------------------

OVERSIZED = {
    "link properties": attach({Symbol("a"): "x" * PERFORMATIVE_BYTES_MAX}),
    "values of link properties": attach({Symbol("a"): [None] * (VALUES_MAX + 1)}),
    "a flow": raw.frame(
        raw.FLOW, [*raw.flow_fields(), *[None] * 6, {Symbol("a"): "x" * PERFORMATIVE_BYTES_MAX}]
    ),
    "a detach's error": raw.frame(
        raw.DETACH,
        [UInt(0), True, Described(ULong(raw.ERROR), [Symbol("a:b"), "x" * PERFORMATIVE_BYTES_MAX])],
    ),
    "a transfer's state": raw.frame(
        raw.TRANSFER,
        raw.transfer_fields(0, 0, state=["x" * (TRANSFER_HEAD_BYTES_MAX + 1_000)]),
        message(b"x"),
    ),
    "values of a disposition": raw.frame(
        raw.DISPOSITION,
        raw.disposition_fields(
            True, 0, 0, True, raw.outcome(raw.MODIFIED, [True, True, {Symbol("a"): [None] * 3_000}])
        ),
    ),
    "a disposition": raw.frame(
        raw.DISPOSITION,
        raw.disposition_fields(
            True, 0, 0, True, raw.outcome(raw.REJECTED, [[Symbol("a:b"), "x" * DISPOSITION_BYTES_MAX]])
        ),
    ),
}


@pytest.mark.parametrize("what", OVERSIZED)
@pytest.mark.parametrize("cut", [999, 1 << 20])
def test_a_performative_that_is_too_large_closes_the_connection(what: str, cut: int) -> None:
    peer = EnginePeer(max_frame_bytes=1 << 20).open()
    peer.sender()
    events = []
    good = raw.frame(raw.TRANSFER, raw.transfer_fields(0, 0), message(b"before"))
    stream = good + OVERSIZED[what] + attach(handle=7)
    for begin in range(0, len(stream), cut):
        events += peer.say(stream[begin : begin + cut])
    assert [event.payloads for event in of(events, MessagesReceived)] == [[message(b"before")]]
    assert not of(events, LinkAttached)
    (closed,) = of(events, ConnectionClosed)
    assert closed.error is not None and closed.error.condition == RESOURCE_LIMIT
    assert raw.condition_of(peer.heard(raw.CLOSE)[0]) == RESOURCE_LIMIT


def test_what_clients_really_send_is_within_the_bounds() -> None:
    peer = EnginePeer().open()
    link = peer.sender()
    properties = {Symbol("com.microsoft:timeout"): 60_000, Symbol("a"): "x" * 4_000}
    events = peer.say(
        attach(properties, handle=1),
        raw.frame(raw.TRANSFER, raw.transfer_fields(0, 0), message(bytes(60_000))),
        raw.frame(
            raw.DISPOSITION,
            raw.disposition_fields(
                True, 0, 0, True, raw.outcome(raw.REJECTED, [[Symbol("a:b"), "x" * 200_000]])
            ),
        ),
    )
    assert [type(event) for event in events] == [LinkAttached, MessagesReceived]
    assert not link.gone
