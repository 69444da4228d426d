"""Dispositions of deliveries that do not exist, through the engine: proton must not see them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cproton_ffi import lib as proton

from protocol import runs
from protocol._runs import ffi, lib
from protocol.codec import Described, UInt, ULong
from protocol.events import DeliveriesUpdated, MessagesReceived
from protocol.links import Delivery, Link
from tests.support import raw_amqp as raw
from tests.support.engine_frames import disposition, transfer
from tests.support.engine_peer import EnginePeer, NoPlainReads, frames_of, of, only

TOP = 2**32 - 1
ACCEPTED = raw.outcome(raw.ACCEPTED)


def sent(peer: EnginePeer, link: Link, count: int) -> list[Delivery]:
    """Deliveries that the peer got."""
    tags = [number.to_bytes(4, "big") for number in range(count)]
    found = peer.engine.send(link, tags, [b"x"] * count, False)
    peer.hear()
    return found


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What proton is given, except for plain reads."""
    found: list[bytes] = []
    push = runs.push

    def noting(transport: Any, data: bytes, begin: int, end: int) -> int:
        found.append(bytes(data[begin:end]))
        return push(transport, data, begin, end)

    monkeypatch.setattr(runs, "push", noting)
    return found


def named(peer: EnginePeer, *frames: bytes) -> list[Delivery]:
    return [each for event in of(peer.say(*frames), DeliveriesUpdated) for each in event.deliveries]


def test_of_a_session_that_got_nothing_none_exist_however_many_another_got(pushed: list[bytes]) -> None:
    peer = EnginePeer().open()
    busy = peer.receiver(credit=1_000)
    peer.say(raw.frame(raw.BEGIN, raw.begin_fields(), channel=1))
    peer.receiver(0, channel=1, credit=1_000)
    sent(peer, busy, 1_000)
    frames = [
        raw.frame(raw.DISPOSITION, raw.disposition_fields(True, first, last, True, ACCEPTED), channel=1)
        for first, last in ((5, 5), (0, 0), (5, 6), (0, 999), (TOP, 3))
    ]
    pushed.clear()
    assert named(peer, *frames) == []
    # The last range begins with a number that may have existed: numbers wrap around.
    (kept,) = frames_of(b"".join(pushed))
    assert (kept.field(1), kept.field(2), kept.channel) == (TOP, TOP, 1)
    assert len(named(peer, disposition(5, 6, ACCEPTED))) == 2


def test_deliveries_that_wait_for_the_window_have_no_numbers_yet(pushed: list[bytes]) -> None:
    """Symptom: the broker has sent them, so a bound of what it has sent would let them pass."""
    peer = EnginePeer().open()
    peer.say(raw.frame(raw.BEGIN, [None, UInt(0), UInt(3), UInt(100)], channel=1))
    link = peer.attach(raw.receiver_attach(0, "queue"), channel=1)
    peer.say(
        raw.frame(raw.FLOW, [UInt(0), UInt(3), UInt(0), UInt(100), UInt(0), UInt(0), UInt(100)], channel=1)
    )
    deliveries = sent(peer, link, 50)
    frame = raw.frame(raw.DISPOSITION, raw.disposition_fields(True, 3, 4, True, ACCEPTED), channel=1)
    pushed.clear()
    assert named(peer, frame) == [] and pushed == []
    frame = raw.frame(raw.DISPOSITION, raw.disposition_fields(True, 0, 49, True, ACCEPTED), channel=1)
    assert named(peer, frame) == deliveries[:3]


def test_an_old_session_on_a_channel_says_nothing_of_the_next_one() -> None:
    peer = EnginePeer().open()
    sent(peer, peer.receiver(credit=1_000), 1_000)
    again = [raw.frame(raw.END, []), raw.frame(raw.BEGIN, raw.begin_fields())]
    entry = peer.engine._lenience._table[0]
    assert entry.deliveries.outgoing.next == 1_000
    peer.say(*again)
    assert entry.deliveries.outgoing.next == 0
    peer.say(*again * 3)
    assert entry.deliveries.outgoing.next == 0
    peer.say(raw.frame(raw.END, []))
    assert not entry.deliveries and not peer.engine._lenience._known


