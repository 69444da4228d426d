"""How many messages may be passed to the engine before the peer opens its session's window (§2.5.6)."""

from __future__ import annotations

import pytest

from protocol.codec import UInt
from protocol.links import Link
from protocol.session_window import WAITING_MAX, room_in_window
from tests.support import raw_amqp as raw
from tests.support.engine_peer import EnginePeer


def send(peer: EnginePeer, link: Link, first: int, count: int) -> None:
    tags = [number.to_bytes(4, "big") for number in range(first, first + count)]
    peer.engine.send(link, tags, [b"x"] * count, settled=False)


def open_for(peer: EnginePeer, window: int, received: int) -> None:
    fields = raw.flow_fields(received=received)
    fields[1] = UInt(window)
    peer.say(raw.frame(raw.FLOW, fields))


def test_a_link_may_send_what_the_window_takes_and_some_that_wait() -> None:
    peer = EnginePeer().open(window=1_000)
    link = peer.receiver(credit=5_000)
    open_for(peer, 1_000, 0)
    assert room_in_window(link, 1) == 1_000 + WAITING_MAX
    send(peer, link, 0, 900)
    assert room_in_window(link, 1) == 100 + WAITING_MAX, "before they are written"
    assert len(peer.heard(raw.TRANSFER)) == 900
    assert room_in_window(link, 1) == 100 + WAITING_MAX, "and afterwards"
    send(peer, link, 900, 100 + WAITING_MAX)
    assert room_in_window(link, 1) == 0
    assert len(peer.heard(raw.TRANSFER)) == 100
    assert room_in_window(link, 1) == 0
    half = WAITING_MAX // 2
    open_for(peer, half, 1_000)
    assert len(peer.heard(raw.TRANSFER)) == half
    assert room_in_window(link, 1) == 0, "half of them wait"
    open_for(peer, 1, 1_000 + half)
    assert len(peer.heard(raw.TRANSFER)) == 1
    assert room_in_window(link, 1) == half + 1
    send(peer, link, 1_000 + WAITING_MAX, half)
    assert room_in_window(link, 1) == 1, "to the last one"


def test_the_links_of_a_session_share_its_window() -> None:
    peer = EnginePeer().open(window=3)
    first, second = peer.receiver(0), peer.receiver(1)
    open_for(peer, 3, 0)
    send(peer, first, 0, 3)
    assert room_in_window(second, 1) == 3 + WAITING_MAX, "until the first one's are written"
    peer.hear()
    assert room_in_window(first, 1) == room_in_window(second, 1) == WAITING_MAX


@pytest.mark.parametrize(("links", "waiting"), [(1, 256), (2, 128), (100, 2), (256, 1), (4_500, 1)])
def test_the_links_of_a_connection_share_what_may_wait(links: int, waiting: int) -> None:
    """Symptom: 800 links with shut windows had 100,000 messages wait, and each write took 60 ms."""
    peer = EnginePeer().open(window=0)
    link = peer.receiver(credit=1_000)
    open_for(peer, 0, 0)
    assert room_in_window(link, links) == waiting
    send(peer, link, 0, waiting)
    assert peer.heard(raw.TRANSFER) == [] and room_in_window(link, links) == 0
    open_for(peer, 1_000, 0)
    assert len(peer.heard(raw.TRANSFER)) == waiting
    assert room_in_window(link, links) == 1_000


def test_a_message_that_was_written_in_part_waits() -> None:
    peer = EnginePeer().open(window=2, max_frame_bytes=512)
    link = peer.receiver()
    open_for(peer, 2, 0)
    peer.engine.send(link, [b"0"], [b"x" * 2_000], settled=False)
    assert len(peer.heard(raw.TRANSFER)) == 2
    assert room_in_window(link, 1) == WAITING_MAX - 1
    open_for(peer, 100, 2)
    assert len(peer.heard(raw.TRANSFER)) == 3
    assert room_in_window(link, 1) == 97 + WAITING_MAX


def test_one_message_waits_at_most_while_the_peer_drains_the_link() -> None:
    peer = EnginePeer().open(window=3)
    link = peer.receiver()
    fields = raw.flow_fields(0, 0, 100, drain=True)
    fields[1] = UInt(3)
    peer.say(raw.frame(raw.FLOW, fields))
    assert room_in_window(link, 1) == 4
    send(peer, link, 0, 4)
    assert len(peer.heard(raw.TRANSFER)) == 3
    assert room_in_window(link, 1) == 0


@pytest.mark.parametrize("window", [1 << 31, (1 << 32) - 1])
def test_a_window_above_half_of_its_range_is_open(window: int) -> None:
    """Symptom: it was read as negative, so a client that announced the largest one got messages singly."""
    peer = EnginePeer().open()
    link = peer.receiver(credit=5_000)
    open_for(peer, window, 0)
    assert room_in_window(link, 1) > 5_000
    send(peer, link, 0, 5_000)
    assert len(peer.heard(raw.TRANSFER)) == 5_000
    assert room_in_window(link, 1) > 5_000
