"""The engine's connection: opening and closing, idle time-outs, and reads that are taken in parts. Rules:
AMQP contract 0.4."""

from __future__ import annotations

from typing import Any

import pytest

from protocol import engine
from protocol.codec import Array, Described, Symbol, TypeCode, UInt, ULong
from protocol.events import (
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    ErrorCondition,
    LinkAttached,
    MessagesReceived,
)
from protocol.proton_values import lib
from tests.support import raw_amqp as raw
from tests.support.engine_frames import REFUSAL, assert_has_three_fields, transfer
from tests.support.engine_peer import EnginePeer, message, of, only


def test_the_peers_open_is_reported_with_what_it_says_of_itself() -> None:
    peer = EnginePeer()
    fields = [*raw.open_fields("client-7"), None, None, None, None, {Symbol("product"): "sdk"}]
    event = only(peer.say(raw.AMQP_HEADER, raw.frame(raw.OPEN, fields)), ConnectionOpened)
    assert (event.container_id, event.hostname, event.properties) == (
        "client-7",
        "127.0.0.1",
        {"product": "sdk"},
    )
    assert peer.engine.remote_max_frame_bytes == 65_536


def test_our_open_names_container_frame_size_and_idle_timeout() -> None:
    peer = EnginePeer(idle_timeout_ms=120_000)
    peer.say(raw.AMQP_HEADER, raw.frame(raw.OPEN, raw.open_fields()))
    peer.engine.open({Symbol("product"): "Partibus"})
    (answer,) = peer.heard(raw.OPEN)
    assert answer.field(0) == "broker" and answer.field(2) == 262_144 and answer.field(4) == 60_000
    assert answer.field(9) == {"product": "Partibus"}


def test_capabilities_are_reported_and_offered() -> None:
    peer = EnginePeer()
    desired = Array(TypeCode.SYMBOL, [Symbol("one"), Symbol("two")])
    fields = [*raw.open_fields("client-7"), None, None, None, desired]
    event = only(peer.say(raw.AMQP_HEADER, raw.frame(raw.OPEN, fields)), ConnectionOpened)
    assert event.desired_capabilities == ("one", "two")
    peer.engine.open({}, ["two"])
    (answer,) = peer.heard(raw.OPEN)
    assert list(answer.field(7).values) == ["two"]


def test_opens_begins_and_attaches_that_come_in_one_write_are_all_served() -> None:
    peer = EnginePeer()
    events = peer.say(
        raw.AMQP_HEADER,
        raw.frame(raw.OPEN, raw.open_fields()),
        raw.frame(raw.BEGIN, raw.begin_fields(), channel=1),
        raw.frame(raw.ATTACH, raw.sender_attach(0, "queue"), channel=1),
        raw.frame(raw.ATTACH, raw.receiver_attach(1, "queue"), channel=1),
        raw.frame(raw.FLOW, raw.flow_fields(1, 0, 10), channel=1),
    )
    assert [type(event) for event in events] == [ConnectionOpened, LinkAttached, LinkAttached, CreditGranted]
    peer.engine.open({})
    for event in of(events, LinkAttached):
        peer.engine.accept_link(event.link)
    assert [frame.code for frame in peer.hear()] == [raw.OPEN, raw.BEGIN, raw.ATTACH, raw.ATTACH]


def test_a_stream_cut_at_every_byte_makes_the_same_events() -> None:
    stream = b"".join((transfer(0, 0, b"one"), transfer(0, 1, b"two", batch=True), transfer(0, 2, b"three")))
    for cut in range(1, len(stream)):
        peer = EnginePeer().open()
        peer.sender()
        events = peer.say(stream[:cut]) + peer.say(stream[cut:])
        found = [
            (payload, event.batch) for event in of(events, MessagesReceived) for payload in event.payloads
        ]
        assert found == [(b"one", False), (b"two", True), (b"three", False)]
        peer.engine.free()


def test_a_close_is_reported_once_with_its_error_and_answered() -> None:
    peer = EnginePeer().open()
    error = Described(ULong(raw.ERROR), [Symbol("amqp:internal-error"), "out of tea"])
    event = only(peer.say(raw.frame(raw.CLOSE, [error])), ConnectionClosed)
    assert event.error is not None and (event.error.condition, event.error.description) == (
        "amqp:internal-error",
        "out of tea",
    )
    assert [frame.code for frame in peer.hear()] == [raw.CLOSE]
    assert peer.engine.finished and peer.engine.receive_eof() == []


def test_an_open_and_a_close_in_one_write_are_both_answered() -> None:
    peer = EnginePeer()
    events = peer.say(raw.AMQP_HEADER, raw.frame(raw.OPEN, raw.open_fields()), raw.frame(raw.CLOSE, []))
    assert [type(event) for event in events] == [ConnectionOpened, ConnectionClosed]
    peer.engine.open({})
    assert [frame.code for frame in peer.hear()] == [raw.OPEN, raw.CLOSE]
    assert peer.engine.finished


