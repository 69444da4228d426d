"""How many messages may be passed to the engine before the peer opens its session's window (§2.5.6)."""

from __future__ import annotations

from protocol.codec import UInt
from protocol.links import Link
from protocol.session_window import room_in_window
from tests.support import raw_amqp as raw
from tests.support.engine_peer import EnginePeer


def send(peer: EnginePeer, link: Link, first: int, count: int) -> None:
    tags = [number.to_bytes(4, "big") for number in range(first, first + count)]
    peer.engine.send(link, tags, [b"x"] * count, settled=False)


def open_for(peer: EnginePeer, window: int, received: int) -> None:
    fields = raw.flow_fields(received=received)
    fields[1] = UInt(window)
    peer.say(raw.frame(raw.FLOW, fields))


def test_a_link_may_send_what_the_window_takes_and_one_more() -> None:
    peer = EnginePeer().open(window=3)
    link = peer.receiver(credit=100)
    open_for(peer, 3, 0)
    assert room_in_window(link) == 4
    send(peer, link, 0, 2)
    assert room_in_window(link) == 2, "before they are written"
    assert len(peer.heard(raw.TRANSFER)) == 2
    assert room_in_window(link) == 2, "and afterwards"
    send(peer, link, 2, 2)
    assert room_in_window(link) == 0
    assert len(peer.heard(raw.TRANSFER)) == 1
    assert room_in_window(link) == 0, "one waits"
    open_for(peer, 5, 3)
    assert len(peer.heard(raw.TRANSFER)) == 1
    assert room_in_window(link) == 5


def test_the_links_of_a_session_share_its_window() -> None:
    peer = EnginePeer().open(window=3)
    first, second = peer.receiver(0), peer.receiver(1)
    open_for(peer, 3, 0)
    send(peer, first, 0, 3)
    assert room_in_window(second) == 4, "until the first one's are written"
    peer.hear()
    assert room_in_window(first) == room_in_window(second) == 1


def test_a_message_that_was_written_in_part_waits() -> None:
    peer = EnginePeer().open(window=2, max_frame_bytes=512)
    link = peer.receiver()
    open_for(peer, 2, 0)
    peer.engine.send(link, [b"0"], [b"x" * 2_000], settled=False)
    assert len(peer.heard(raw.TRANSFER)) == 2
    assert room_in_window(link) == 0
    open_for(peer, 100, 2)
    assert len(peer.heard(raw.TRANSFER)) == 3
    assert room_in_window(link) == 98
