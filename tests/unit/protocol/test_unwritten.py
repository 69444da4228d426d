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
from tests.support.engine_peer import EnginePeer, of
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


@pytest.mark.parametrize(
    "function", ["pn_link_unsettled", "pn_link_credit", "pn_link_queued", "pn_session_outgoing_bytes"]
)
def test_counts_of_a_link_that_are_not_where_they_are_expected_are_noticed(function: str) -> None:
    class Other:
        """A proton that counts otherwise."""

        def __getattr__(self, name: str) -> Any:
            found = getattr(proton_values.lib, name)
            return (lambda counted: found(counted) + 1) if name == function else found

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


# --- what proton counts -------------------------------------------------------------------------------------


def unsent(link: Link) -> int:
    """The bytes of the link's session that proton counts as unsent."""
    return int(proton_values.lib.pn_session_outgoing_bytes(link.session.pn))


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("closed_by_us", [True, False])
def test_what_is_never_written_of_a_link_that_has_ended_is_unsent_no_longer(
    settled: bool, window: int, closed_by_us: bool
) -> None:
    """Symptom: proton went on counting it, so that later links of the session got nothing. Here the message
    is removed for the peer, or partly written, so that it is not taken back."""
    peer, link = held_back(window)
    peer.engine.send(link, [b"0"], [b"x"], settled, [bytes(1_000_000)])
    assert len(peer.heard(raw.TRANSFER)) == window
    assert unsent(link) > 800_000
    if closed_by_us:
        peer.engine.close_link(link, ErrorCondition("amqp:internal-error"))
        assert peer.hear() == [] and unsent(link) > 800_000, "it waits for the window"
    peer.release(peer.say(DETACH))
    assert [frame.code for frame in peer.hear()] == [raw.DETACH]
    assert unsent(link) == peer.engine.unsent_bytes_of_all() == 0
    other = peer.receiver(1)
    send(peer, other, 1, 1, bytes(1_000_000))
    peer.say(open_for(100, window))
    frames = peer.heard(raw.TRANSFER)
    assert sum(len(frame.payload) for frame in frames) == 1_000_000
    assert frames[0].field(1) == (1 if window else 0), "numbered after what was begun"
    assert unsent(other) == 0


def test_what_a_peer_takes_with_its_detach_is_written_before_the_answer() -> None:
    """As far as its window goes, of a message that was removed for it."""
    peer, link = held_back(1)
    peer.engine.send(link, [b"0", b"1"], [b"x"] * 2, True, [bytes(100_000)] * 2)
    assert len(peer.heard(raw.TRANSFER)) == 1
    peer.release(peer.say(open_for(2, 1), DETACH))
    frames = peer.hear()
    assert [frame.code for frame in frames] == [raw.TRANSFER, raw.TRANSFER, raw.DETACH]
    assert [frame.field(5) for frame in frames[:2]] == [None, True], "the second message is cut off"
    assert unsent(link) == 0


def test_what_waits_on_other_links_is_still_counted() -> None:
    peer, link = held_back(0)
    other = peer.receiver(1)
    peer.say(open_for(0))
    for each, size in ((link, 5_000), (other, 7_000)):
        peer.engine.send(each, [b"0"], [bytes(size)], True)
    peer.release(peer.say(DETACH))
    peer.hear()
    assert unsent(other) == 7_000
    peer.say(open_for(10))
    assert [len(frame.payload) for frame in peer.heard(raw.TRANSFER)] == [7_000] and unsent(other) == 0


