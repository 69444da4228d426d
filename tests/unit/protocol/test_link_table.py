"""The engine's links: how they are attached, refused and detached. Rules: AMQP contract 0.4."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from protocol.codec import Described, Symbol, UByte, UInt, ULong, encode
from protocol.events import (
    ConnectionClosed,
    DeliveriesUpdated,
    ErrorCondition,
    Event,
    LinkAttached,
    LinkDetached,
    MessagesReceived,
    Outcome,
)
from protocol.links import Link
from tests.support import raw_amqp as raw
from tests.support.engine_frames import (
    REFUSAL,
    assert_has_three_fields,
    detach,
    disposition,
    error_fields,
    payloads,
    tags,
    transfer,
)
from tests.support.engine_peer import EnginePeer, message, of, only

# --- attach (AMQP contract 0.4.5) ---------------------------------------------------------------------------


@pytest.mark.parametrize("snd_settle_mode", [0, 1, 2])
@pytest.mark.parametrize("rcv_settle_mode", [0, 1])
def test_rule_5_the_attach_reply_echoes_source_target_and_both_settle_modes(
    peer: EnginePeer, snd_settle_mode: int, rcv_settle_mode: int
) -> None:
    session_filter = {Symbol("com.microsoft:session-filter"): Described(ULong(0x137000000C), "cart-1")}
    source = [
        "amqps://host:5671/queue", UInt(2), Symbol("never"), UInt(30), False, None, Symbol("copy"),
        session_filter, None, None,
        Symbol("capability"),
    ]  # fmt: skip
    fields = raw.receiver_attach(3, "queue")
    fields[3:7] = [
        UByte(snd_settle_mode),
        UByte(rcv_settle_mode),
        Described(ULong(raw.SOURCE), source),
        Described(ULong(raw.TARGET), ["me"]),
    ]
    link = only(peer.say(raw.frame(raw.ATTACH, fields)), LinkAttached).link
    assert (link.source_address, link.target_address, link.incoming) == (
        "amqps://host:5671/queue",
        "me",
        False,
    )
    assert peer.engine.source_filter(link) == {
        "com.microsoft:session-filter": Described(ULong(0x137000000C), "cart-1")
    }
    peer.engine.accept_link(link)
    (answer,) = peer.heard(raw.ATTACH)
    echoed = answer.field(5).value
    assert echoed[:4] == ["amqps://host:5671/queue", 2, "never", 30]
    assert echoed[7] == session_filter and answer.field(6).value[0] == "me"
    assert _mode(answer.field(3), 2) == snd_settle_mode and _mode(answer.field(4), 0) == rcv_settle_mode


def _mode(value: int | None, default: int) -> int:
    return default if value is None else value


def test_rule_5_initial_delivery_count_is_sent_when_we_are_the_sender_and_max_message_size_when_we_receive(
    peer: EnginePeer,
) -> None:
    outgoing = only(peer.say(raw.frame(raw.ATTACH, raw.receiver_attach(0, "queue"))), LinkAttached).link
    incoming = only(peer.say(raw.frame(raw.ATTACH, raw.sender_attach(1, "queue"))), LinkAttached).link
    peer.engine.accept_link(outgoing)
    peer.engine.accept_link(incoming, max_message_bytes=1_048_576, properties={Symbol("key"): ULong(7)})
    first, second = peer.heard(raw.ATTACH)
    assert first.field(9) == 0
    assert second.field(10) == 1_048_576 and second.field(13) == {"key": 7}


def test_a_filter_can_be_answered_with_another_one(peer: EnginePeer) -> None:
    link = only(peer.say(raw.frame(raw.ATTACH, raw.receiver_attach(0, "queue"))), LinkAttached).link
    peer.engine.accept_link(link, source_filter=encode({Symbol("com.microsoft:session-filter"): "cart-2"}))
    (answer,) = peer.heard(raw.ATTACH)
    assert answer.field(5).value[7] == {"com.microsoft:session-filter": "cart-2"}


def test_dynamic_nodes_and_coordinators_are_told_apart(peer: EnginePeer) -> None:
    dynamic = raw.receiver_attach(0, None)
    dynamic[5] = Described(ULong(raw.SOURCE), [None, None, None, None, True])
    coordinator = raw.sender_attach(1, "queue")
    coordinator[6] = Described(ULong(0x30), [])
    first, second = (
        event.link
        for event in of(
            peer.say(raw.frame(raw.ATTACH, dynamic), raw.frame(raw.ATTACH, coordinator)), LinkAttached
        )
    )
    assert peer.engine.source_is_dynamic(first) and not peer.engine.target_is_dynamic(first)
    assert second.target_is_coordinator and not first.target_is_coordinator


def test_attach_properties_are_given_with_text_keys(peer: EnginePeer) -> None:
    fields = [
        *raw.sender_attach(0, "queue"),
        None,
        None,
        None,
        {Symbol("com.microsoft:timeout"): UInt(60_000)},
    ]
    link = only(peer.say(raw.frame(raw.ATTACH, fields)), LinkAttached).link
    assert peer.engine.link_properties(link) == {"com.microsoft:timeout": 60_000}


# --- refusals (AMQP contract 0.4.6, 0.4.7) ------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields", [raw.sender_attach(4, "queue"), raw.receiver_attach(4, "queue")], ids=["sender", "receiver"]
)
def test_rule_6_a_link_is_refused_by_an_attach_without_source_and_target_and_at_once_a_closing_detach(
    peer: EnginePeer, fields: list[Any]
) -> None:
    link = only(peer.say(raw.frame(raw.ATTACH, fields)), LinkAttached).link
    peer.engine.refuse_link(link, REFUSAL)
    attach, closing = peer.hear()
    assert (
        attach.code == raw.ATTACH
        and attach.field(0) == fields[0]
        and attach.field(5) is None
        and attach.field(6) is None
    )
    assert closing.code == raw.DETACH and closing.field(0) == attach.field(1) and closing.field(1) is True
    assert_has_three_fields(closing.field(2), "amqp:not-found")
    assert error_fields(closing.field(2))[1] == REFUSAL.description


def test_the_peers_answer_to_a_refusal_is_no_event_and_gets_no_answer(peer: EnginePeer) -> None:
    link = only(peer.say(raw.frame(raw.ATTACH, raw.sender_attach(0, "queue"))), LinkAttached).link
    peer.engine.refuse_link(link, REFUSAL)
    peer.hear()
    assert peer.say(detach(0)) == [] and peer.hear() == []
    assert peer.engine.links() == []


@pytest.mark.parametrize("handle", [0, 1], ids=["same handle", "another handle"])
@pytest.mark.parametrize("sends", [True, False], ids=["sender", "receiver"])
def test_a_refused_name_may_be_attached_again_before_the_peer_answers_the_refusal(
    peer: EnginePeer, sends: bool, handle: int
) -> None:
    fields_of = raw.sender_attach if sends else raw.receiver_attach
    refused = only(peer.say(raw.frame(raw.ATTACH, fields_of(0, "queue", "name"))), LinkAttached).link
    peer.engine.refuse_link(refused, REFUSAL)
    peer.hear()
    link = only(peer.say(raw.frame(raw.ATTACH, fields_of(handle, "queue", "name"))), LinkAttached).link
    peer.engine.accept_link(link)
    (attach,) = peer.hear()
    assert attach.code == raw.ATTACH and attach.field(0) == "name"
    if handle == 1:  # the late answer belongs to the refused link
        assert peer.say(detach(0)) == [] and peer.hear() == [] and peer.engine.links() == [link]
    if sends:
        assert only(peer.say(transfer(handle, 0, b"x")), MessagesReceived).link is link
    assert only(peer.say(detach(handle)), LinkDetached).link is link


def test_a_name_that_we_closed_may_be_attached_again_unless_its_outcomes_are_missing(
    peer: EnginePeer,
) -> None:
    attach, first = raw.frame(raw.ATTACH, raw.sender_attach(1, "queue", "sender-0")), peer.sender(0)
    peer.say(transfer(0, 0))
    peer.engine.close_link(first, REFUSAL)
    (closing,) = peer.hear()
    assert closing.code == raw.DETACH, "a settlement without an outcome could be taken for success"
    assert peer.say(detach(0)) == []
    second = only(peer.say(attach), LinkAttached).link
    peer.engine.accept_link(second)
    peer.engine.close_link(second, REFUSAL)
    peer.hear()
    third = only(
        peer.say(raw.frame(raw.ATTACH, raw.sender_attach(2, "queue", "sender-0"))), LinkAttached
    ).link
    assert peer.say(raw.frame(raw.TRANSFER, raw.transfer_fields(1, 1), b"late")) == [], (
        "what is sent before the answer is thrown away"
    )
    assert peer.engine.links() == [second, third]
    assert peer.say(detach(1)) == [] and peer.engine.links() == [third]


def test_rule_7_a_rejected_outcome_carries_an_error_of_three_fields(peer: EnginePeer) -> None:
    peer.sender()
    received = only(peer.say(transfer(0, 0)), MessagesReceived)
    peer.engine.reject(received.deliveries, ErrorCondition("amqp:decode-error"))
    (answer,) = peer.heard(raw.DISPOSITION)
    assert answer.field(3) is True and answer.field(4).descriptor == raw.REJECTED
    assert_has_three_fields(answer.field(4).value[0], "amqp:decode-error")


def test_rule_7_the_error_of_a_detach_keeps_the_info_it_is_given(peer: EnginePeer) -> None:
    link = peer.sender()
    peer.engine.close_link(
        link, ErrorCondition("com.microsoft:timeout", "late", encode({Symbol("tracking"): "1"}))
    )
    (answer,) = peer.heard(raw.DETACH)
    assert error_fields(answer.field(2)) == ["com.microsoft:timeout", "late", {"tracking": "1"}]


# --- links come and go --------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [True, False])
def test_a_detach_is_answered_once_in_kind_when_its_event_is_consumed(peer: EnginePeer, closed: bool) -> None:
    link = peer.sender()
    event = only(peer.say(detach(0, closed=closed)), LinkDetached)
    assert event.link is link and event.closed is closed and not link.gone and peer.engine.links() == [link]
    peer.engine.release_link(link)
    assert link.gone and peer.engine.links() == []
    (answer,) = peer.hear()
    assert answer.code == raw.DETACH and bool(answer.field(1)) is closed and answer.field(2) is None
    peer.engine.release_link(link)
    assert peer.hear() == []


def test_a_detach_that_we_began_is_not_answered_again_when_the_peer_answers(peer: EnginePeer) -> None:
    link = peer.sender()
    peer.engine.close_link(link, REFUSAL)
    assert link.gone and len(peer.heard(raw.DETACH)) == 1
    assert peer.say(detach(0)) == [] and peer.hear() == []


def test_the_links_of_an_ended_session_do_not_wait_for_the_garbage_collector(peer: EnginePeer) -> None:
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(each, Link) for each in gc.get_objects())
        peer.sender(0)
        peer.receiver(1)
        peer.release(peer.say(raw.frame(raw.END, [])))
        peer.hear()
        assert sum(isinstance(each, Link) for each in gc.get_objects()) == before
    finally:
        gc.enable()


def test_what_comes_in_one_write_with_a_detach_can_still_be_served(peer: EnginePeer) -> None:
    peer.sender(0)
    receiver = peer.receiver(1)
    deliveries = peer.engine.send(receiver, tags(1), [message()], False)
    peer.hear()
    events = peer.say(
        transfer(0, 0, settled=True), disposition(0, 0, raw.outcome(raw.ACCEPTED)), detach(0), detach(1)
    )
    assert [type(event) for event in events] == [
        MessagesReceived,
        DeliveriesUpdated,
        LinkDetached,
        LinkDetached,
    ]
    peer.engine.settle(deliveries, Outcome.ACCEPTED)
    peer.release(events)
    assert sorted(frame.code or 0 for frame in peer.hear()) == [raw.DISPOSITION, raw.DETACH, raw.DETACH]


def test_a_link_attached_and_detached_in_one_write_can_be_accepted_first(peer: EnginePeer) -> None:
    events = peer.say(raw.frame(raw.ATTACH, raw.sender_attach(0, "queue")), transfer(0, 0), detach(0))
    assert [type(event) for event in events] == [LinkAttached, MessagesReceived, LinkDetached]
    link = of(events, LinkAttached)[0].link
    peer.engine.accept_link(link, max_message_bytes=100)
    peer.engine.grant(link, 10)
    peer.engine.accept(of(events, MessagesReceived)[0].deliveries)
    peer.release(events)
    codes = [frame.code for frame in peer.hear()]
    assert codes[0] == raw.ATTACH and codes[-1] == raw.DETACH


def test_a_link_attached_and_detached_in_one_write_can_be_refused(peer: EnginePeer) -> None:
    events = peer.say(raw.frame(raw.ATTACH, raw.sender_attach(0, "queue")), detach(0))
    link = of(events, LinkAttached)[0].link
    peer.engine.refuse_link(link, REFUSAL)
    peer.release(events)
    assert [frame.code for frame in peer.hear()] == [raw.ATTACH, raw.DETACH]
    assert peer.engine.links() == [] and payloads(say_on_a_new_link(peer)) == [b"x"]


def say_on_a_new_link(peer: EnginePeer, handle: int = 0) -> list[Event]:
    peer.sender(handle)
    return peer.say(transfer(handle, 0))


@pytest.mark.parametrize("closed", [True, False])
def test_a_link_detached_and_attached_again_under_its_name_in_one_write_is_another_link(
    peer: EnginePeer, closed: bool
) -> None:
    first = peer.sender(0)
    attach = raw.frame(raw.ATTACH, raw.sender_attach(0, "queue"))
    events = peer.say(transfer(0, 0, b"old"), detach(0, closed=closed), attach, transfer(0, 1, b"new"))
    assert [type(event) for event in events] == [
        MessagesReceived,
        LinkDetached,
        LinkAttached,
        MessagesReceived,
    ]
    second = of(events, LinkAttached)[0].link
    assert second is not first and second.name == first.name
    peer.release(events)
    assert first.gone and not second.gone
    peer.engine.accept_link(second)
    peer.engine.accept(of(events, MessagesReceived)[1].deliveries)
    assert [frame.code for frame in peer.hear()].count(raw.ATTACH) == 1


def test_links_can_be_detached_and_attached_again_many_times_over_the_same_handle(peer: EnginePeer) -> None:
    for number in range(300):
        fields = raw.sender_attach(0, "queue", f"link-{number % 3}")
        peer.attach(fields)
        event = only(peer.say(transfer(0, number, b"%d" % number)), MessagesReceived)
        assert event.payloads == [b"%d" % number]
        peer.engine.accept(event.deliveries)
        peer.release(peer.say(detach(0, closed=number % 2 == 0)))
        peer.hear()
    assert peer.engine.links() == []


def test_attaching_a_name_that_is_attached_closes_the_connection_with_an_error(peer: EnginePeer) -> None:
    peer.sender(0)
    fields = raw.sender_attach(1, "queue", "sender-0")
    event = of(peer.say(raw.frame(raw.ATTACH, fields)), ConnectionClosed)[0]
    assert event.error is not None
    (answer,) = peer.heard(raw.CLOSE)
    assert answer.field(0) is not None


def test_the_same_name_may_be_used_in_both_directions_and_in_two_sessions(peer: EnginePeer) -> None:
    peer.say(raw.frame(raw.BEGIN, raw.begin_fields(), channel=1))
    links = {
        peer.attach(raw.sender_attach(0, "queue", "name")),
        peer.attach(raw.receiver_attach(1, "queue", "name")),
        peer.attach(raw.sender_attach(0, "queue", "name"), channel=1),
    }
    assert len(links) == 3


def test_the_end_of_a_session_detaches_its_links_after_what_came_before_and_no_other(
    peer: EnginePeer,
) -> None:
    peer.say(raw.frame(raw.BEGIN, raw.begin_fields(), channel=1))
    ended, kept = [peer.sender(0, channel=1), peer.receiver(1, channel=1)], peer.sender(0)
    refused = peer.sender(2, channel=1)
    peer.engine.close_link(refused, REFUSAL)
    peer.hear()
    events = peer.say(transfer(0, 0, channel=1), raw.frame(raw.END, [], channel=1))
    assert [type(event) for event in events] == [MessagesReceived, LinkDetached, LinkDetached]
    peer.engine.accept(of(events, MessagesReceived)[0].deliveries)
    peer.release(events)
    assert all(link.gone for link in ended) and peer.engine.links() == [kept]
    assert [frame.code for frame in peer.hear() if frame.channel == 1][-1] == raw.END
    assert payloads(peer.say(transfer(0, 0))) == [b"x"]


def test_a_session_can_be_begun_again_on_its_channel(peer: EnginePeer) -> None:
    for _ in range(50):
        peer.say(raw.frame(raw.BEGIN, raw.begin_fields(), channel=3))
        peer.sender(0, channel=3)
        peer.say(transfer(0, 0, more=True, batch=True, channel=3))
        peer.release(peer.say(raw.frame(raw.END, [], channel=3)))
        assert raw.END in [frame.code for frame in peer.hear()]


def test_a_session_that_ends_in_one_write_with_a_detach_waits_for_both_events(peer: EnginePeer) -> None:
    link, other = peer.sender(0), peer.sender(1)
    events = peer.say(transfer(0, 0), detach(0), raw.frame(raw.END, []))
    assert [event.link for event in of(events, LinkDetached)] == [link, other]
    peer.engine.release_link(link)
    assert raw.END not in [frame.code for frame in peer.hear()]
    peer.engine.release_link(other)
    assert raw.END in [frame.code for frame in peer.hear()]


def test_a_transfer_on_a_link_on_which_the_peer_receives_ends_the_connection(peer: EnginePeer) -> None:
    link = peer.receiver(0)
    event = only(peer.say(transfer(0, 0, b"junk", settled=True)), ConnectionClosed)
    assert (
        event.error is not None
        and event.error.condition == "amqp:not-allowed"
        and link.name in event.error.description
    )
    assert raw.CLOSE in [frame.code for frame in peer.hear()]
