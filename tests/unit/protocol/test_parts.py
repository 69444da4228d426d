"""What a peer's sessions and links take, and how the engine's user bounds it."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.codec import Symbol, UInt, ULong, UShort
from protocol.engine import Engine
from protocol.events import ConnectionClosed, ErrorCondition, Event, LinkAttached, LinkDetached
from protocol.limits import DECODE_ERROR, RESOURCE_LIMIT
from protocol.parts import VALUES_PER_PART, Parts
from tests.support import raw_amqp as raw
from tests.support.engine_peer import EnginePeer, frames_of, of

NULLS = 1_800


class Bounded:
    """An engine whose peer may have so many parts."""

    def __init__(self, most: float = 1_000, at_once: float = 1_000) -> None:
        self.most, self.counted, self.objects = most, 0, 0
        self.parts = Parts(self._admit, at_once)
        self.engine = Engine(
            container_id="broker",
            max_frame_bytes=1 << 18,
            channel_max=255,
            idle_timeout_ms=0,
            parts=self.parts,
        )
        self.say(raw.AMQP_HEADER, raw.frame(raw.OPEN, raw.open_fields()), begin(0))
        self.engine.open()
        self.engine.output()

    def _admit(self, parts: int, objects: int) -> bool:
        if self.counted + parts > self.most:
            return False
        self.counted += parts
        self.objects += objects
        return True

    def say(self, *frames: bytes) -> list[Event]:
        events = self.engine.receive(b"".join(frames))
        for event in events:
            if isinstance(event, LinkDetached):
                self.engine.release_link(event.link)
        return events


def begin(channel: int) -> bytes:
    return raw.frame(raw.BEGIN, raw.begin_fields(), channel=channel)


def attach(handle: int, values: int = 0) -> bytes:
    fields: list[Any] = raw.receiver_attach(handle, "queue")
    if values:
        fields += [None] * (13 - len(fields)) + [{Symbol("many"): [None] * values}]
    return raw.frame(raw.ATTACH, fields)


def links(events: list[Event]) -> int:
    return sum(isinstance(event, LinkAttached) for event in events)


def with_unfinished_message(handle: int) -> Bounded:
    """A peer with a sender on this handle, a message of which is unfinished: the session's frames are then
    looked at more closely."""
    peer = Bounded()
    sender: list[Any] = raw.sender_attach(handle, "queue")
    sender[0] = "sender"
    (attached,) = [each for each in peer.say(raw.frame(raw.ATTACH, sender)) if isinstance(each, LinkAttached)]
    peer.engine.accept_link(attached.link)
    peer.engine.grant(attached.link, 10)
    peer.engine.output()
    transfer: list[Any] = [UInt(handle), UInt(0), b"t", UInt(0), False, True]
    peer.say(raw.frame(raw.TRANSFER, transfer, b"\0Su\xa0\1a"))
    return peer


def test_sessions_and_links_count_until_they_end() -> None:
    peer = Bounded()
    peer.say(begin(1), begin(2), attach(0), attach(1), attach(2))
    assert peer.parts.count == peer.counted == 6
    peer.say(raw.frame(raw.DETACH, [UInt(0), True]), raw.frame(raw.END, [], channel=2))
    assert peer.parts.count == peer.counted == 4
    peer.say(raw.frame(raw.END, []), raw.frame(raw.END, [], channel=1))
    assert peer.parts.count == peer.counted == 0


def test_a_link_that_the_broker_has_closed_counts_until_the_peer_has_detached_it() -> None:
    peer = Bounded()
    (attached,) = [event for event in peer.say(attach(0)) if isinstance(event, LinkAttached)]
    peer.engine.refuse_link(attached.link, ErrorCondition("amqp:not-found", ""))
    peer.engine.output()
    assert peer.counted == 2
    peer.say(raw.frame(raw.DETACH, [UInt(0), True]))
    assert peer.counted == 1


def test_a_link_that_the_broker_has_closed_counts_no_more_when_the_peer_has_ended_its_session() -> None:
    peer = Bounded()
    (attached,) = [event for event in peer.say(attach(0)) if isinstance(event, LinkAttached)]
    peer.engine.refuse_link(attached.link, ErrorCondition("amqp:not-found", ""))
    peer.engine.output()
    peer.say(raw.frame(raw.END, []))
    assert peer.parts.count == peer.counted == peer.parts.objects == peer.objects == 0


def test_values_that_are_kept_with_a_link_count() -> None:
    """Symptom: 1,800 links, 30 on each connection, took 230 MiB."""
    peer = Bounded()
    peer.say(attach(0, values=NULLS))
    assert peer.counted - 1 == pytest.approx(1 + NULLS / VALUES_PER_PART, abs=1)
    peer.say(raw.frame(raw.DETACH, [UInt(0), True]))
    assert peer.counted == 1


def test_values_are_no_sessions_and_links() -> None:
    """Symptom: memory that proton never took for values counted as freed when their links had gone."""
    peer = Bounded()
    peer.say(attach(0, values=NULLS), attach(1))
    assert peer.parts.count > 20 and peer.parts.objects == peer.objects == 3
    peer.say(raw.frame(raw.DETACH, [UInt(0), True]), raw.frame(raw.END, []))
    assert peer.parts.count == peer.counted == peer.parts.objects == peer.objects == 0


def test_a_begin_with_many_values_is_one_part_which_ends_with_the_session() -> None:
    """Symptom: the parts of its values, which proton does not keep, were counted for good."""
    peer = Bounded()
    fields: list[Any] = raw.begin_fields()
    fields += [None] * (7 - len(fields)) + [{Symbol("many"): [None] * NULLS}]
    for _ in range(20):
        peer.say(raw.frame(raw.BEGIN, fields, channel=1))
        assert peer.parts.count == 2
        peer.say(raw.frame(raw.END, [], channel=1))
    assert peer.parts.count == peer.counted == 1


def test_a_large_attach_counts_by_its_values_and_not_by_its_bytes() -> None:
    """Symptom: a receiver with a selector of 2,000 characters counted as a crowd."""
    peer = Bounded()
    fields: list[Any] = raw.receiver_attach(0, "queue")
    fields += [None] * (13 - len(fields)) + [{Symbol("selector"): "x" * 12_000}]
    said = raw.frame(raw.ATTACH, fields)
    assert links([event for at in range(0, len(said), 1_000) for event in peer.say(said[at : at + 1_000])])
    assert peer.counted == 2


@pytest.mark.parametrize("handle", [True, ULong(7), "x"])
def test_a_link_whose_handle_is_of_another_type_counts_as_well(handle: object) -> None:
    """Symptom: proton takes such handles, and while a message of the session was unfinished, such links were
    not counted."""
    peer = with_unfinished_message(handle=0)
    fields: list[Any] = raw.receiver_attach(1, "queue")
    fields[1] = handle
    found = links(peer.say(raw.frame(raw.ATTACH, fields)))
    assert peer.parts.count == peer.counted == 2 + 1 and found == 1


def cut_list(code: int, fields: int) -> bytes:
    """A performative whose list says that it has so many fields, and holds four."""
    body = (
        bytes.fromhex("0200 0001 0053")
        + bytes((code,))
        + bytes((0xC0, 0x0A, fields))
        + bytes.fromhex("40 43 70 00001000 5264")
    )
    return (4 + len(body)).to_bytes(4, "big") + body


NAMED_ONLY = raw.frame(raw.ATTACH, ["a link"])
"""An attach that ends after the name. Proton takes the handle to be 0."""


@pytest.mark.parametrize(
    "said",
    [cut_list(raw.BEGIN, 8), cut_list(raw.BEGIN, 200), NAMED_ONLY],
    ids=["begin", "long begin", "attach"],
)
def test_what_cannot_be_read_begins_no_session_and_no_link(said: bytes) -> None:
    """Symptom: proton takes such frames, and nobody had counted them. The kernel ended the broker, which was
    short of memory, when clients began thousands of sessions or links in this way."""
    peer = with_unfinished_message(handle=9)
    before = peer.parts.count
    events = peer.say(said, attach(1), attach(2))
    (closed,) = [each for each in events if isinstance(each, ConnectionClosed)]
    assert closed.error is not None and closed.error.condition == DECODE_ERROR
    assert links(events) == 0 and peer.parts.count == peer.counted == before
    assert peer.engine.session_count == 1 and peer.engine.link_count == 1


UNCOUNTED = {
    "list8": "c00e 00 600000 43 70 00001000 5264 52ff",
    "list32": "d000000011 00000000 600000 43 70 00001000 5264 52ff",
    "too few": "c00e 04 600000 43 70 00001000 5264 52ff",
    "no list": "40",
}
"""Lists of a begin with a remote-channel. Proton goes by their size; they say that they have fewer fields."""


@pytest.mark.parametrize("what", UNCOUNTED)
@pytest.mark.parametrize("cut", [1, 1 << 20])
def test_a_begin_whose_list_says_another_number_of_fields_ends_the_connection(what: str, cut: int) -> None:
    """Symptom: it answered one of ours unseen, and the process died."""
    peer = EnginePeer().open()
    peer.receiver(1, credit=10)
    body = bytes.fromhex("0200 0000 0053") + bytes((raw.BEGIN,)) + bytes.fromhex(UNCOUNTED[what])
    said = (4 + len(body)).to_bytes(4, "big") + body + raw.frame(raw.END, [])
    events = [event for at in range(0, len(said), cut) for event in peer.say(said[at : at + cut])]
    (closed,) = of(events, ConnectionClosed)
    assert closed.error is not None and closed.error.condition == DECODE_ERROR
    peer.heard(raw.CLOSE)
    peer.engine.receive_eof()
    peer.engine.output()
    peer.engine.free()


@pytest.mark.parametrize("channel", [0, 5])
@pytest.mark.parametrize("cut", [1, 1 << 20])
def test_a_begin_that_answers_one_of_ours_ends_the_connection(channel: int, cut: int) -> None:
    """Symptom: after such a begin, an end and the end of the connection, the process died in pn_link_free."""
    peer = EnginePeer().open()
    peer.receiver(1, credit=10)
    fields = raw.begin_fields()
    fields[0] = UShort(0)
    said = raw.frame(raw.BEGIN, fields, channel=channel) + raw.frame(raw.END, [], channel=channel)
    events = [event for at in range(0, len(said), cut) for event in peer.say(said[at : at + cut])]
    (closed,) = of(events, ConnectionClosed)
    assert closed.error is not None and closed.error.condition == "amqp:not-allowed"
    peer.heard(raw.CLOSE)
    peer.engine.receive_eof()
    peer.engine.output()
    peer.engine.free()


def test_values_of_an_open_count() -> None:
    peer = Bounded()
    parts = Parts(peer._admit)
    engine = Engine(
        container_id="broker", max_frame_bytes=1 << 18, channel_max=255, idle_timeout_ms=0, parts=parts
    )
    opening = raw.frame(
        raw.OPEN, [*raw.open_fields(), *[None] * (9 - len(raw.open_fields())), {Symbol("a"): [None] * NULLS}]
    )
    engine.receive(raw.AMQP_HEADER + opening)
    assert parts.count == pytest.approx(NULLS / VALUES_PER_PART, abs=1)


def test_a_frame_cut_at_any_byte_counts_once() -> None:
    peer, said = Bounded(), attach(0, values=300) + begin(1)
    found = links([event for at in range(len(said)) for event in peer.say(said[at : at + 1])])
    whole = Bounded()
    whole.say(said)
    assert found == 1 and peer.counted == whole.counted > 6


@pytest.mark.parametrize(
    "more", [begin(1), attach(1), attach(1, values=NULLS)], ids=["begin", "attach", "values"]
)
def test_more_parts_than_the_user_admits_end_the_connection_after_what_came_before(more: bytes) -> None:
    peer = Bounded(most=2)
    events = peer.say(attach(0), more, attach(2))
    assert links(events) == 1 and peer.counted == 2
    (closed,) = [event for event in events if isinstance(event, ConnectionClosed)]
    assert closed.error is not None and closed.error.condition == RESOURCE_LIMIT
    assert raw.CLOSE in [frame.code for frame in frames_of(b"".join(map(bytes, peer.engine.output())))]


def test_only_so_many_begin_before_proton_has_them() -> None:
    """Symptom: memory in use did not show yet what a read of 128 KiB would take, such as 9 MiB."""
    peer = Bounded(at_once=32)
    counts = [links(peer.say(*map(attach, range(100))))]
    assert peer.counted == 1 + 32
    while peer.engine.has_more:
        counts.append(links(peer.say()))
    assert counts == [32, 32, 32, 4]


def test_links_with_many_values_are_as_many_parts_when_few_begin_at_once() -> None:
    peer = Bounded(at_once=32)
    counts = [links(peer.say(*(attach(handle, values=NULLS) for handle in range(5))))]
    while peer.engine.has_more:
        counts.append(links(peer.say()))
    assert counts == [2, 2, 1]
