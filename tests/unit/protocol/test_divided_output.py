"""Messages of several frames go to the peer from where they are in memory (`protocol/large_output.py`), in
the transfers that proton would write for them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from typing import Any

import pytest

from protocol import engine as engine_module
from protocol import large_output, proton_values, runs
from protocol._runs import lib as native
from protocol.codec import UInt
from protocol.events import ConnectionClosed, ErrorCondition, LinkAttached, Outcome
from protocol.links import Delivery, Link
from tests.support import raw_amqp as raw
from tests.support.engine_frames import detach, disposition, tags
from tests.support.engine_peer import EnginePeer, frames_of, of

FRAME_BYTES = 65_536
KIB_200 = bytes(range(256)) * 800
HEAD = b"twelve bytes"


@dataclass(frozen=True)
class Sent:
    """A delivery as the peer gets it: all of it, or its transfers so far."""

    channel: int
    handle: int
    number: int
    tag: bytes
    settled: bool
    is_whole: bool
    message: bytes


class Reader:
    """Takes what an engine writes, and checks each transfer."""

    def __init__(self, peer: EnginePeer, frame_bytes_max: int = FRAME_BYTES) -> None:
        self.peer, self.frame_bytes_max = peer, frame_bytes_max
        self.seen: list[raw.Frame] = []
        """All transfers so far."""
        self.copied = 0
        """How many bytes were not passed on as they are in memory."""

    @property
    def transfers(self) -> int:
        return len(self.seen)

    def read(self) -> list[Sent]:
        """The deliveries in what is written now, in the order of their first transfers."""
        pieces = self.peer.engine.output()
        self.copied += sum(len(piece) for piece in pieces if not is_stored(piece))
        data = b"".join(pieces)
        offset, before = 8 if data.startswith(b"AMQP") else 0, self.transfers
        for frame in frames_of(data):
            size = int.from_bytes(data[offset : offset + 4], "big")
            assert size <= self.frame_bytes_max
            offset += size
            if frame.code == raw.TRANSFER:
                self.seen.append(frame)
        return deliveries_of(self.seen[before:])


def deliveries_of(transfers: list[raw.Frame]) -> list[Sent]:
    """The deliveries that these transfers belong to, by session and number."""
    each: dict[tuple[int, int], list[raw.Frame]] = {}
    for frame in transfers:
        each.setdefault((frame.channel, frame.field(1)), []).append(frame)
    found = []
    for (channel, number), frames in sorted(each.items(), key=itemgetter(0)):
        assert all(frame.field(5) for frame in frames[:-1]), "only the last transfer has no `more`"
        ((handle, tag, settled),) = {
            (frame.field(0), frame.field(2), bool(frame.field(4))) for frame in frames
        }
        message = b"".join(frame.payload for frame in frames)
        found.append(Sent(channel, handle, number, tag, settled, not frames[-1].field(5), message))
    return found


def is_stored(piece: bytes | memoryview) -> bool:
    """Whether a piece of the output is part of a stored message, instead of a copy."""
    return isinstance(piece, memoryview) and isinstance(piece.obj, bytes)


def send(
    peer: EnginePeer, link: Link, rests: Sequence[bytes], *, first: int = 0, settled: bool = False
) -> list[Delivery]:
    """Send messages of a small front and a rest, in a stored form with a head."""
    fronts = [b"front %d " % number for number in range(first, first + len(rests))]
    numbers = tags(*range(first, first + len(rests)))
    return peer.engine.send(link, numbers, fronts, settled, [HEAD + rest for rest in rests], len(HEAD))


def window(peer: EnginePeer, transfers: int, *, received: int = 0, channel: int = 0) -> None:
    """The peer opens the window of a session for so many transfers after those it has received."""
    fields = raw.flow_fields(received=received)
    fields[1] = UInt(transfers)
    peer.say(raw.frame(raw.FLOW, fields, channel=channel))


def opened(frame_bytes_max: int = FRAME_BYTES) -> tuple[EnginePeer, Reader]:
    peer = EnginePeer().open(max_frame_bytes=frame_bytes_max)
    return peer, Reader(peer, frame_bytes_max)


Scene = Callable[[EnginePeer, Reader], list[Sent]]


def same_as_through_proton(scene: Scene, monkeypatch: pytest.MonkeyPatch, frame_bytes_max: int) -> list[Sent]:
    """What the peer gets in a scene; asserts that it gets the same if proton has all of every message."""
    found = scene(*opened(frame_bytes_max))
    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "largest", lambda _: 0)
        assert scene(*opened(frame_bytes_max)) == found
    return found


# --- what is written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [False, True])
def test_a_message_of_several_frames_is_not_copied(settled: bool) -> None:
    peer, reader = opened()
    link = peer.receiver(settled=settled)
    send(peer, link, [KIB_200, KIB_200[::-1]], settled=settled)
    assert peer.engine.unsent_bytes(link) >= 2 * len(KIB_200)
    found = reader.read()
    assert [each.message for each in found] == [b"front 0 " + KIB_200, b"front 1 " + KIB_200[::-1]]
    assert all(each.is_whole and each.settled == settled for each in found)
    assert reader.transfers == 8 and reader.copied < 1_000
    assert peer.engine.unsent_bytes(link) == peer.engine.unsent_bytes_of_all() == 0
    assert not peer.engine._large_output


MIXES: dict[str, list[int]] = {
    "one": [200 * 1024],
    "mixed": [10, 200 * 1024, 0, 30_000, 60_000, 200 * 1024, 5, 5, 1 << 20, 70_000, 20],
    "around a frame": [65_536 - 128 - 8 + difference for difference in range(-3, 70, 3)],
    "around two frames": [2 * (65_536 - 128) - 8 + difference for difference in range(-3, 4)],
    "around the smallest": [16_384, 16_383, 16_385, 16_384 * 4, 100_000],
    "many small ones first": [1_000] * 300 + [200 * 1024] * 3 + [1_000] * 20,
}


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("frame_bytes_max", [512, 16_512, 17_000, 65_536, 1 << 20, 0xFFFF_FFFF])
@pytest.mark.parametrize("mix", MIXES)
def test_the_peer_gets_what_proton_would_have_written(
    mix: str, frame_bytes_max: int, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests = [Random(number).randbytes(size) for number, size in enumerate(MIXES[mix])]

    def scene(peer: EnginePeer, reader: Reader) -> list[Sent]:
        link = peer.receiver(settled=settled, credit=1_000)
        send(peer, link, rests, settled=settled)
        send(peer, link, rests[::-1], first=len(rests), settled=settled)
        return reader.read()

    found = same_as_through_proton(scene, monkeypatch, frame_bytes_max)
    assert [each.message for each in found] == [
        b"front %d " % number + rest for number, rest in enumerate([*rests, *rests[::-1]])
    ]


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("transfers", [0, 1, 2, 3, 4, 5, 7, 8])
def test_no_transfer_goes_out_that_the_window_has_no_room_for(
    transfers: int, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scene(peer: EnginePeer, reader: Reader) -> list[Sent]:
        link = peer.receiver(settled=settled)
        window(peer, transfers)
        send(peer, link, [KIB_200, b"small", KIB_200], settled=settled)
        reader.read()
        assert reader.transfers == transfers
        assert peer.engine.unsent_bytes(link) >= (3 - transfers / 3) * 65_000 - 65_536
        while reader.transfers < 9:  # one at a time
            before = reader.transfers
            window(peer, 1, received=before)
            reader.read()
            assert reader.transfers == before + 1
        return deliveries_of(reader.seen)

    found = same_as_through_proton(scene, monkeypatch, FRAME_BYTES)
    assert [each.message for each in found] == [
        b"front 0 " + KIB_200,
        b"front 1 small",
        b"front 2 " + KIB_200,
    ]


def test_several_links_and_sessions_share_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def scene(peer: EnginePeer, reader: Reader) -> list[Sent]:
        peer.say(raw.frame(raw.BEGIN, raw.begin_fields(3), channel=1))
        peer.hear()
        links = [peer.receiver(0), peer.receiver(1, settled=True), peer.receiver(0, channel=1)]
        window(peer, 6, channel=0)
        window(peer, 5, channel=1)
        for first in (0, 2, 4):
            for number, link in enumerate(links):
                send(peer, link, [KIB_200, b"x" * 20_000], first=first, settled=number == 1)
        reader.read()
        assert reader.transfers == 11
        for channel, received in ((0, 6), (1, 5)):
            window(peer, 1_000, received=received, channel=channel)
        send(peer, links[2], [KIB_200], first=6)
        reader.read()
        return deliveries_of(reader.seen)

    found = same_as_through_proton(scene, monkeypatch, FRAME_BYTES)
    assert all(each.is_whole for each in found) and len(found) == 19
    assert [each.handle for each in found if each.channel] == [0] * 7


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_sent_and_however_the_windows_open_the_peer_gets_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame_bytes_max = Random(seed).choice((17_000, 20_000, 65_536))

    def scene(peer: EnginePeer, reader: Reader) -> list[Sent]:
        random, count = Random(seed), 0
        peer.say(raw.frame(raw.BEGIN, raw.begin_fields(4), channel=1))
        peer.hear()
        links = [
            (peer.receiver(handle, credit=1_000, settled=settled, channel=channel), settled)
            for channel in (0, 1)
            for handle, settled in enumerate((False, True))
        ]
        for _ in range(60):
            if random.random() < 0.5:
                link, settled = random.choice(links)
                sizes = [random.choice((0, 100, 5_000, 16_384, 40_000, 70_000, 200_000)) for _ in range(3)]
                send(peer, link, [random.randbytes(size) for size in sizes], first=count, settled=settled)
                count += len(sizes)
            elif random.random() < 0.5:
                channel, transfers = random.randrange(2), random.choice((0, 1, 2, 3, 5, 20))
                received = sum(frame.channel == channel for frame in reader.seen)
                window(peer, transfers, received=received, channel=channel)
            else:
                reader.read()
        reader.read()
        for channel in (0, 1):
            received = sum(frame.channel == channel for frame in reader.seen)
            window(peer, 10_000, received=received, channel=channel)
        reader.read()
        assert all(peer.engine.unsent_bytes(link) == 0 for link, _ in links)
        return deliveries_of(reader.seen)

    found = same_as_through_proton(scene, monkeypatch, frame_bytes_max)
    assert found and all(each.is_whole for each in found)


# --- when proton does not write -----------------------------------------------------------------------------


@pytest.mark.parametrize("transfers", [3, 4, 5, 8, 9, 10])
def test_messages_are_divided_if_the_window_has_room_for_all_their_transfers(transfers: int) -> None:
    peer, reader = opened()
    link = peer.receiver()
    window(peer, transfers)
    send(peer, link, [KIB_200, b"small", KIB_200])
    reader.read()
    assert reader.transfers == min(transfers, 9)
    window(peer, 100, received=reader.transfers)
    reader.read()
    copied = sum(transfers < needed for needed in (4, 9)) * len(KIB_200)
    assert copied <= reader.copied < copied + 1_000


def test_what_waits_for_the_window_is_counted_until_it_is_written() -> None:
    peer, reader = opened()
    link = peer.receiver()
    window(peer, 4)
    send(peer, link, [KIB_200])
    send(peer, link, [KIB_200], first=1)
    assert peer.engine.unsent_bytes(link) >= 2 * len(KIB_200)
    assert [each.is_whole for each in reader.read()] == [True]
    unsent = peer.engine.unsent_bytes(link)
    assert len(KIB_200) <= unsent < len(KIB_200) + 100 and peer.engine.unsent_bytes_of_all() == unsent
    window(peer, 100, received=4)
    assert [each.is_whole for each in reader.read()] == [True]
    assert peer.engine.unsent_bytes(link) == peer.engine.unsent_bytes_of_all() == 0


def test_messages_behind_one_that_waits_go_out_after_it() -> None:
    peer, reader = opened()
    link = peer.receiver()
    window(peer, 2)
    send(peer, link, [KIB_200])
    assert [each.is_whole for each in reader.read()] == [False]
    window(peer, 1, received=2)
    send(peer, link, [KIB_200[::-1]], first=1)
    assert [each.is_whole for each in reader.read()] == [False]
    window(peer, 100, received=3)
    send(peer, link, [KIB_200], first=2)
    found = reader.read()
    assert [each.number for each in found] == [0, 1, 2] and all(each.is_whole for each in found)
    assert found[1].message == b"front 1 " + KIB_200[::-1] and found[2].message == b"front 2 " + KIB_200
    assert reader.copied > len(KIB_200), "proton had the first two"


@pytest.mark.parametrize("ending", ["detach", "end", "our close"])
@pytest.mark.parametrize("transfers", [0, 2, 4, 6, 100])
def test_links_that_go_between_messages_leave_nothing_behind(ending: str, transfers: int) -> None:
    peer, reader = opened()
    link = peer.receiver()
    window(peer, transfers)
    send(peer, link, [KIB_200, KIB_200])
    if ending == "our close":  # before the first byte is out
        peer.engine.close_link(link, ErrorCondition("amqp:unauthorized-access", "expired"))
    reader.read()
    assert reader.transfers == min(transfers, 8)
    peer.release(peer.say(raw.frame(raw.END, []) if ending == "end" else detach(0)))
    reader.read()
    peer.hear()
    whole = [each.is_whole for each in deliveries_of(reader.seen)]
    assert whole == {0: [], 2: [False], 4: [True], 6: [True, False], 100: [True, True]}[transfers]
    assert not peer.engine._large_output and link.session.kept_bytes == peer.engine._large_output.bytes == 0


@pytest.mark.parametrize("settled", [False, True])
def test_a_link_that_both_ends_close_before_its_messages_are_out_leaves_nothing_behind(settled: bool) -> None:
    peer, reader = opened()
    link, other = peer.receiver(settled=settled), peer.receiver(1)
    send(peer, link, [KIB_200, KIB_200], settled=settled)
    peer.engine.close_link(link, ErrorCondition("amqp:unauthorized-access", "expired"))
    peer.release(peer.say(detach(0)))
    transfers = peer.heard(raw.TRANSFER)
    assert [bool(frame.field(5)) for frame in transfers] == [True, True, True, False] * 2
    assert b"".join(frame.payload for frame in transfers) == b"front 0 " + KIB_200 + b"front 1 " + KIB_200
    assert not peer.engine._large_output and link.session.kept_bytes == peer.engine._large_output.bytes == 0
    send(peer, other, [KIB_200[::-1]], first=2)
    assert [each.message for each in reader.read()] == [b"front 2 " + KIB_200[::-1]]


def test_a_new_link_gets_its_messages_after_one_that_went_in_the_middle() -> None:
    peer, reader = opened()
    link = peer.receiver()
    window(peer, 5)
    send(peer, link, [KIB_200, KIB_200])
    reader.read()
    peer.release(peer.say(detach(0)))
    peer.hear()
    again = peer.receiver(1)
    window(peer, 1_000, received=5)
    send(peer, again, [KIB_200[::-1]], first=5)
    (found,) = reader.read()
    assert found.message == b"front 5 " + KIB_200[::-1] and found.is_whole


def test_deliveries_of_several_frames_are_settled_like_others() -> None:
    peer, reader = opened()
    link = peer.receiver()
    sent = send(peer, link, [KIB_200, b"small", KIB_200])
    assert len(set(sent)) == 3 and [each.number for each in reader.read()] == [0, 1, 2]
    peer.say(disposition(0, 2, raw.outcome(raw.ACCEPTED)))
    peer.engine.settle(sent, Outcome.ACCEPTED)
    (settled,) = peer.heard(raw.DISPOSITION)
    assert (settled.field(1), settled.field(2), settled.field(3)) == (0, 2, True)
    assert peer.engine.credit(link) == 97


# --- what proton counts otherwise ---------------------------------------------------------------------------


def flow(
    peer: EnginePeer, *, transfers: int = 1_000, received: int = 0, credit: int = 0, drain: bool = False
) -> None:
    """The peer says how much it takes on session 0 and its first link, of whose messages it has none."""
    fields = raw.flow_fields(0, 0, credit, drain=drain, received=received)
    fields[1] = UInt(transfers)
    peer.say(raw.frame(raw.FLOW, fields))


def test_nothing_is_divided_before_begin_and_attach_are_written() -> None:
    """Symptom: a client that says everything at once, and reads large messages, got a close."""
    peer, fields = EnginePeer(), raw.open_fields(max_frame_bytes=FRAME_BYTES)
    reader = Reader(peer)
    says = [raw.frame(raw.OPEN, fields), raw.frame(raw.BEGIN, raw.begin_fields())]
    says += [raw.frame(raw.ATTACH, raw.receiver_attach(0, "queue"))]
    says += [raw.frame(raw.FLOW, raw.flow_fields(0, 0, 10))]
    link = of(peer.say(raw.AMQP_HEADER, *says), LinkAttached)[0].link
    peer.engine.accept_link(link)
    send(peer, link, [KIB_200])  # before our open
    peer.engine.open({})
    found = reader.read()
    assert [each.message for each in found] == [b"front 0 " + KIB_200] and found[0].is_whole
    assert not of(peer.engine.take_events(), ConnectionClosed)


def test_credit_that_the_peer_has_withdrawn_is_not_given_back() -> None:
    """Symptom: a drain in that state let the broker count more credit than there was, and the connection was
    closed with the next large messages."""
    peer, reader = opened()
    link = peer.receiver(credit=0)
    flow(peer, transfers=0, credit=5)
    send(peer, link, [b"small", b"small"])
    reader.read()
    flow(peer, transfers=0, credit=0, drain=True)
    assert peer.engine.credit(link) == 0 and peer.engine.draining(link)
    peer.engine.drained(link)
    assert reader.read() == []
    flow(peer, credit=5)
    assert peer.engine.credit(link) == 3, "two of the five are used"
    assert [each.number for each in reader.read()] == [0, 1]
    send(peer, link, [KIB_200] * 3, first=2)
    found = reader.read()
    assert [each.number for each in found] == [2, 3, 4] and all(each.is_whole for each in found)
    assert not of(peer.engine.take_events(), ConnectionClosed)


@pytest.mark.parametrize("is_read", [False, True])
def test_messages_for_which_proton_has_no_credit_wait(is_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Symptom: the connection was closed after two drains in one turn."""

    def scene(peer: EnginePeer, reader: Reader) -> list[Sent]:
        link = peer.receiver(credit=0)
        flow(peer, credit=5, drain=True)
        peer.engine.drained(link)
        flow(peer, credit=8, drain=True)
        assert peer.engine.credit(link) == 3
        if is_read:  # what goes out gives all eight back
            reader.read()
        send(peer, link, [KIB_200])
        send(peer, link, [KIB_200], first=1)
        found = reader.read()
        assert not of(peer.engine.take_events(), ConnectionClosed)
        return found

    found = same_as_through_proton(scene, monkeypatch, FRAME_BYTES)
    assert [each.is_whole for each in found] == ([] if is_read else [True, True])


