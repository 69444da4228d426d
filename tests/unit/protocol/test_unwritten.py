"""What proton has not written yet."""

from __future__ import annotations

from protocol.codec import UInt
from protocol.links import Delivery, Link
from protocol.unwritten import has_unwritten
from tests.support import raw_amqp as raw
from tests.support.engine_peer import EnginePeer


def open_for(window: int, received: int = 0) -> bytes:
    fields = raw.flow_fields(received=received)
    fields[1] = UInt(window)
    return raw.frame(raw.FLOW, fields)


def send(peer: EnginePeer, link: Link, first: int, count: int, body: bytes = b"x") -> list[Delivery]:
    tags = [b"%d" % number for number in range(first, first + count)]
    return peer.engine.send(link, tags, [body] * count, settled=False)


def held_back(window: int = 2, *, max_frame_bytes: int = 65_536) -> tuple[EnginePeer, Link]:
    """A peer that takes so many transfers on its session, and more on its link."""
    peer = EnginePeer().open(window=window, max_frame_bytes=max_frame_bytes)
    link = peer.receiver()
    peer.say(open_for(window))
    return peer, link


def test_messages_are_unwritten_until_the_window_takes_them() -> None:
    peer, link = held_back(2)
    assert not has_unwritten(link)
    send(peer, link, 0, 2)
    assert has_unwritten(link), "before they are written"
    peer.hear()
    assert not has_unwritten(link)
    send(peer, link, 2, 1)
    peer.hear()
    assert has_unwritten(link)
    peer.say(open_for(1, 2))
    peer.hear()
    assert not has_unwritten(link)
