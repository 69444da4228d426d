"""Large delivery states are kept, and proton gets short ones in their place."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import codec
from protocol.codec import DecodeError, Described, Symbol, UInt, ULong
from protocol.engine import Engine
from protocol.events import DeliveriesUpdated, ErrorCondition, Event, LinkAttached, Outcome
from protocol.heavy_states import FIRST_NUMBER, HeavyStates
from protocol.transactional_state import transactional_state
from tests.support import raw_amqp as raw
from tests.support.engine_frames import disposition

LIST_AT = 11
"""Where the list of a performative begins, behind the header of the frame and a short descriptor."""
PROPERTIES = {Symbol(f"key{number}"): "v" * 900 for number in range(60)}
ENCODED = codec.encode(PROPERTIES)
REASON = Symbol("com.microsoft:dead-letter")
STATES = {
    "modified": Described(ULong(raw.MODIFIED), [True, None, PROPERTIES]),
    "undeliverable": Described(ULong(raw.MODIFIED), [None, True, PROPERTIES]),
    "rejected": raw.outcome(raw.REJECTED, [Described(ULong(0x1D), [REASON, "because", PROPERTIES])]),
    "rejected-without-info": raw.outcome(raw.REJECTED, [Described(ULong(0x1D), [REASON, "b" * 4_000])]),
    "transactional": Described(
        ULong(0x34), [b"txn", Described(ULong(raw.MODIFIED), [True, False, PROPERTIES])]
    ),
}


def said(state: object, first: int = 0, last: int = 9, settled: bool = False) -> bytes:
    return disposition(first, last, state, settled=settled)


class Peer:
    """A receiver that holds deliveries of one engine."""

    def __init__(self, deliveries: int, begin: list[Any] | None = None) -> None:
        self.engine = Engine(
            container_id="broker", max_frame_bytes=1 << 20, channel_max=255, idle_timeout_ms=0
        )
        self.say(raw.AMQP_HEADER + raw.frame(raw.OPEN, raw.open_fields()))
        self.engine.open()
        self.say(raw.frame(raw.BEGIN, begin or [None, UInt(0), UInt(1 << 30), UInt(1 << 30)]))
        (attached,) = self.say(raw.frame(raw.ATTACH, raw.receiver_attach(0, "queue")))
        assert isinstance(attached, LinkAttached)
        self.engine.accept_link(attached.link)
        self.say(raw.frame(raw.FLOW, raw.flow_fields(0, 0, deliveries)))
        tags = [b"%d" % number for number in range(deliveries)]
        self.deliveries = self.engine.send(
            attached.link, tags, [b"\x00\x53\x77\x43"] * deliveries, settled=False
        )
        self.engine.output()

    def say(self, data: bytes, events_max: int = 400_000) -> list[Event]:
        events = self.engine.receive(data, events_max)
        while self.engine.has_more:
            events += self.engine.receive(b"", events_max)
        self.engine.output()
        return events

    def updates(self, data: bytes, events_max: int = 400_000) -> list[DeliveriesUpdated]:
        return [each for each in self.say(data, events_max) if isinstance(each, DeliveriesUpdated)]


@pytest.mark.parametrize("name", STATES)
def test_a_kept_state_is_reported_like_one_that_proton_copies(name: str) -> None:
    """A disposition of one delivery is left to proton."""
    ((many,), (one,)) = (Peer(10).updates(said(STATES[name], 0, last)) for last in (9, 0))
    assert len(many.deliveries) == 10 and len(one.deliveries) == 1
    assert many.shared is not None and one.shared is None
    many.shared, many.link, many.deliveries = None, one.link, one.deliveries
    for update in (many, one):  # proton encodes a map again
        update.annotations = decoded(update.annotations)
        if update.error is not None:
            update.error.info = decoded(update.error.info)
    assert many == one


def decoded(encoded: bytes) -> bytes:
    return codec.encode(codec.decode_all(encoded)) if encoded else b""


def test_all_deliveries_share_one_state_whatever_turn_they_are_read_in() -> None:
    peer = Peer(5_000)
    updates = peer.updates(said(STATES["modified"], 0, 4_999), events_max=256)
    assert len(updates) > 5 and sum(len(each.deliveries) for each in updates) == 5_000
    assert len({id(each.annotations) for each in updates}) == 1 == len({id(each.shared) for each in updates})
    assert updates[0].annotations == ENCODED


def test_states_are_forgotten_once_they_are_read() -> None:
    peer = Peer(3_000)
    states = peer.engine._intake.heavy_states
    peer.engine.receive(said(STATES["modified"], 0, 2_999), 256)
    assert peer.engine.has_more and states.find(FIRST_NUMBER) is not None
    peer.say(b"", 256)
    assert states.find(FIRST_NUMBER) is None


def test_two_dispositions_of_the_same_deliveries_in_one_read() -> None:
    updates = Peer(10).updates(said(STATES["modified"], 0, 9) + said(STATES["rejected"], 3, 5))
    found = {number: each.outcome for each in updates for number in each.deliveries}
    assert sorted(found.values()) == [Outcome.REJECTED] * 3 + [Outcome.MODIFIED] * 7


@pytest.mark.parametrize("cut", [1, 7, 9, 20, 300, 5_000])
def test_it_is_the_same_in_whatever_parts_the_frame_arrives(cut: int) -> None:
    peer, frame = Peer(10), said(STATES["modified"])
    updates = peer.updates(frame[:cut]) + peer.updates(frame[cut:-1]) + peer.updates(frame[-1:])
    assert [(len(each.deliveries), each.annotations) for each in updates] == [(10, ENCODED)]


@pytest.mark.parametrize("number", [FIRST_NUMBER, FIRST_NUMBER + 5])
def test_a_number_that_the_peer_makes_up_means_nothing(number: int) -> None:
    peer = Peer(10)
    peer.say(said(STATES["modified"], 0, 4))
    (update,) = peer.updates(said(Described(ULong(number), []), 5, 5))
    assert update.outcome == number and not update.annotations


def test_a_role_in_the_other_encoding_changes_nothing() -> None:
    frame = said(STATES["modified"])
    at = LIST_AT + 9
    assert frame[at] == 0x41
    listed = int.from_bytes(frame[LIST_AT + 1 : LIST_AT + 5], "big") + 1
    body = frame[8 : LIST_AT + 1] + listed.to_bytes(4, "big") + frame[LIST_AT + 5 : at] + b"\x56\x01"
    (update,) = Peer(10).updates(raw.raw_frame(body + frame[at + 1 :]))
    assert update.shared is not None and len(update.deliveries) == 10


@pytest.mark.parametrize(
    ("place", "value"),
    [(1, b"\x80" + bytes(8)), (2, b"\x80" + bytes(7) + b"\x09"), (1, b"\x40"), (2, b"\xa1\x01a")],
    ids=["first-ulong", "last-ulong", "no-first", "last-text"],
)
def test_numbers_of_another_type_end_the_connection(place: int, value: bytes) -> None:
    """Proton reads them as 0."""
    fields = [b"\x41", b"\x43", b"\x52\x09", b"\x42", codec.encode(STATES["modified"])]
    fields[place] = value
    body = b"\x00\x53\x15" + codec.encode_list(fields)
    peer = Peer(10)
    assert not peer.updates(raw.raw_frame(body))
    assert peer.engine.finished


def test_a_list_that_is_longer_than_its_fields_ends_the_connection() -> None:
    frame = bytearray(said(STATES["modified"]) + b"\x40\x40")
    struct.pack_into(">I", frame, 0, len(frame))
    struct.pack_into(">I", frame, LIST_AT + 1, len(frame) - LIST_AT - 5)
    assert not Peer(10).updates(bytes(frame))


@pytest.mark.parametrize(
    "state",
    ["x" * 500, Described(Symbol("amqp:modified:list"), [True, False, PROPERTIES])],
    ids=["no-state", "spelled"],
)
def test_what_proton_does_not_report_stays_unreported(state: object) -> None:
    assert HeavyStates().keep(codec.encode(state)) == b"\x40"
    assert not Peer(10).updates(said(state))


def test_an_error_or_a_map_of_another_type_is_not_set() -> None:
    (update,) = Peer(10).updates(said(Described(ULong(raw.REJECTED), ["x" * 300])))
    assert (update.outcome, update.error) == (Outcome.REJECTED, None)
    (update,) = Peer(10).updates(
        said(Described(ULong(raw.REJECTED), [Described(ULong(0x1D), [None, "x" * 300])]))
    )
    assert update.error is None
    (update,) = Peer(10).updates(said(Described(ULong(raw.MODIFIED), "x" * 300)))
    assert (update.outcome, update.failed, update.annotations) == (Outcome.MODIFIED, False, b"")
    (update,) = Peer(10).updates(
        said(raw.outcome(raw.REJECTED, [Described(ULong(0x1D), [REASON, None, "x" * 300])]))
    )
    assert update.error == ErrorCondition(str(REASON), "", codec.encode("x" * 300))


@pytest.mark.parametrize("last", [UInt(3), None])
def test_the_state_of_one_delivery_is_left_to_proton(last: UInt | None) -> None:
    peer = Peer(10)
    frame = raw.frame(raw.DISPOSITION, [raw.RECEIVER, UInt(3), last, False, STATES["modified"]])
    peer.engine.receive(frame)
    assert peer.engine._intake.heavy_states._next == FIRST_NUMBER


@given(st.integers(0, 400), st.integers(0, 255))
def test_damaged_states_are_read_or_refused(place: int, byte: int) -> None:
    state = bytearray(codec.encode(STATES["rejected-without-info"]))
    state[place] = byte
    with contextlib.suppress(DecodeError, IndexError, struct.error):
        HeavyStates().keep(bytes(state))


def test_a_transactional_state_that_cannot_be_read_names_no_transaction() -> None:
    fields = transactional_state(b"txn", Outcome.ACCEPTED)
    assert fields
    (update,) = Peer(10).updates(said(Described(ULong(0x34), ["x" * 300])))
    assert update.transaction is not None and update.transaction.txn_id == b""


def test_a_malformed_frame_that_proton_takes_is_followed_by_the_same_checks() -> None:
    begin = [None, UInt(0), UInt(1 << 30), UInt(1 << 30), "handle-max"]
    (update,) = Peer(10, begin).updates(said(STATES["modified"]))
    assert update.shared is not None and len(update.deliveries) == 10