def test_a_drain_is_answered_after_the_messages_for_it() -> None:
    peer, reader = opened()
    link = peer.receiver(credit=0)
    flow(peer, credit=5, drain=True)
    send(peer, link, [KIB_200])
    peer.engine.drained(link)
    flow(peer, credit=7, drain=True)
    send(peer, link, [KIB_200], first=1)
    codes = [frame.code for frame in frames_of(b"".join(peer.engine.output()))]
    assert codes == [raw.TRANSFER] * 8 + [raw.FLOW]
    flow(peer, received=8, credit=9)
    assert peer.engine.credit(link) and not peer.engine.draining(link)
    send(peer, link, [KIB_200], first=2)
    assert [each.is_whole for each in reader.read()] == [True]
    assert reader.copied < 1_000, "the drain is over"


def test_an_answer_to_a_drain_is_not_forgotten_while_the_window_is_shut() -> None:
    """Symptom: large messages on another link had proton write too early, and the answer never came."""
    peer, reader = opened()
    link, other = peer.receiver(credit=0), peer.receiver(1)
    flow(peer, transfers=0, credit=5, drain=True)
    send(peer, link, [b"small"])
    peer.engine.drained(link)
    send(peer, other, [KIB_200], first=1)
    window(peer, 100)
    assert [frame.code for frame in peer.hear()] == [raw.TRANSFER] * 5 + [raw.FLOW]
    send(peer, other, [KIB_200], first=2)
    assert [each.is_whole for each in reader.read()] == [True] and reader.copied < 1_000