def test_our_close_carries_an_error_of_three_fields(peer: EnginePeer) -> None:
    peer.engine.close(ErrorCondition("amqp:connection:forced", ""))
    (answer,) = peer.heard(raw.CLOSE)
    assert_has_three_fields(answer.field(0), "amqp:connection:forced")
    assert peer.engine.finished


def test_a_close_before_the_peers_open_opens_and_closes_when_that_has_come() -> None:
    peer = EnginePeer()
    peer.say(raw.AMQP_HEADER)
    peer.engine.close(ErrorCondition("amqp:resource-limit-exceeded", "too many"))
    heard = peer.hear()
    peer.say(raw.frame(raw.OPEN, raw.open_fields()))
    assert [frame.code for frame in heard + peer.hear()] == [raw.OPEN, raw.CLOSE]
    assert peer.engine.finished


def test_a_peer_that_breaks_the_protocol_is_told_so_and_disconnected(peer: EnginePeer) -> None:
    event = only(peer.say(raw.frame(raw.ATTACH, raw.sender_attach(0, "queue"), channel=7)), ConnectionClosed)
    assert event.error is not None and event.error.condition == "amqp:not-allowed"
    assert [frame.code for frame in peer.hear()] == [raw.CLOSE] and peer.engine.finished


def test_the_end_of_the_stream_without_a_close_is_reported(peer: EnginePeer) -> None:
    assert of(peer.engine.receive_eof(), ConnectionClosed)


# --- idle time-outs (§2.4.5) --------------------------------------------------------------------------------


def test_a_silent_peer_is_disconnected_when_its_time_is_up() -> None:
    peer = EnginePeer(idle_timeout_ms=10_000).open()
    assert peer.engine.tick(1_000) == 11_000
    assert peer.engine.take_events() == []
    peer.engine.tick(11_000)
    event = only(peer.engine.take_events(), ConnectionClosed)
    assert event.error is not None and event.error.condition == "amqp:resource-limit-exceeded"
    assert [frame.code for frame in peer.hear()][-1:] == [raw.CLOSE] and peer.engine.finished


def test_an_empty_frame_is_a_sign_of_life() -> None:
    peer = EnginePeer(idle_timeout_ms=10_000).open()
    peer.engine.tick(1_000)
    peer.say(raw.raw_frame(b""))
    assert peer.engine.tick(10_500) > 11_000
    peer.engine.tick(11_500)
    assert peer.engine.take_events() == []


def test_an_empty_frame_is_written_within_half_of_the_peers_own_timeout() -> None:
    peer = EnginePeer().open(idle_timeout_ms=60_000)
    due_ms = peer.engine.tick(1_000)
    assert 1_000 < due_ms <= 31_000
    peer.hear()
    due_ms = peer.engine.tick(due_ms)
    assert [frame.code for frame in peer.hear()] == [None]
    peer.engine.tick(due_ms)
    assert [frame.code for frame in peer.hear()] == [None]


def test_without_timeouts_nothing_is_to_be_ticked(peer: EnginePeer) -> None:
    assert peer.engine.tick(1_000) == 0


# --- long reads ---------------------------------------------------------------------------------------------


def test_a_read_of_many_events_is_taken_in_parts_in_order() -> None:
    peer = EnginePeer().open()
    attaches = [raw.frame(raw.ATTACH, raw.sender_attach(handle, "queue")) for handle in range(500)]
    batch = raw.frame(raw.TRANSFER, raw.transfer_fields(0, 0, batch=True), message(b"batch"))
    events = peer.engine.receive(b"".join(attaches), 50)
    assert 50 <= len(events) < 250 and peer.engine.has_more
    for event in of(events, LinkAttached):
        peer.engine.accept_link(event.link, max_message_bytes=1_000)
        peer.engine.grant(event.link, 1)
    found, calls = list(events), 1
    found += peer.engine.receive(batch, 50)
    while peer.engine.has_more:
        found += peer.engine.receive(b"", 50)
        calls += 1
        assert calls < 100
    assert calls > 3
    assert [event.link.name for event in of(found, LinkAttached)] == [
        f"sender-{handle}" for handle in range(500)
    ]
    assert (
        type(found[-1]) is MessagesReceived and found[-1].batch and found[-1].payloads == [message(b"batch")]
    )


def test_a_refusal_comes_after_all_that_was_said_before_it() -> None:
    peer = EnginePeer().open()
    attaches = [raw.frame(raw.ATTACH, raw.sender_attach(handle, "queue")) for handle in range(500)]
    too_large = raw.frame(raw.FLOW, [*raw.flow_fields(), *[None] * 6, {"a": "x" * 20_000}])
    found = peer.engine.receive(b"".join(attaches) + too_large + attaches[0], 50)
    while peer.engine.has_more:
        assert not of(found, ConnectionClosed)
        found += peer.engine.receive(b"", 50)
    assert len(of(found, LinkAttached)) == 500 and type(found[-1]) is ConnectionClosed


def begun_with(handle_max: int | None) -> EnginePeer:
    """A peer whose session on channel 1 has this handle-max; None to say nothing of it."""
    peer = EnginePeer().open()
    fields = raw.begin_fields()
    peer.say(
        raw.frame(raw.BEGIN, fields[:4] if handle_max is None else [*fields[:4], UInt(handle_max)], channel=1)
    )
    peer.hear()
    return peer


