"""What the engine keeps of complete deliveries: no payload, and nothing that the peer said about them.

Proton itself keeps the memory of both for as long as the connection lasts. The tests measure the memory of
this process and allow for what else the engine needs.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.throttle.memory_mark import resident_bytes
from protocol.codec import Described, Symbol, UInt, ULong, decode_all, encode
from protocol.events import DeliveriesUpdated, ErrorCondition, MessagesReceived
from tests.support import raw_amqp as raw
from tests.support.engine_peer import EnginePeer, message, only

COUNT, LARGE = 600, 64 * 1024
GROWTH_MAX = 8 << 20
"""A fifth of the payloads' 37.5 MiB, and more than everything else takes."""


def transfer(number: int, payload: bytes) -> bytes:
    return raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), payload)


def disposition(number: int, state: Any) -> bytes:
    return raw.frame(raw.DISPOSITION, raw.disposition_fields(True, number, number, False, state))


def sent(peer: EnginePeer, payload: bytes, *, settled: bool = False) -> list[Any]:
    """Send COUNT messages, writing each one out before sending the next."""
    link, deliveries = peer.receiver(credit=COUNT, settled=settled), []
    for number in range(COUNT):
        deliveries += peer.engine.send(link, [number.to_bytes(16, "big")], [payload], settled)
        assert sum(len(frame.payload) for frame in peer.hear()) == len(payload)
    return deliveries


@pytest.mark.parametrize("settled", [False, True], ids=["unsettled", "settled"])
def test_messages_that_were_written_take_no_memory_while_the_peer_holds_them(settled: bool) -> None:
    peer, before = EnginePeer().open(), resident_bytes()
    deliveries = sent(peer, bytes(LARGE), settled=settled)
    assert resident_bytes() - before < GROWTH_MAX
    assert len(deliveries) == (0 if settled else COUNT)


def test_messages_that_wait_for_the_session_window_go_out_whole() -> None:
    peer = EnginePeer().open(window=1)
    link = peer.receiver(credit=10)
    for number in range(3):
        peer.engine.send(link, [bytes([number]) * 16], [bytes([number]) * 100_000], False)
    received = b""
    for number in range(200):
        received += b"".join(frame.payload for frame in peer.heard(raw.TRANSFER))
        flow = raw.flow_fields()
        flow[0], flow[1] = UInt(number), UInt(1)
        peer.say(raw.frame(raw.FLOW, flow))
    assert received == b"".join(bytes([number]) * 100_000 for number in range(3))


def test_messages_that_were_taken_take_no_memory_while_they_wait_for_their_outcome() -> None:
    peer, before = EnginePeer().open(), resident_bytes()
    peer.sender(credit=COUNT)
    held = [
        only(peer.say(transfer(number, message(bytes(LARGE)))), MessagesReceived).deliveries[0]
        for number in range(COUNT)
    ]
    assert resident_bytes() - before < GROWTH_MAX
    peer.engine.accept(held)
    assert peer.heard(raw.DISPOSITION)


@pytest.mark.parametrize(
    "state",
    [
        raw.outcome(raw.MODIFIED, [True, True, {Symbol("note"): "x" * LARGE}]),
        raw.outcome(raw.REJECTED, [Described(ULong(raw.ERROR), [Symbol("a:b"), "y" * LARGE])]),
        raw.outcome(
            raw.REJECTED, [Described(ULong(raw.ERROR), [Symbol("a:b"), "", {Symbol("why"): "z" * LARGE}])]
        ),
        raw.outcome(raw.TRANSACTIONAL, [b"t" * LARGE]),
    ],
    ids=["modified", "rejected", "info", "data"],
)
def test_what_the_peer_says_of_deliveries_takes_no_memory_once_it_was_read(state: Any) -> None:
    peer = EnginePeer().open()
    deliveries, before = sent(peer, b"small"), resident_bytes()
    for number in range(COUNT):
        only(peer.say(disposition(number, state)), DeliveriesUpdated)
    assert resident_bytes() - before < GROWTH_MAX
    peer.engine.reject(deliveries, ErrorCondition("amqp:not-allowed", "no", encode({})))
    assert peer.heard(raw.DISPOSITION)


def test_a_delivery_says_only_what_was_said_last() -> None:
    peer = EnginePeer().open()
    link = peer.receiver(credit=2)
    peer.engine.send(link, [b"1" * 16], [b"message"], False)
    peer.hear()
    note = {Symbol("note"): "x"}
    error = Described(ULong(raw.ERROR), [Symbol("a:b"), "why"])
    said = [
        only(peer.say(disposition(0, raw.outcome(code, fields))), DeliveriesUpdated)
        for code, fields in (
            (raw.MODIFIED, [True, True, note]),
            (raw.REJECTED, [error]),
            (raw.MODIFIED, [True]),
            (raw.MODIFIED, [True, True, note]),
        )
    ]
    assert [update.annotations and decode_all(update.annotations) for update in said] == [
        note,
        b"",
        b"",
        note,
    ]
    assert [update.error for update in said] == [None, ErrorCondition("a:b", "why", b""), None, None]