@pytest.mark.parametrize("plain", [True, False])
def test_numbers_wrap_around(plain: bool) -> None:
    peer = EnginePeer().open()
    link = peer.receiver(credit=1_000)
    lib.sessions_deliveries(link.session.pn).outgoing.next = TOP - 1
    deliveries = sent(peer, link, 5)  # TOP - 1, TOP, 0, 1, 2
    if not plain:
        peer.engine._plain_reads = NoPlainReads()
    assert named(peer, disposition(3, 3, ACCEPTED), disposition(3, 9, ACCEPTED)) == []
    assert named(peer, disposition(TOP, 0, ACCEPTED)) == deliveries[1:3]
    assert sorted(named(peer, disposition(TOP - 1, 900, ACCEPTED))) == sorted(deliveries)
    assert named(peer, disposition(TOP - 300, TOP - 1, ACCEPTED)) == deliveries[:1]
    assert named(peer, disposition(2, 2, ACCEPTED), disposition(TOP, TOP, ACCEPTED)) == [
        deliveries[4], deliveries[1]
    ]  # fmt: skip


@pytest.mark.parametrize("first", [2, 5, 2**31 + 1])
@pytest.mark.parametrize("more", [0, 1, 3_000])
def test_of_its_own_transfers_a_peer_names_those_that_exist(
    first: int, more: int, pushed: list[bytes]
) -> None:
    peer = EnginePeer().open()
    peer.sender(credit=100)
    assert only(peer.say(transfer(0, 0), transfer(0, 1)), MessagesReceived)
    pushed.clear()
    frame = raw.frame(raw.DISPOSITION, [raw.SENDER, UInt(first), UInt(first + more), True])
    assert peer.say(frame) == [] and pushed == []
    assert peer.say(raw.frame(raw.DISPOSITION, [raw.SENDER, UInt(0), UInt(more), True])) == []


@pytest.mark.parametrize("last", [0, 9, 255, 256, 2_999])
def test_an_outcome_that_nobody_knows_is_the_same_for_few_deliveries_and_for_many(last: int) -> None:
    """Symptom: it was dropped if it named more than 256 deliveries, and reported otherwise."""
    peer = EnginePeer().open()
    deliveries = sent(peer, peer.receiver(credit=3_000), 3_000)
    event = only(peer.say(disposition(0, last, Described(ULong(0x99), []))), DeliveriesUpdated)
    assert event.deliveries == deliveries[: last + 1] and event.outcome == 0x99


@pytest.mark.parametrize("said", [(3_005, 3_006), (3_005, 3_005), (0, 255), (0, 1), (0, 2_999), (7, 7)])
def test_one_turn_takes_a_bounded_part_of_the_dispositions(said: tuple[int, int]) -> None:
    """Symptom: 64 KB of dispositions held the event loop for up to 0.9 s."""
    peer = EnginePeer().open()
    link = peer.receiver(credit=3_000)
    sent(peer, link, 3_000)
    ids, most = peer.engine._lenience._ids, 0
    peer.engine.receive(disposition(*said, raw.outcome(raw.MODIFIED)) * 2_800, 64)
    while True:
        most = max(most, ids.work)
        if not peer.engine.has_more:
            break
        peer.engine.receive(b"", 64)
    assert most <= lib.WORK_AT_ONCE + 2_048


SESSION_BYTES = 256
"""The size of a session in proton."""


@pytest.fixture
def session() -> Iterator[Any]:
    """A session of proton that was just made."""
    connection = proton.pn_connection()
    yield proton.pn_session(connection)
    proton.pn_connection_release(connection)
    proton.pn_decref(connection)


def is_known(session: Any, layout: bytes) -> bool:
    """Whether these bytes are taken for the session's."""
    known: bool = lib.sessions_are_known(
        ffi.from_buffer(layout), proton.pn_session_connection(session), proton.pn_session_attachments(session)
    )
    return known


@pytest.mark.parametrize(
    ("at", "size"),
    [
        pytest.param(128, 4, id="next incoming"),
        pytest.param(136, 8, id="unsettled incoming"),
        pytest.param(144, 4, id="next outgoing"),
        pytest.param(152, 8, id="unsettled outgoing"),
        pytest.param(216, 2, id="local channel"),
        pytest.param(218, 2, id="remote channel"),
        pytest.param(224, 8, id="connection"),
        pytest.param(248, 8, id="context"),
    ],
)
def test_a_layout_that_is_not_known_is_noticed(session: Any, at: int, size: int) -> None:
    layout = bytes(ffi.buffer(ffi.cast("char *", session), SESSION_BYTES))
    assert is_known(session, layout)
    another = ffi.new("unsettled_t *")
    elsewhere = int(ffi.cast("uintptr_t", another)).to_bytes(8, sys.byteorder)
    for other in (b"\x00" * size, elsewhere[:size]):
        moved = layout[:at] + other + layout[at + size :]
        assert moved == layout or not is_known(session, moved)
    for inserted in (4, 8):
        assert not is_known(session, layout[:at] + b"\x00" * inserted + layout[at:])