def test_a_peer_that_attaches_more_links_than_its_own_handle_max_permits_is_told_so() -> None:
    """Symptom: proton found no handle for its answer, and wrote nothing more on this connection."""
    peer = begun_with(1)
    peer.receiver(0, channel=0)
    peer.receiver(0, channel=1)
    peer.sender(1, channel=1)
    fields = raw.receiver_attach(7, "queue")
    closed = only(peer.say(raw.frame(raw.ATTACH, fields, channel=1)), ConnectionClosed)
    assert closed.error is not None and closed.error.condition == "amqp:resource-limit-exceeded"
    assert "handle-max of 1 permits 2 links" in closed.error.description
    assert [frame.code for frame in peer.hear()] == [raw.CLOSE]


def test_links_that_were_detached_take_no_handle_once_that_is_answered() -> None:
    peer = begun_with(0)
    for _ in range(3):
        peer.receiver(0, channel=1)
        peer.release(peer.say(raw.frame(raw.DETACH, raw.detach_fields(0), channel=1)))
        assert peer.heard(raw.DETACH)
    closed = peer.attach(raw.receiver_attach(0, "queue"), channel=1)
    peer.engine.close_link(closed, REFUSAL)
    assert peer.heard(raw.DETACH)
    peer.say(raw.frame(raw.DETACH, raw.detach_fields(0), channel=1))
    peer.receiver(0, channel=1)


@pytest.mark.parametrize("again", ["link", "another"])
def test_links_with_much_unsettled_take_no_handle_once_their_detach_is_written(again: str) -> None:
    """Their memory is freed later."""
    peer = begun_with(1)
    for handle in range(2):
        link = peer.attach([f"link{handle}", *raw.receiver_attach(handle, "queue")[1:]], channel=1)
        peer.say(raw.frame(raw.FLOW, raw.flow_fields(handle, 0, 2_000), channel=1))
        tags = [b"%d-%d" % (handle, number) for number in range(1_200)]
        peer.engine.send(link, tags, [message(b"x")] * len(tags), False)
    while peer.hear():
        pass
    peer.release(peer.say(*(raw.frame(raw.DETACH, raw.detach_fields(h), channel=1) for h in range(2))))
    assert len(peer.heard(raw.DETACH)) == 2 and peer.engine.leftovers
    attaches = [[f"{again}{handle}", *raw.receiver_attach(handle, "queue")[1:]] for handle in range(2)]
    events = peer.say(*(raw.frame(raw.ATTACH, fields, channel=1) for fields in attaches))
    for event in of(events, LinkAttached):
        peer.engine.accept_link(event.link, max_message_bytes=0)
    assert [frame.field(1) for frame in peer.heard(raw.ATTACH)] == [0, 1]


def test_a_detached_link_with_unsent_messages_takes_no_handle_once_that_is_answered() -> None:
    peer = begun_with(0)
    link = peer.attach(raw.receiver_attach(0, "queue"), channel=1)
    window_of_one = [UInt(0), UInt(1), *raw.flow_fields(0, 0, 100)[2:]]
    peer.say(raw.frame(raw.FLOW, window_of_one, channel=1))
    peer.engine.send(link, [b"1", b"2"], [message()] * 2, False)
    assert len(peer.heard(raw.TRANSFER)) == 1
    peer.release(peer.say(raw.frame(raw.DETACH, raw.detach_fields(0), channel=1)))
    assert peer.heard(raw.DETACH)
    peer.attach(raw.receiver_attach(0, "queue"), channel=1)


def test_a_session_without_a_handle_max_may_have_many_links() -> None:
    peer = begun_with(None)
    for handle in range(300):
        peer.receiver(handle, channel=1)
    assert peer.engine.link_count == 300


def test_sessions_are_counted_from_begin_to_end(peer: EnginePeer) -> None:
    before = peer.engine.session_count
    peer.say(*(raw.frame(raw.BEGIN, raw.begin_fields(), channel=channel) for channel in (5, 6, 7)))
    assert peer.engine.session_count == before + 3
    peer.say(raw.frame(raw.END, [], channel=6))
    assert peer.engine.session_count == before + 2


class CountingUnsettled:
    """Proton's functions; counts how often a link is asked for its unsettled deliveries."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)

    def pn_link_unsettled(self, link: Any) -> int:
        self.calls += 1
        return int(lib.pn_link_unsettled(link))


def test_attaching_a_link_costs_the_same_however_many_there_are(
    peer: EnginePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = CountingUnsettled()
    monkeypatch.setattr(engine, "lib", counting)
    frames = [raw.frame(raw.ATTACH, raw.sender_attach(each, "queue")) for each in range(2_000)]
    peer.say(*frames)
    assert len(peer.engine.links()) == len(frames)
    # Symptom: all links were asked before each push, which took half of the time of 5,000 attaches.
    assert counting.calls < 20 * len(frames)
