"""What proton has not written yet, and what of it can be taken back when the peer leaves the link."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from protocol import proton_values, runs
from protocol.codec import UInt
from protocol.events import ErrorCondition, LinkAttached
from protocol.large_output import PAYLOAD_BYTES_MIN
from protocol.links import Delivery, Link
from protocol.unwritten import has_unwritten, take_back
from tests.support import raw_amqp as raw
from tests.support.engine_peer import EnginePeer
from tests.support.link_stack import tags_of

DETACH, END = raw.frame(raw.DETACH, raw.detach_fields(0)), raw.frame(raw.END, [])


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


@pytest.mark.parametrize("function", ["pn_link_unsettled", "pn_link_credit", "pn_link_queued"])
def test_counts_of_a_link_that_are_not_where_they_are_expected_are_noticed(function: str) -> None:
    class Other:
        """A proton that counts otherwise."""

        def __getattr__(self, name: str) -> Any:
            found = getattr(proton_values.lib, name)
            return (lambda link: found(link) + 1) if name == function else found

    assert not runs._layout_of_links_is_known(proton_values.ffi, Other())


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


@pytest.mark.parametrize("window", [0, 2, 5])
@pytest.mark.parametrize("leaving", [(DETACH,), (END,), (DETACH, END)], ids=["detach", "end", "both"])
def test_what_was_not_written_is_taken_back_for_good(window: int, leaving: tuple[bytes, ...]) -> None:
    peer, link = held_back(window)
    deliveries = send(peer, link, 0, 5)
    assert len(tags_of(peer.hear())) == window
    peer.release(peer.say(open_for(100, window), *leaving))
    assert take_back(link, reversed(deliveries)) == deliveries[window:][::-1]
    frames = peer.hear()
    assert tags_of(frames) == [] and frames[-1].code == (raw.DETACH if leaving == (DETACH,) else raw.END)
    assert peer.engine.unsent_bytes_of_all() == peer.engine.unsettled == 0


def test_what_waits_for_the_next_output_is_taken_back() -> None:
    peer, link = held_back(10)
    deliveries = send(peer, link, 0, 3)
    peer.release(peer.say(DETACH))
    assert take_back(link, reversed(deliveries)) == deliveries[::-1]
    assert [frame.code for frame in peer.hear()] == [raw.DETACH]


def test_a_message_of_which_a_part_was_written_is_not_taken_back() -> None:
    peer, link = held_back(2, max_frame_bytes=512)
    deliveries = send(peer, link, 0, 3, bytes(2_000))
    assert len(peer.heard(raw.TRANSFER)) == 2
    peer.release(peer.say(DETACH))
    assert take_back(link, reversed(deliveries)) == deliveries[:0:-1]


def test_what_was_settled_in_another_way_meanwhile_is_not_taken_back() -> None:
    peer, link = held_back(0)
    deliveries = send(peer, link, 0, 4)
    peer.engine.settle([deliveries[1]], 0)
    peer.release(peer.say(DETACH))
    unsettled = [deliveries[place] for place in (3, 2, 0)]
    assert take_back(link, unsettled) == unsettled


def test_large_payloads_are_forgotten_with_their_messages() -> None:
    peer, link = held_back(0)
    large = bytes(PAYLOAD_BYTES_MIN)
    deliveries = peer.engine.send(link, [b"0", b"1"], [b"x"] * 2, False, [large] * 2)
    peer.hear()
    assert peer.engine.unsent_bytes_of_all() > 2 * PAYLOAD_BYTES_MIN
    peer.release(peer.say(DETACH))
    assert take_back(link, reversed(deliveries)) == deliveries[::-1]
    peer.hear()
    assert peer.engine.unsent_bytes_of_all() == 0


def test_a_peer_with_a_shut_window_hears_of_our_close_when_its_messages_are_taken_back() -> None:
    """Symptom: it heard when it had opened its window for all of them."""
    peer, link = held_back(1)
    deliveries = send(peer, link, 0, 3, bytes(PAYLOAD_BYTES_MIN))
    assert len(tags_of(peer.hear())) == 1
    peer.engine.close_link(link, ErrorCondition("amqp:internal-error"))
    assert take_back(link, reversed(deliveries)) == deliveries[:0:-1]
    assert [frame.code for frame in peer.hear()] == [raw.DETACH]
    assert peer.engine.unsent_bytes_of_all() == 0
    peer.say(open_for(10, 1), DETACH)
    assert peer.hear() == []


def test_what_a_peer_must_get_goes_out_before_it_hears_of_our_close() -> None:
    """Messages that were removed for it: nobody else can get them."""
    peer, link = held_back(0)
    peer.engine.send(link, [b"0"], [b"x"], True, [bytes(PAYLOAD_BYTES_MIN)])
    peer.engine.close_link(link, ErrorCondition("amqp:internal-error"))
    assert take_back(link, ()) == []
    assert peer.hear() == []
    peer.say(open_for(10))
    assert [frame.code for frame in peer.hear()] == [raw.TRANSFER, raw.DETACH]


def test_other_links_of_the_session_go_on() -> None:
    """Proton uses the memory of deliveries again."""
    peer, link = held_back(0)
    other = peer.receiver(1)
    peer.say(open_for(0))
    deliveries = send(peer, link, 0, 20)
    send(peer, other, 100, 2)
    peer.hear()
    peer.release(peer.say(DETACH))
    assert take_back(link, reversed(deliveries)) == deliveries[::-1]
    peer.hear()
    assert send(peer, other, 102, 20)[0] in deliveries
    peer.say(open_for(100))
    frames = peer.hear()
    assert tags_of(frames) == [b"%d" % number for number in range(100, 122)]
    assert [frame.field(1) for frame in frames] == list(range(22)), "numbered in their order"


@pytest.mark.parametrize("seed", range(20))
def test_each_message_is_written_or_taken_back_and_never_both(seed: int) -> None:
    random = Random(seed)
    peer = EnginePeer().open(window=0)
    links: dict[int, tuple[Link, list[Delivery]]] = {}
    tags: dict[Delivery, bytes] = {}
    written: list[bytes] = []
    returned: list[bytes] = []
    sent = 0

    def hear() -> None:
        written.extend(tags_of(peer.hear()))

    def leave(handle: int, *before: bytes) -> None:
        link, deliveries = links.pop(handle)
        if random.random() < 0.3:
            peer.engine.close_link(link, ErrorCondition("amqp:internal-error"))
        else:
            peer.release(peer.say(*before, raw.frame(raw.DETACH, raw.detach_fields(handle))))
        returned.extend(tags[each] for each in take_back(link, reversed(deliveries)))
        hear()
        if link in peer.engine.links():  # we have closed it
            peer.release(peer.say(raw.frame(raw.DETACH, raw.detach_fields(handle))))
            hear()

    for _ in range(200):
        handle = random.randrange(4)
        match random.randrange(5):
            case 0 if handle in links:
                leave(handle, open_for(random.choice([0, 1, 5]), len(written)))
            case 1 if handle not in links:
                (event,) = peer.say(raw.frame(raw.ATTACH, raw.receiver_attach(handle, "queue")))
                assert isinstance(event, LinkAttached)
                peer.engine.accept_link(event.link)
                hear()
                fields = raw.flow_fields(handle, 0, 1_000, received=len(written))
                fields[1] = UInt(0)
                peer.say(raw.frame(raw.FLOW, fields))
                links[handle] = event.link, []
            case 2:
                peer.say(open_for(random.choice([0, 0, 1, 3]), len(written)))
            case 3:
                hear()
            case _ if handle in links:
                link, deliveries = links[handle]
                count = random.randrange(1, 6)
                own = [b"%d" % number for number in range(sent, sent + count)]
                body = bytes(random.choice([10, 10, PAYLOAD_BYTES_MIN]))
                made = peer.engine.send(link, own, [b"x"] * count, False, [body] * count)
                tags.update(zip(made, own, strict=True))
                deliveries += made
                sent += count
    for handle in list(links):
        leave(handle)
    assert sorted([*written, *returned], key=int) == [b"%d" % number for number in range(sent)]
    assert peer.engine.unsent_bytes_of_all() == 0
