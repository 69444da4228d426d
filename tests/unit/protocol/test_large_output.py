"""Large payloads go to the peer from where they are in memory, in the frames that proton writes."""

from __future__ import annotations

import pytest

from protocol.codec import UInt
from protocol.links import Link
from tests.support import raw_amqp as raw
from tests.support.engine_frames import detach, tags
from tests.support.engine_peer import EnginePeer, frames_of

LARGE = bytes(range(256)) * 64
HEAD = b"twelve bytes"


def send(peer: EnginePeer, link: Link, rests: list[bytes], *, first: int = 0, settled: bool = False) -> None:
    """Send messages of a small front and a rest, in a stored form with a head."""
    fronts = [b"front %d " % number for number in range(first, first + len(rests))]
    peer.engine.send(
        link,
        tags(*range(first, first + len(rests))),
        fronts,
        settled,
        [HEAD + rest for rest in rests],
        len(HEAD),
    )


def heard(peer: EnginePeer) -> list[bytes]:
    """The messages that the peer gets now."""
    found, begun = [], b""
    for frame in frames_of(b"".join(peer.engine.output())):
        if frame.code == raw.TRANSFER:
            begun += frame.payload
            if not frame.field(5):
                found.append(begun)
                begun = b""
    assert not begun
    return found


@pytest.fixture
def shut() -> tuple[EnginePeer, Link]:
    """A peer that has granted credit, and keeps its session's window shut."""
    peer = EnginePeer().open(window=0)
    link = peer.attach(raw.receiver_attach(0, "queue"))
    fields = raw.flow_fields(0, 0, 10)
    fields[1] = UInt(0)
    peer.say(raw.frame(raw.FLOW, fields))
    return peer, link


@pytest.mark.parametrize("settled", [False, True])
def test_large_messages_arrive_whole_with_small_ones_between_them(peer: EnginePeer, settled: bool) -> None:
    link = peer.receiver(settled=settled)
    rests = [LARGE, b"small", LARGE[::-1], b"", b"x" * 3_000, LARGE * 3]
    send(peer, link, rests, settled=settled)
    assert heard(peer) == [b"front %d " % number + rest for number, rest in enumerate(rests)]
    assert peer.engine.unsent_bytes(link) == 0


def test_a_large_payload_is_not_copied(peer: EnginePeer) -> None:
    link, stored = peer.receiver(), HEAD + LARGE
    peer.engine.send(link, tags(0, 1), [b"a", b"b"], False, [stored, stored], len(HEAD))
    pieces = [
        piece for piece in peer.engine.output() if isinstance(piece, memoryview) and piece.obj is stored
    ]
    assert [bytes(piece) for piece in pieces] == [LARGE, LARGE]


def test_what_does_not_fit_into_one_frame_goes_in_several() -> None:
    peer = EnginePeer().open(max_frame_bytes=20_000)
    link = peer.receiver()
    rests = [LARGE * 3, LARGE, LARGE + b"x" * (20_000 - len(LARGE)), b"y" * 19_870, b"z" * 19_880]
    send(peer, link, rests)
    data = b"".join(peer.engine.output())
    begun, offset = b"", 0
    for frame in frames_of(data):
        size = int.from_bytes(data[offset : offset + 4], "big")
        assert size <= 20_000
        begun, offset = begun + frame.payload, offset + size
    assert begun == b"".join(b"front %d " % number + rest for number, rest in enumerate(rests))


def test_what_a_shut_session_window_holds_back_is_counted_and_sent_later(
    shut: tuple[EnginePeer, Link],
) -> None:
    peer, link = shut
    send(peer, link, [LARGE, LARGE])
    unsent = peer.engine.unsent_bytes(link)
    assert heard(peer) == [] and unsent >= 2 * len(LARGE) and peer.engine.unsent_bytes_of_all() == unsent
    peer.say(raw.frame(raw.FLOW, raw.flow_fields()))
    assert heard(peer) == [b"front 0 " + LARGE, b"front 1 " + LARGE]
    assert peer.engine.unsent_bytes(link) == peer.engine.unsent_bytes_of_all() == 0


def test_nothing_is_kept_for_a_link_that_its_peer_detaches(shut: tuple[EnginePeer, Link]) -> None:
    peer, link = shut
    send(peer, link, [LARGE, LARGE])
    assert heard(peer) == []
    peer.release(peer.say(detach(0)))
    peer.hear()
    assert not peer.engine._large_output and peer.engine.unsent_bytes_of_all() < 100
    again = peer.receiver(1)
    peer.say(raw.frame(raw.FLOW, raw.flow_fields()))
    send(peer, again, [LARGE[::-1]], first=5)
    assert heard(peer) == [b"front 5 " + LARGE[::-1]]


def test_nothing_is_kept_for_a_session_that_its_peer_ends(shut: tuple[EnginePeer, Link]) -> None:
    peer, link = shut
    send(peer, link, [LARGE, LARGE])
    peer.release(peer.say(raw.frame(raw.END, [])))
    peer.hear()
    assert not peer.engine._large_output and peer.engine.unsent_bytes_of_all() < 100


def test_nothing_is_kept_for_a_link_whose_detach_comes_with_the_end_of_its_session(
    shut: tuple[EnginePeer, Link],
) -> None:
    """Symptom: the payloads stayed in memory, and counted as unsent, until the connection ended."""
    peer, link = shut
    send(peer, link, [bytes(20_000)] * 3)
    peer.hear()
    assert peer.engine.unsent_bytes_of_all() > 60_000
    peer.release(peer.say(detach(0), raw.frame(raw.END, [])))
    peer.hear()
    assert peer.engine.unsent_bytes_of_all() == 0 and link.freed


def test_a_peer_that_needs_all_fields_gets_them_in_front_of_large_payloads_too(peer: EnginePeer) -> None:
    link = peer.receiver()
    peer.engine.pads_frames = True
    send(peer, link, [LARGE, b"small", LARGE])
    transfers = [frame for frame in frames_of(b"".join(peer.engine.output())) if frame.code == raw.TRANSFER]
    assert [frame.payload for frame in transfers] == [
        b"front 0 " + LARGE,
        b"front 1 small",
        b"front 2 " + LARGE,
    ]
    assert all(len(frame.fields) == 11 for frame in transfers)