def test_what_proton_would_write_is_known_for_each_state_of_a_link() -> None:
    peer = EnginePeer().open()
    says = peer.say(raw.frame(raw.ATTACH, raw.receiver_attach(0, "queue")))
    link = of(says, LinkAttached)[0].link
    flow(peer, transfers=77, credit=12)
    peer.engine.accept_link(link)
    window_of, credit_of = native.sessions_window, native.sessions_credit
    assert window_of(link.session.pn) == 77 and credit_of(link.pn) == 0, "the attach is not written"
    peer.hear()
    assert window_of(link.session.pn) == 77 and credit_of(link.pn) == 12
    peer.engine.send(link, tags(0, 1), [b"x"] * 2, False)
    assert peer.engine.credit(link) == 10 and credit_of(link.pn) == 12
    peer.hear()
    assert window_of(link.session.pn) == 75 and credit_of(link.pn) == 10
    flow(peer, transfers=0, received=2, credit=1)  # less than was sent
    assert window_of(link.session.pn) == 0 and credit_of(link.pn) == 0
    peer.engine.close_link(link, ErrorCondition("amqp:not-found", "gone"))
    flow(peer, received=2, credit=50)
    peer.hear()
    assert credit_of(link.pn) == 0


@pytest.mark.parametrize("field", ["channel", "handle", "window", "credit"])
def test_a_layout_of_links_that_is_not_known_is_noticed(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs._layout_of_links_is_known(proton_values.ffi, proton_values.lib)
    monkeypatch.setitem(runs._PEER, field, runs._PEER[field] + 1)
    assert not runs._layout_of_links_is_known(proton_values.ffi, proton_values.lib)


@pytest.mark.parametrize(("before", "after"), [(65_536, 20_000), (20_000, 65_536)])
@pytest.mark.parametrize("settled", [False, True])
def test_a_message_keeps_the_frames_that_it_was_divided_for(before: int, after: int, settled: bool) -> None:
    """Symptom: a second open, with other frames, cut off what had been sent before; or writing failed."""
    peer, reader = opened(before)
    link = peer.receiver(settled=settled)
    send(peer, link, [KIB_200], settled=settled)
    peer.say(raw.frame(raw.OPEN, raw.open_fields(max_frame_bytes=after)))
    send(peer, link, [KIB_200], first=1, settled=settled)
    found = reader.read()
    assert found[0].message == b"front 0 " + KIB_200 and found[0].is_whole


# --- bounds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame_bytes_max", [17_000, 65_536])
def test_a_message_of_100_mib_takes_no_second_copy(frame_bytes_max: int) -> None:
    peer, stored = EnginePeer().open(max_frame_bytes=frame_bytes_max), bytes(100 << 20)
    link = peer.receiver()
    tracemalloc.start()
    try:
        peer.engine.send(link, tags(0), [b"front"], False, [stored], 0)
        pieces = peer.engine.output()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10 << 20 and peer.engine.unsent_bytes_of_all() == 0
    assert sum(
        len(piece) for piece in pieces if isinstance(piece, memoryview) and piece.obj is stored
    ) == len(stored)
    frames = frames_of(b"".join(pieces))
    assert len(frames) == -(-(len(stored) + 5) // (frame_bytes_max - runs.TRANSFER_BYTES_MAX))
    assert sum(len(frame.payload) for frame in frames) == len(stored) + 5


def test_parts_cost_no_look_at_what_other_sessions_hold_back() -> None:
    """Symptom: with 50,000 small messages that wait for the window of one session, five large ones on another
    took 75 ms instead of 4."""
    peer, reader = opened()
    peer.say(raw.frame(raw.BEGIN, raw.begin_fields(0), channel=1))
    peer.hear()
    held, link = peer.receiver(0, channel=1), peer.receiver(0)
    window(peer, 0, channel=1)
    written: list[str] = []
    peer.engine.send(held, tags(*range(10)), [b"x" * 90] * 10, False)
    with pytest.MonkeyPatch.context() as patch:
        count_writes(patch, written)
        for first in range(1, 50, 5):
            send(peer, link, [KIB_200] * 5, first=first)
    assert written == ["all"], "proton looks at what is held back once, instead of for each part"
    assert len(reader.read()) == 50
    window(peer, 1_000, channel=1)
    assert [each.channel for each in reader.read()] == [1] * 10
    copied = reader.copied
    send(peer, held, [b"x" * 1_000] * 2, first=100)  # more than was held back
    send(peer, link, [KIB_200], first=102)
    assert all(each.is_whole for each in reader.read()) and reader.copied < copied + 3_000


def count_writes(patch: pytest.MonkeyPatch, written: list[str]) -> None:
    """Note each time that proton is to write in the middle of a turn: `all`, or parts of messages."""
    write, send_parts = proton_values.written_by, runs.send_parts

    def counted(transport: object) -> tuple[list[bytes], bool]:
        written.append("all")
        return write(transport)

    def parts(*arguments: Any) -> tuple[list[Delivery], bytes, bool]:
        written.append("parts")
        return send_parts(*arguments)

    patch.setattr(large_output, "written_by", counted)
    patch.setattr(runs, "send_parts", parts)


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_freed_connection_keeps_no_payloads(is_stuck: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, reader = opened()
    link = peer.receiver()
    window(peer, 1)
    if is_stuck:
        monkeypatch.setattr(large_output, "_window", lambda _: 100)
        send(peer, link, [KIB_200])
        reader.read()
    else:
        window(peer, 100)
        send(peer, link, [KIB_200])
        peer.engine.receive_eof()
    output = peer.engine._large_output
    assert output
    peer.engine.free_in_steps()  # not run
    assert not output and output.bytes == output.taken_bytes == link.session.kept_bytes == 0


def test_proton_keeps_no_memory_of_messages_of_several_frames() -> None:
    peer, reader = opened()
    link = peer.receiver(credit=1_000)
    for number in range(100):
        send(peer, link, [KIB_200], first=number)
        reader.read()
    assert reader.copied < 100 * 1_000 and not peer.engine._untrimmed


def test_small_frames_go_through_proton() -> None:
    peer, reader = opened(16_000)
    send(peer, peer.receiver(), [KIB_200])
    assert [each.is_whole for each in reader.read()] == [True]
    assert reader.copied > len(KIB_200), "references to less than 16 KiB cost more than copies"


def test_a_front_larger_than_a_frame_goes_through_proton_with_its_message() -> None:
    peer, reader = opened(17_000)
    link = peer.receiver()
    fronts = [b"f" * size for size in (16_871, 16_872, 40_000)]
    peer.engine.send(link, tags(0, 1, 2), fronts, False, [KIB_200] * 3, 0)
    assert [each.message for each in reader.read()] == [front + KIB_200 for front in fronts]


def test_what_proton_had_to_write_before_a_divided_message_counts_as_unsent() -> None:
    peer, reader = opened()
    link = peer.receiver(credit=1_000)
    send(peer, link, [b"x" * 1_000] * 100)
    send(peer, link, [KIB_200], first=100)
    assert peer.engine.unsent_bytes(link) > 100_000 + len(KIB_200)
    assert peer.engine.unsent_bytes_of_all() > 100_000 + len(KIB_200)
    assert [each.number for each in reader.read()] == list(range(101))
    assert peer.engine.unsent_bytes(link) == peer.engine.unsent_bytes_of_all() == 0


def test_a_peer_that_needs_all_fields_gets_them_in_each_transfer() -> None:
    peer, reader = opened()
    link = peer.receiver()
    peer.engine.pads_frames = True
    send(peer, link, [KIB_200, b"small"])
    assert [each.message for each in reader.read()] == [b"front 0 " + KIB_200, b"front 1 small"]
    send(peer, link, [KIB_200], first=2)
    assert all(len(frame.fields) == 11 for frame in frames_of(b"".join(peer.engine.output())))


# --- what cannot happen -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("transfers", [0, 1, 2])
def test_if_proton_does_not_write_a_part_the_connection_is_closed(
    transfers: int, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, reader = opened()
    link = peer.receiver(settled=settled)
    window(peer, transfers)
    monkeypatch.setattr(large_output, "_window", lambda _: 100)
    send(peer, link, [KIB_200, b"small", KIB_200], settled=settled)
    again = send(peer, link, [b"small", KIB_200], first=3, settled=settled)
    assert len(again) == (0 if settled else 2)
    found = reader.read()
    assert peer.engine.has_events
    assert of(peer.engine.take_events(), ConnectionClosed)[0].error is not None
    assert (
        b"".join(each.message for each in found) == (b"front 0 " + KIB_200)[: transfers * (FRAME_BYTES - 128)]
    )
    assert not any(each.is_whole for each in found) and peer.engine.finished
    window(peer, 100, received=transfers)
    assert reader.read() == []
    peer.engine.settle(again, Outcome.ACCEPTED)
    assert reader.read() == []


def test_a_connection_that_is_closed_gets_no_messages_of_several_frames() -> None:
    peer, reader = opened()
    link = peer.receiver()
    peer.engine.close()
    send(peer, link, [KIB_200])
    assert all(each.number == 0 for each in reader.read()) and peer.engine.finished
    send(peer, link, [KIB_200], first=1)
    assert reader.read() == []


def test_the_native_loop_reports_a_part_that_is_not_written() -> None:
    peer, _ = opened()
    link = peer.receiver()
    window(peer, 1)
    transport = peer.engine._transport
    sent, written, is_complete = runs.send_parts(
        transport, link.pn, tags(0, 1), [b"a", b"b"], False, [b"part", b"whole"], [3, 1]
    )
    assert len(sent) == 2 and not is_complete
    assert [frame.payload for frame in frames_of(written)] == [b"apart"]