class Course:
    """A random course of sending, ending and opening the window on one session, and a peer that counts what
    it has not got of what each link was given."""

    def __init__(self, seed: int, max_frame_bytes: int) -> None:
        self.random = Random(seed)
        self.peer = EnginePeer().open(window=0, max_frame_bytes=max_frame_bytes)
        self.is_exact = max_frame_bytes < PAYLOAD_BYTES_MIN
        """Whether proton gets all payloads, and no references to them."""
        self.links: dict[int, Link] = {}
        self.ours: dict[int, Link] = {}
        """Those that we have closed, until the peer confirms."""
        self.unsettled: dict[int, dict[Delivery, int]] = {}
        """By handle, and the bytes of each."""
        self.waiting: dict[int, int] = {}
        """By handle, the bytes that were given to the link and have not come, while it may still write."""
        self.begun: set[int] = set()
        """The handles of links of which a message has not come whole."""
        self.handles: dict[int, int] = {}
        """By our handle, that of the peer."""
        self.session: Link | None = None
        self.transfers = self.numbered = self.sent = self.attached = 0

    def step(self) -> None:
        handle, random = self.random.randrange(4), self.random
        match random.randrange(7):
            case 0 if handle in self.links:
                link = self.links.pop(handle)
                if random.random() < 0.4:
                    self.peer.engine.close_link(link, ErrorCondition("amqp:internal-error"))
                    self.ours[handle] = link
                    self.take_back(handle, link)
                else:
                    before = [self.flow()] if random.random() < 0.3 else []
                    self.detach(handle, *before)
                    self.take_back(handle, link)
                    self.hear(handle)
            case 1 if handle in self.ours:
                self.detach(handle, *([self.flow()] if random.random() < 0.3 else []))
                self.hear(handle)
                del self.ours[handle]
            case 2 if handle not in self.waiting:
                self.attach(handle)
            case 3:
                self.peer.say(self.flow())
            case 4:
                self.hear()
            case _ if handle in self.links:
                self.send(handle)
        if self.session is not None and self.is_exact:
            assert unsent(self.session) == sum(self.waiting.values())

    def attach(self, handle: int) -> None:
        self.attached += 1
        fields = raw.receiver_attach(handle, "queue", f"{self.attached}")
        (event,) = of(self.peer.say(raw.frame(raw.ATTACH, fields)), LinkAttached)
        self.peer.engine.accept_link(event.link)
        self.links[handle] = self.session = event.link
        self.unsettled[handle], self.waiting[handle] = {}, 0
        self.hear(attached=handle)
        fields = raw.flow_fields(handle, 0, 1_000, received=self.transfers)
        fields[1] = UInt(0)
        self.peer.say(raw.frame(raw.FLOW, fields))

    def send(self, handle: int) -> None:
        count, settled = self.random.randrange(1, 4), self.random.random() < 0.5
        tags = [b"%d" % number for number in range(self.sent, self.sent + count)]
        bodies = [bytes(self.random.choice([0, 10, 2_000, 70_000])) for _ in tags]
        sizes = [1 + len(body) for body in bodies]
        made = self.peer.engine.send(self.links[handle], tags, [b"x"] * count, settled, bodies)
        if not settled:
            self.unsettled[handle].update(zip(made, sizes, strict=True))
        self.sent += count
        self.waiting[handle] += sum(sizes)

    def flow(self) -> bytes:
        return open_for(self.random.choice([0, 0, 1, 3, 30]), self.transfers)

    def take_back(self, handle: int, link: Link) -> None:
        if self.random.random() < 0.5:
            unsettled = self.unsettled[handle]
            self.waiting[handle] -= sum(map(unsettled.__getitem__, take_back(link, reversed(unsettled))))

    def detach(self, handle: int, *before: bytes) -> None:
        self.peer.release(self.peer.say(*before, raw.frame(raw.DETACH, raw.detach_fields(handle))))

    def hear(self, ended: int | None = None, *, attached: int | None = None) -> None:
        """Hear what the engine writes; `ended`: a link that the peer has detached."""
        for frame in self.peer.hear():
            if frame.code == raw.ATTACH:
                assert attached is not None
                self.handles[frame.field(1)] = attached
            if frame.code not in (raw.TRANSFER, raw.DETACH):
                continue
            handle = self.handles[frame.field(0)]
            if frame.code == raw.TRANSFER:
                self.transfers += 1
                self.waiting[handle] -= len(frame.payload)
                if handle not in self.begun:
                    assert frame.field(1) == self.numbered
                    self.numbered += 1
                (self.begun.add if frame.field(5) else self.begun.discard)(handle)
            elif handle == ended:
                del self.waiting[ended]
                self.begun.discard(ended)
                ended = None
            else:
                assert not self.waiting[handle], "the peer hears of its end behind all that it is sent"
                assert handle not in self.begun
        if ended is not None:  # our own detach was written before
            assert self.waiting.pop(ended) == 0


@pytest.mark.parametrize("seed", range(300))
def test_proton_counts_what_may_still_be_written_and_nothing_else(seed: int) -> None:
    course = Course(seed, 512 if seed % 3 else 65_536)
    for _ in range(120):
        course.step()
    for handle in [*course.links, *course.ours]:
        course.detach(handle)
        course.hear(handle)
    assert course.session is not None and unsent(course.session) == 0
    assert course.peer.engine.unsent_bytes_of_all() == 0
