"""The engine, against a peer that says exactly what a test lets it say. Contract rules are those of AMQP contract 0.4."""

from __future__ import annotations

import gc
import resource
from typing import Any

import pytest

from protocol.codec import Described, Symbol, UByte, UInt, ULong, decode, encode
from protocol.events import (
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    DeliveriesUpdated,
    ErrorCondition,
    Event,
    LinkAttached,
    LinkDetached,
    MessagesReceived,
    MessageTooLarge,
    Outcome,
    TransactionalMessage,
)
from tests.support import raw_amqp as raw
from tests.support.engine_peer import EnginePeer, frames_of, message, of, only

TRANSACTION = raw.outcome(raw.TRANSACTIONAL, [b"transaction-1"])
REFUSAL = ErrorCondition("amqp:not-found", "The messaging entity 'queue' could not be found.")


@pytest.fixture
def peer() -> EnginePeer:
    return EnginePeer().open()


def transfer(handle: int, number: int, payload: bytes = b"x", *, channel: int = 0, **given: Any) -> bytes:
    return raw.frame(raw.TRANSFER, raw.transfer_fields(handle, number, **given), payload, channel)


def disposition(first: int, last: int, outcome: object, *, settled: bool = False) -> bytes:
    return raw.frame(raw.DISPOSITION, raw.disposition_fields(True, first, last, settled, outcome))


def detach(handle: int, *, closed: bool = True) -> bytes:
    return raw.frame(raw.DETACH, [UInt(handle), closed])


def payloads(events: list[Event]) -> list[bytes]:
    return [payload for event in of(events, MessagesReceived) for payload in event.payloads]


def error_fields(value: Any) -> list[Any]:
    assert isinstance(value, Described) and value.descriptor == raw.ERROR
    return list(value.value)


def assert_has_three_fields(value: Any, condition: str) -> None:
    fields = error_fields(value)
    assert len(fields) == 3 and fields[0] == condition and fields[1] and fields[2], fields


def tags(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in numbers]


# --- connection -------------------------------------------------------------------------------------------------------------


def test_the_peers_open_is_reported_with_what_it_says_of_itself() -> None:
    peer = EnginePeer()
    fields = [*raw.open_fields("client-7"), None, None, None, None, {Symbol("product"): "sdk"}]
    event = only(peer.say(raw.AMQP_HEADER, raw.frame(raw.OPEN, fields)), ConnectionOpened)
    assert (event.container_id, event.hostname, event.properties) == ("client-7", "127.0.0.1", {"product": "sdk"})
    assert peer.engine.remote_max_frame_bytes == 65_536


def test_our_open_names_container_frame_size_and_idle_timeout() -> None:
    peer = EnginePeer(idle_timeout_ms=120_000)
    peer.say(raw.AMQP_HEADER, raw.frame(raw.OPEN, raw.open_fields()))
    peer.engine.open({Symbol("product"): "Partibus"})
    (answer,) = peer.heard(raw.OPEN)
    assert answer.field(0) == "broker" and answer.field(2) == 262_144 and answer.field(4) == 60_000
    assert answer.field(9) == {"product": "Partibus"}


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
        found = [(payload, event.batch) for event in of(events, MessagesReceived) for payload in event.payloads]
        assert found == [(b"one", False), (b"two", True), (b"three", False)]
        peer.engine.free()


def test_a_close_is_reported_once_with_its_error_and_answered() -> None:
    peer = EnginePeer().open()
    error = Described(ULong(raw.ERROR), [Symbol("amqp:internal-error"), "out of tea"])
    event = only(peer.say(raw.frame(raw.CLOSE, [error])), ConnectionClosed)
    assert event.error is not None and (event.error.condition, event.error.description) == ("amqp:internal-error", "out of tea")
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


# --- idle time-outs (§2.4.5) ------------------------------------------------------------------------------------------------


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


# --- rule 5: attach ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("snd_settle_mode", [0, 1, 2])
@pytest.mark.parametrize("rcv_settle_mode", [0, 1])
def test_rule_5_the_attach_reply_echoes_source_target_and_both_settle_modes(
    peer: EnginePeer, snd_settle_mode: int, rcv_settle_mode: int
) -> None:
    session_filter = {Symbol("com.microsoft:session-filter"): Described(ULong(0x137000000C), "cart-1")}
    source = [
        "amqps://host:5671/queue", UInt(2), Symbol("never"), UInt(30), False, None, Symbol("copy"), session_filter, None, None,
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
    assert (link.source_address, link.target_address, link.incoming) == ("amqps://host:5671/queue", "me", False)
    assert peer.engine.source_filter(link) == {"com.microsoft:session-filter": Described(ULong(0x137000000C), "cart-1")}
    peer.engine.accept_link(link)
    (answer,) = peer.heard(raw.ATTACH)
    echoed = answer.field(5).value
    assert echoed[:4] == ["amqps://host:5671/queue", 2, "never", 30]
    assert echoed[7] == session_filter and answer.field(6).value[0] == "me"
    assert _mode(answer.field(3), 2) == snd_settle_mode and _mode(answer.field(4), 0) == rcv_settle_mode


def _mode(value: int | None, default: int) -> int:
    return default if value is None else value


def test_rule_5_initial_delivery_count_is_sent_when_we_are_the_sender_and_max_message_size_when_we_receive(peer: EnginePeer) -> None:
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
    first, second = (event.link for event in of(peer.say(raw.frame(raw.ATTACH, dynamic), raw.frame(raw.ATTACH, coordinator)), LinkAttached))
    assert peer.engine.source_is_dynamic(first) and not peer.engine.target_is_dynamic(first)
    assert second.target_is_coordinator and not first.target_is_coordinator


def test_attach_properties_are_given_with_text_keys(peer: EnginePeer) -> None:
    fields = [*raw.sender_attach(0, "queue"), None, None, None, {Symbol("com.microsoft:timeout"): UInt(60_000)}]
    link = only(peer.say(raw.frame(raw.ATTACH, fields)), LinkAttached).link
    assert peer.engine.link_properties(link) == {"com.microsoft:timeout": 60_000}


# --- rules 6 and 7: refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [raw.sender_attach(4, "queue"), raw.receiver_attach(4, "queue")], ids=["sender", "receiver"])
def test_rule_6_a_link_is_refused_by_an_attach_without_source_and_target_and_at_once_a_closing_detach(
    peer: EnginePeer, fields: list[Any]
) -> None:
    link = only(peer.say(raw.frame(raw.ATTACH, fields)), LinkAttached).link
    peer.engine.refuse_link(link, REFUSAL)
    attach, closing = peer.hear()
    assert attach.code == raw.ATTACH and attach.field(0) == fields[0] and attach.field(5) is None and attach.field(6) is None
    assert closing.code == raw.DETACH and closing.field(0) == attach.field(1) and closing.field(1) is True
    assert_has_three_fields(closing.field(2), "amqp:not-found")
    assert error_fields(closing.field(2))[1] == REFUSAL.description


def test_the_peers_answer_to_a_refusal_is_no_event_and_gets_no_answer(peer: EnginePeer) -> None:
    link = only(peer.say(raw.frame(raw.ATTACH, raw.sender_attach(0, "queue"))), LinkAttached).link
    peer.engine.refuse_link(link, REFUSAL)
    peer.hear()
    assert peer.say(detach(0)) == [] and peer.hear() == []
    assert peer.engine.links() == []


def test_rule_7_a_rejected_outcome_carries_an_error_of_three_fields(peer: EnginePeer) -> None:
    peer.sender()
    received = only(peer.say(transfer(0, 0)), MessagesReceived)
    peer.engine.reject(received.deliveries, ErrorCondition("amqp:decode-error"))
    (answer,) = peer.heard(raw.DISPOSITION)
    assert answer.field(3) is True and answer.field(4).descriptor == raw.REJECTED
    assert_has_three_fields(answer.field(4).value[0], "amqp:decode-error")


def test_rule_7_the_error_of_a_detach_keeps_the_info_it_is_given(peer: EnginePeer) -> None:
    link = peer.sender()
    peer.engine.close_link(link, ErrorCondition("com.microsoft:timeout", "late", encode({Symbol("tracking"): "1"})))
    (answer,) = peer.heard(raw.DETACH)
    assert error_fields(answer.field(2)) == ["com.microsoft:timeout", "late", {"tracking": "1"}]


# --- incoming messages ------------------------------------------------------------------------------------------------------


def test_messages_of_one_read_come_as_one_event_and_are_accepted_by_one_disposition(peer: EnginePeer) -> None:
    link = peer.sender(credit=500)
    event = only(peer.say(*(transfer(0, number, b"%d" % number) for number in range(200))), MessagesReceived)
    assert event.link is link and event.payloads == [b"%d" % number for number in range(200)] and not event.settled and not event.batch
    peer.engine.accept(event.deliveries)
    (answer,) = peer.heard(raw.DISPOSITION)
    assert (answer.field(0), answer.field(1), answer.field(2), answer.field(3)) == (True, 0, 199, True)
    assert answer.field(4) == Described(ULong(raw.ACCEPTED), [])


def test_a_message_of_several_frames_comes_whole(peer: EnginePeer) -> None:
    peer.sender()
    assert peer.say(transfer(0, 0, b"a" * 1000, more=True)) == []
    assert peer.say(transfer(0, 0, b"b" * 1000, more=True)) == []
    event = only(peer.say(transfer(0, 0, b"c")), MessagesReceived)
    assert event.payloads == [b"a" * 1000 + b"b" * 1000 + b"c"]


def test_messages_of_several_frames_on_several_links_come_whole_each(peer: EnginePeer) -> None:
    links = [peer.sender(handle) for handle in range(3)]
    stream = [transfer(handle, handle, b"%d" % handle, more=part < 9) for part in range(10) for handle in range(3)]
    events = of(peer.say(*stream), MessagesReceived)
    assert [(event.link, event.payloads) for event in events] == [(links[handle], [b"%d" % handle * 10]) for handle in range(3)]


def test_an_empty_message_is_a_message(peer: EnginePeer) -> None:
    peer.sender()
    assert only(peer.say(transfer(0, 0, b"")), MessagesReceived).payloads == [b""]
    assert peer.say(transfer(0, 1, b"", more=True)) == []
    assert only(peer.say(transfer(0, 1, b"")), MessagesReceived).payloads == [b""]


def test_settled_transfers_are_reported_as_settled_and_leave_nothing_to_settle(peer: EnginePeer) -> None:
    peer.sender()
    events = peer.say(transfer(0, 0, settled=True), transfer(0, 1, settled=True), transfer(0, 2))
    assert [(len(event.payloads), len(event.deliveries), event.settled) for event in of(events, MessagesReceived)] == [
        (2, 0, True),
        (1, 1, False),
    ]
    assert peer.heard(raw.DISPOSITION) == []


def test_rule_12_messages_beyond_the_credit_are_taken_all_the_same(peer: EnginePeer) -> None:
    peer.sender(credit=1)
    assert len(payloads(peer.say(*(transfer(0, number) for number in range(20))))) == 20


def test_credit_is_told_with_delivery_count_and_session_window(peer: EnginePeer) -> None:
    link = peer.attach(raw.sender_attach(0, "queue"))
    peer.engine.grant(link, 77)
    (flow,) = peer.heard(raw.FLOW)
    assert flow.field(0) is not None and flow.field(1) > 0, "next-incoming-id and incoming-window"
    assert (flow.field(4), flow.field(5), flow.field(6)) == (0, 0, 77), "handle, delivery-count and link-credit"


def test_an_aborted_delivery_is_thrown_away_and_its_credit_granted_anew(peer: EnginePeer) -> None:
    peer.sender(credit=10)
    peer.say(transfer(0, 0, b"half", more=True))
    fields = [*raw.transfer_fields(0, 0), None, None, None, True]
    assert peer.say(raw.frame(raw.TRANSFER, fields)) == []
    (flow,) = peer.heard(raw.FLOW)
    assert (flow.field(5), flow.field(6)) == (1, 10), "delivery-count, link-credit"
    assert only(peer.say(transfer(0, 1, b"next")), MessagesReceived).payloads == [b"next"]


# --- size -------------------------------------------------------------------------------------------------------------------


def test_a_message_at_the_limit_is_taken_and_one_over_it_is_not(peer: EnginePeer) -> None:
    link = peer.sender(max_message_bytes=1000)
    assert payloads(peer.say(transfer(0, 0, b"x" * 1000))) == [b"x" * 1000]
    event = only(peer.say(transfer(0, 1, b"x" * 1001)), MessageTooLarge)
    assert (event.link, event.size, len(event.deliveries)) == (link, 1001, 1)
    peer.engine.reject(event.deliveries, ErrorCondition("amqp:link:message-size-exceeded", "1001 bytes"))
    assert [frame.field(4).descriptor for frame in peer.heard(raw.DISPOSITION)] == [raw.REJECTED]
    assert payloads(peer.say(transfer(0, 2, b"after"))) == [b"after"]


def test_a_message_of_several_frames_is_refused_as_soon_as_it_is_too_large_and_what_follows_is_thrown_away(peer: EnginePeer) -> None:
    peer.sender(max_message_bytes=1000)
    assert peer.say(transfer(0, 0, b"x" * 600, more=True)) == []
    event = only(peer.say(transfer(0, 0, b"x" * 600, more=True)), MessageTooLarge)
    peer.engine.reject(event.deliveries, ErrorCondition("amqp:link:message-size-exceeded", "too large"))
    assert [frame.field(4).descriptor for frame in peer.heard(raw.DISPOSITION)] == [raw.REJECTED]
    assert peer.say(*(transfer(0, 0, b"x" * 600, more=part < 9) for part in range(10))) == []
    assert payloads(peer.say(transfer(0, 1, b"after"))) == [b"after"]


def test_what_follows_a_message_that_was_too_large_is_thrown_away_also_while_nobody_has_refused_it_yet(peer: EnginePeer) -> None:
    peer.sender(max_message_bytes=1000)
    event = only(peer.say(*(transfer(0, 0, b"x" * 600, more=True) for _ in range(5))), MessageTooLarge)
    assert peer.say(*(transfer(0, 0, b"x" * 600, more=True) for _ in range(5))) == []
    assert peer.say(transfer(0, 0, b"x" * 600, more=False)) == []
    assert payloads(peer.say(transfer(0, 1, b"after"))) == [b"after"]
    peer.engine.reject(event.deliveries, ErrorCondition("amqp:link:message-size-exceeded", "too large"))
    assert [frame.field(4).descriptor for frame in peer.heard(raw.DISPOSITION)] == [raw.REJECTED]


def test_a_settled_message_that_is_too_large_leaves_nothing_behind(peer: EnginePeer) -> None:
    peer.sender(max_message_bytes=10)
    event = only(peer.say(transfer(0, 0, b"x" * 11, settled=True)), MessageTooLarge)
    assert event.deliveries == []
    assert peer.heard(raw.DISPOSITION) == []
    assert payloads(peer.say(transfer(0, 1, b"after"))) == [b"after"]


def test_parts_of_messages_on_many_links_are_bounded_together() -> None:
    peer = EnginePeer(partial_bytes_max=10_000).open()
    for handle in range(3):
        peer.sender(handle)
    assert peer.say(transfer(0, 0, b"x" * 6_000, more=True)) == []
    event = only(peer.say(transfer(1, 1, b"x" * 6_000, more=True)), ConnectionClosed)
    assert event.error is not None and event.error.condition == "amqp:resource-limit-exceeded"
    assert [frame.code for frame in peer.hear()] == [raw.CLOSE]


def test_one_message_may_be_larger_than_the_bound_on_parts_and_what_is_whole_counts_no_more() -> None:
    peer = EnginePeer(partial_bytes_max=10_000).open()
    for handle in range(2):
        peer.sender(handle)
    for number in range(0, 20, 2):
        stream = [transfer(0, number, b"x" * 6_000, more=part < 3) for part in range(4)]
        stream += [transfer(1, number + 1, b"y", more=True), transfer(1, number + 1, b"y")]
        events = [event for frame in stream for event in peer.say(frame)]
        assert len(payloads(events)) == 2 and not of(events, ConnectionClosed)
    peer.say(transfer(0, 20, b"x" * 9_000, more=True))
    peer.release(peer.say(detach(0)))
    assert peer.say(transfer(1, 21, b"x" * 9_000, more=True)) == [], "a link that is gone holds nothing"
    assert raw.CLOSE not in [frame.code for frame in peer.hear()]


def test_the_largest_size_of_a_link_can_be_changed_for_what_comes(peer: EnginePeer) -> None:
    link = peer.sender(max_message_bytes=1000)
    peer.engine.limit_messages(link, 100)
    assert only(peer.say(transfer(0, 0, b"x" * 101)), MessageTooLarge).size == 101
    assert payloads(peer.say(transfer(0, 1, b"x" * 100))) == [b"x" * 100]
    peer.engine.limit_messages(link, 2000)
    assert payloads(peer.say(transfer(0, 2, b"x" * 2000), transfer(0, 3, b"y"))) == [b"x" * 2000, b"y"]
    assert only(peer.say(transfer(0, 4, b"x" * 2001)), MessageTooLarge).size == 2001


# --- transactions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("parts", [(TRANSACTION,), (TRANSACTION, TRANSACTION), (TRANSACTION, None, None)], ids=len)
@pytest.mark.parametrize("at_once", [False, True])
def test_work_of_a_transaction_is_told_from_messages_and_none_of_it_stays(
    peer: EnginePeer, settled: bool, batch: bool, parts: tuple[Any, ...], at_once: bool
) -> None:
    link = peer.sender()
    last = len(parts) - 1
    frames = [
        transfer(0, 0, b"before"),
        *(transfer(0, 1, b"part", more=at < last, settled=settled, batch=batch, state=state) for at, state in enumerate(parts)),
        transfer(0, 2, b"behind"),
    ]
    events = peer.say(*frames) if at_once else [event for frame in frames for event in peer.say(frame)]
    assert payloads(events) == [b"before", b"behind"]
    (refused,) = of(events, TransactionalMessage)
    assert refused.link is link and len(refused.deliveries) == (0 if settled else 1)
    peer.engine.reject(refused.deliveries, ErrorCondition("amqp:not-implemented", "no transactions"))
    outcomes = [(frame.field(1), frame.field(4).descriptor) for frame in peer.heard(raw.DISPOSITION)]
    assert outcomes == ([] if settled else [(1, raw.REJECTED)])


@pytest.mark.parametrize("state", [raw.outcome(raw.ACCEPTED), raw.outcome(raw.RECEIVED, [UInt(0), ULong(0)])], ids=["accepted", "received"])
def test_a_transfer_with_another_state_is_a_message_like_any(peer: EnginePeer, state: Any) -> None:
    peer.sender()
    assert payloads(peer.say(transfer(0, 0, b"one"), transfer(0, 1, b"two", state=state), transfer(0, 2, b"three"))) == [
        b"one",
        b"two",
        b"three",
    ]


# --- batches ----------------------------------------------------------------------------------------------------------------


def test_a_batch_comes_alone_and_what_is_around_it_is_none(peer: EnginePeer) -> None:
    peer.sender()
    stream = [transfer(0, 0, b"a"), transfer(0, 1, b"b", batch=True), transfer(0, 2, b"c", batch=True), transfer(0, 3, b"d")]
    events = of(peer.say(*stream), MessagesReceived)
    assert [(event.payloads, event.batch) for event in events] == [([b"a"], False), ([b"b"], True), ([b"c"], True), ([b"d"], False)]


def test_the_formats_bytes_in_a_payload_or_a_tag_make_no_batch(peer: EnginePeer) -> None:
    peer.sender()
    mark = b"\x70\x80\x01\x37\x00"
    stream = [transfer(0, 0, mark * 40), transfer(0, 1, b"x", tag=b"\x80\x01\x37\x00"), transfer(0, 2, b"\x00\x53\x14" + mark, tag=mark)]
    events = of(peer.say(*stream), MessagesReceived)
    assert [event.batch for event in events] == [False] and len(events[0].payloads) == 3


def test_a_batch_of_several_frames_between_transfers_of_other_links_is_a_batch_and_they_are_not(peer: EnginePeer) -> None:
    links = [peer.sender(handle) for handle in range(3)]
    later = [UInt(0), None, None, None, False, True]
    stream = [
        transfer(0, 0, b"batch ", batch=True, more=True),
        transfer(1, 1, b"single"),
        raw.frame(raw.TRANSFER, later, b"goes "),  # continuations need not repeat the format (§2.7.5)
        transfer(2, 2, b"half ", more=True),
        raw.frame(raw.TRANSFER, [*later[:5], False], b"on"),
        transfer(2, 2, b"whole"),
        transfer(0, 3, b"plain"),
    ]
    events = of(peer.say(*stream), MessagesReceived)
    assert [(links.index(event.link), event.payloads, event.batch) for event in events] == [
        (1, [b"single"], False),
        (0, [b"batch goes on"], True),
        (2, [b"half whole"], False),
        (0, [b"plain"], False),
    ]


@pytest.mark.parametrize("end", ["aborted", "too large", "detached"])
def test_a_batch_that_never_becomes_whole_makes_no_batch_of_what_follows(peer: EnginePeer, end: str) -> None:
    peer.sender(max_message_bytes=1000)
    peer.say(transfer(0, 0, b"x" * 600, batch=True, more=True))
    match end:
        case "aborted":
            peer.say(raw.frame(raw.TRANSFER, [*raw.transfer_fields(0, 0), None, None, None, True]))
        case "too large":
            refused = only(peer.say(transfer(0, 0, b"x" * 600)), MessageTooLarge)
            peer.engine.reject(refused.deliveries, REFUSAL)
        case _:
            peer.release(peer.say(detach(0)))
            peer.sender()
    peer.hear()
    for number in range(1, 5):  # deliveries are pooled: one of these is the batch's, come back
        assert peer.say(transfer(0, number, b"part", more=True)) == []
        event = only(peer.say(transfer(0, number, b"")), MessagesReceived)
        assert not event.batch
        peer.engine.accept(event.deliveries)
        peer.hear()


# --- outgoing messages ------------------------------------------------------------------------------------------------------


def test_rule_8_every_transfer_says_that_its_message_format_is_0(peer: EnginePeer) -> None:
    link = peer.receiver()
    peer.engine.send(link, tags(1, 2), [message(), message(b"x" * 100_000)], False)
    transfers = peer.heard(raw.TRANSFER)
    assert len(transfers) >= 3, "the second message takes more than one frame"
    firsts = [frame for frame in transfers if frame.field(2) is not None]
    assert len(firsts) >= 2 and all(frame.field(3) == 0 for frame in firsts)


def test_rule_9_deliveries_are_numbered_consecutively_per_session_over_several_links(peer: EnginePeer) -> None:
    links = [peer.receiver(handle) for handle in range(3)]
    for number in range(12):
        peer.engine.send(links[number % 3], tags(number), [message(b"x" * (100_000 if number % 4 == 0 else 1))], number % 2 == 0)
    numbers = [frame.field(1) for frame in peer.heard(raw.TRANSFER) if frame.field(2) is not None]
    assert list(dict.fromkeys(numbers)) == list(range(12))


def test_rule_9_each_session_has_numbers_of_its_own(peer: EnginePeer) -> None:
    peer.say(raw.frame(raw.BEGIN, raw.begin_fields(), channel=1))
    peer.hear()
    links = [peer.receiver(0), peer.receiver(0, channel=1)]
    for link in links * 2:
        peer.engine.send(link, tags(1 + len(link.name)), [message()], True)
    transfers = peer.heard(raw.TRANSFER)
    assert sorted((frame.channel, frame.field(1)) for frame in transfers) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_delivery_carries_its_tag_its_payload_and_whether_it_is_settled(peer: EnginePeer) -> None:
    unsettled, settled = peer.receiver(0), peer.receiver(1, settled=True)
    assert len(peer.engine.send(unsettled, tags(7), [message(b"one")], False)) == 1
    assert peer.engine.send(settled, tags(8), [message(b"two")], True) == []
    first, second = peer.heard(raw.TRANSFER)
    assert (first.field(2), first.payload, bool(first.field(4)), bool(first.field(5))) == (tags(7)[0], message(b"one"), False, False)
    assert (second.field(2), second.payload, bool(second.field(4))) == (tags(8)[0], message(b"two"), True)


def test_large_messages_are_cut_to_the_peers_frames() -> None:
    peer = EnginePeer().open(max_frame_bytes=4096)
    link = peer.receiver()
    peer.engine.send(link, tags(1), [message(b"x" * 20_000)], False)
    data = b"".join(peer.engine.output())
    transfers = frames_of(data)
    assert b"".join(frame.payload for frame in transfers) == message(b"x" * 20_000)
    assert [bool(frame.field(5)) for frame in transfers] == [True] * (len(transfers) - 1) + [False]
    offset = 0
    while offset < len(data):
        size = int.from_bytes(data[offset : offset + 4], "big")
        assert size <= 4096
        offset += size


def test_credit_is_what_the_peer_granted_less_what_was_handed_over(peer: EnginePeer) -> None:
    link = peer.receiver(credit=10)
    peer.engine.send(link, tags(1, 2, 3), [message()] * 3, False)
    assert peer.engine.credit(link) == 7
    peer.hear()
    only(peer.say(raw.frame(raw.FLOW, raw.flow_fields(0, 1, 10))), CreditGranted)
    assert peer.engine.credit(link) == 8, "two are on their way that the peer has not counted"


def test_credit_is_never_negative(peer: EnginePeer) -> None:
    link = peer.receiver(credit=10)
    peer.engine.send(link, tags(1, 2, 3), [message()] * 3, False)
    peer.hear()
    peer.say(raw.frame(raw.FLOW, raw.flow_fields(0, 0, 0)))
    assert peer.engine.credit(link) == 0


def test_what_a_shut_session_window_holds_back_is_counted() -> None:
    peer = EnginePeer().open(window=0)
    link = peer.attach(raw.receiver_attach(0, "queue"))
    shut = raw.flow_fields(0, 0, 10)
    shut[1] = UInt(0)
    peer.say(raw.frame(raw.FLOW, shut))
    peer.engine.send(link, tags(1), [b"x" * 500], False)
    assert peer.heard(raw.TRANSFER) == [] and peer.engine.unsent_bytes(link) == 500
    peer.say(raw.frame(raw.FLOW, raw.flow_fields()))
    assert len(peer.heard(raw.TRANSFER)) == 1 and peer.engine.unsent_bytes(link) == 0


# --- rule 11: drain ---------------------------------------------------------------------------------------------------------


def test_rule_11_a_drain_is_answered_by_a_flow_with_drain_no_credit_and_an_advanced_delivery_count(peer: EnginePeer) -> None:
    link = peer.receiver(credit=10)
    peer.engine.send(link, tags(1, 2), [message()] * 2, False)
    peer.hear()
    only(peer.say(raw.frame(raw.FLOW, raw.flow_fields(0, 2, 8, drain=True))), CreditGranted)
    assert peer.engine.draining(link) and peer.engine.credit(link) == 8
    peer.engine.drained(link)
    (flow,) = peer.heard(raw.FLOW)
    assert (flow.field(5), flow.field(6), flow.field(8)) == (10, 0, True), "delivery-count, link-credit, drain"
    assert peer.engine.credit(link) == 0


def test_a_drain_that_uses_up_its_credit_needs_no_flow_and_the_next_grant_is_none(peer: EnginePeer) -> None:
    link = peer.receiver(credit=0)
    peer.say(raw.frame(raw.FLOW, raw.flow_fields(0, 0, 2, drain=True)))
    peer.engine.send(link, tags(1, 2), [message()] * 2, False)
    peer.engine.drained(link)
    assert len(peer.heard(raw.TRANSFER)) == 2
    peer.say(raw.frame(raw.FLOW, raw.flow_fields(0, 2, 5)))
    assert not peer.engine.draining(link) and peer.engine.credit(link) == 5


def test_a_flow_of_a_sending_peer_that_gives_its_credit_back_is_no_event(peer: EnginePeer) -> None:
    link = peer.sender(credit=10)
    assert peer.say(raw.frame(raw.FLOW, raw.flow_fields(0, 10, 0, drain=True))) == []
    peer.engine.grant(link, 5)
    assert peer.heard(raw.FLOW)[-1].field(4) == 0


# --- rule 10: settlement ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "fields"),
    [(Outcome.ACCEPTED, []), (Outcome.RELEASED, []), (Outcome.REJECTED, []), (Outcome.MODIFIED, [True, True])],
    ids=lambda value: getattr(value, "name", ""),
)
def test_rule_10_a_settlement_is_answered_as_sender_settled_with_the_same_outcome(
    peer: EnginePeer, sent: Outcome, fields: list[Any]
) -> None:
    link = peer.receiver()
    deliveries = peer.engine.send(link, tags(1, 2, 3), [message()] * 3, False)
    peer.hear()
    event = only(peer.say(disposition(0, 2, raw.outcome(sent, fields))), DeliveriesUpdated)
    assert event.deliveries == deliveries and (event.outcome, event.settled) == (sent, False)
    assert (event.failed, event.undeliverable_here) == ((True, True) if fields else (False, False))
    peer.engine.settle(event.deliveries, event.outcome, failed=event.failed, undeliverable_here=event.undeliverable_here)
    answers = peer.heard(raw.DISPOSITION)
    assert sorted(each for answer in answers for each in range(answer.field(1), (answer.field(2) or answer.field(1)) + 1)) == [0, 1, 2]
    for answer in answers:
        assert bool(answer.field(0)) is False and answer.field(3) is True, "role: sender, settled"
        state = answer.field(4)
        assert state.descriptor == sent and not any(isinstance(field, Described) for field in state.value)
        assert [bool(field) for field in state.value[:2]] == [bool(field) for field in fields]


def test_rule_10_a_settlement_is_refused_by_rejected_with_an_error_of_three_fields(peer: EnginePeer) -> None:
    link = peer.receiver()
    peer.engine.send(link, tags(1), [message()], False)
    peer.hear()
    event = only(peer.say(disposition(0, 0, raw.outcome(raw.ACCEPTED))), DeliveriesUpdated)
    peer.engine.reject(event.deliveries, ErrorCondition("com.microsoft:message-lock-lost", "late"))
    (answer,) = peer.heard(raw.DISPOSITION)
    assert answer.field(4).descriptor == raw.REJECTED
    assert_has_three_fields(answer.field(4).value[0], "com.microsoft:message-lock-lost")


def test_an_outcome_comes_with_what_belongs_to_it(peer: EnginePeer) -> None:
    link = peer.receiver()
    peer.engine.send(link, tags(1, 2), [message()] * 2, False)
    peer.hear()
    error = Described(
        ULong(raw.ERROR), [Symbol("com.microsoft:dead-letter"), "why", {Symbol("DeadLetterReason"): "broken", Symbol("Other"): None}]
    )
    modified = raw.outcome(raw.MODIFIED, [False, True, {Symbol("colour"): "red"}])
    rejected, deferred = of(peer.say(disposition(0, 0, raw.outcome(raw.REJECTED, [error])), disposition(1, 1, modified)), DeliveriesUpdated)
    assert rejected.error is not None and rejected.error.condition == "com.microsoft:dead-letter"
    assert decode(rejected.error.info)[0] == {"DeadLetterReason": "broken", "Other": None}
    assert (deferred.failed, deferred.undeliverable_here) == (False, True) and decode(deferred.annotations)[0] == {"colour": "red"}


def test_different_outcomes_are_different_events_and_equal_ones_are_one(peer: EnginePeer) -> None:
    link = peer.receiver()
    peer.engine.send(link, tags(*range(6)), [message()] * 6, False)
    peer.hear()
    accepted, released = raw.outcome(raw.ACCEPTED), raw.outcome(raw.RELEASED)
    events = of(
        peer.say(disposition(0, 1, accepted), disposition(2, 2, accepted), disposition(3, 3, released), disposition(4, 5, accepted)),
        DeliveriesUpdated,
    )
    assert [(event.outcome, len(event.deliveries)) for event in events] == [
        (Outcome.ACCEPTED, 3),
        (Outcome.RELEASED, 1),
        (Outcome.ACCEPTED, 2),
    ]


def test_received_is_no_outcome_and_settled_without_a_state_is_one(peer: EnginePeer) -> None:
    link = peer.receiver()
    peer.engine.send(link, tags(1), [message()], False)
    peer.hear()
    assert peer.say(disposition(0, 0, raw.outcome(raw.RECEIVED, [UInt(0), ULong(0)]))) == []
    event = only(peer.say(disposition(0, 0, None, settled=True)), DeliveriesUpdated)
    assert event.settled and event.outcome in (Outcome.NONE, Outcome.RECEIVED)


# --- links come and go ------------------------------------------------------------------------------------------------------


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


def test_what_comes_in_one_write_with_a_detach_can_still_be_served(peer: EnginePeer) -> None:
    peer.sender(0)
    receiver = peer.receiver(1)
    deliveries = peer.engine.send(receiver, tags(1), [message()], False)
    peer.hear()
    events = peer.say(transfer(0, 0, settled=True), disposition(0, 0, raw.outcome(raw.ACCEPTED)), detach(0), detach(1))
    assert [type(event) for event in events] == [MessagesReceived, DeliveriesUpdated, LinkDetached, LinkDetached]
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
def test_a_link_detached_and_attached_again_under_its_name_in_one_write_is_another_link(peer: EnginePeer, closed: bool) -> None:
    first = peer.sender(0)
    attach = raw.frame(raw.ATTACH, raw.sender_attach(0, "queue"))
    events = peer.say(transfer(0, 0, b"old"), detach(0, closed=closed), attach, transfer(0, 1, b"new"))
    assert [type(event) for event in events] == [MessagesReceived, LinkDetached, LinkAttached, MessagesReceived]
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


def test_the_end_of_a_session_detaches_its_links_after_what_came_before_and_no_other(peer: EnginePeer) -> None:
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
    assert event.error is not None and event.error.condition == "amqp:not-allowed" and link.name in event.error.description
    assert raw.CLOSE in [frame.code for frame in peer.hear()]


def test_what_is_sent_on_a_link_that_we_have_closed_is_thrown_away(peer: EnginePeer) -> None:
    link = peer.sender()
    peer.engine.close_link(link, REFUSAL)
    before = resident_kib()
    for number in range(0, 2000, 50):
        assert peer.say(*(transfer(0, number + each, b"x" * 20_000) for each in range(50))) == []
        peer.hear()
    assert resident_kib() - before < 20_000, "40 MB were sent"


# --- memory -----------------------------------------------------------------------------------------------------------------


def resident_kib() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


def busy_connection() -> EnginePeer:
    """A connection with everything outstanding: unsettled both ways, partial, a batch begun, credit, links half gone."""
    peer = EnginePeer(idle_timeout_ms=10_000).open()
    sender, receiver, refused = peer.sender(0), peer.receiver(1), peer.sender(2)
    peer.say(*(transfer(0, number, b"x" * 1000) for number in range(10)), transfer(0, 10, b"half", batch=True, more=True))
    peer.engine.send(receiver, tags(*range(10)), [message(b"x" * 1000)] * 10, False)
    peer.engine.close_link(refused, REFUSAL)
    peer.say(disposition(0, 3, raw.outcome(raw.ACCEPTED)), raw.frame(raw.ATTACH, raw.sender_attach(3, "queue")), detach(0))
    assert not sender.gone
    return peer


def test_messages_and_links_of_every_fate_leave_no_memory_behind(peer: EnginePeer) -> None:
    def live(number: int) -> None:
        """One link that is sent a settled message too large, then detached by the peer; one that we close, and the peer answers."""
        peer.attach(raw.sender_attach(0, "queue"), max_message_bytes=10)
        peer.say(transfer(0, number, b"x" * 1_000, settled=True))
        peer.release(peer.say(detach(0)))
        closed = peer.attach(raw.sender_attach(1, "queue"))
        peer.engine.close_link(closed, REFUSAL)
        peer.hear()
        peer.say(detach(1))
        peer.hear()

    for number in range(200):
        live(number)
    before = resident_kib()
    for number in range(200, 5_000):
        live(number)
    assert resident_kib() - before < 2_000


def test_settled_messages_that_are_too_large_leave_no_memory_behind(peer: EnginePeer) -> None:
    peer.sender(max_message_bytes=10)

    def refuse(first: int, count: int) -> None:
        for number in range(first, first + count):
            peer.say(transfer(0, number, b"x" * 20, settled=True))
            peer.hear()

    refuse(0, 2_000)
    before = resident_kib()
    refuse(2_000, 18_000)
    assert resident_kib() - before < 2_000


def test_freeing_with_everything_outstanding_ends_the_links_and_can_be_done_twice() -> None:
    peer = busy_connection()
    links = peer.engine.links()
    peer.engine.free()
    peer.engine.free()
    assert links and all(link.gone for link in links) and peer.engine.links() == [] and peer.engine.finished


def test_thousands_of_connections_leave_no_memory_behind() -> None:
    def make(count: int) -> None:
        for _ in range(count):
            busy_connection().engine.free()

    make(300)  # pools and arenas fill up first
    gc.collect()
    before = resident_kib()
    make(2000)
    gc.collect()
    assert resident_kib() - before < 6_000, "2000 connections kept more than 3 KiB each"


def test_messages_in_and_out_leave_no_memory_behind(peer: EnginePeer) -> None:
    incoming, outgoing = peer.sender(0), peer.receiver(1, credit=0)

    def exchange(first: int, count: int) -> None:
        for number in range(first, first + count, 10):
            events = peer.say(*(transfer(0, number + each, b"x" * 500) for each in range(10)))
            peer.engine.accept(of(events, MessagesReceived)[0].deliveries)
            peer.engine.grant(incoming, 10)
            peer.say(raw.frame(raw.FLOW, raw.flow_fields(1, number, 10)))
            peer.engine.send(outgoing, tags(*range(number, number + 10)), [message(b"x" * 500)] * 10, False)
            peer.hear()
            event = only(peer.say(disposition(number, number + 9, raw.outcome(raw.ACCEPTED))), DeliveriesUpdated)
            peer.engine.settle(event.deliveries, event.outcome)
            peer.hear()

    exchange(0, 3000)
    before = resident_kib()
    exchange(3000, 10_000)
    assert resident_kib() - before < 3_000


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
    assert [event.link.name for event in of(found, LinkAttached)] == [f"sender-{handle}" for handle in range(500)]
    assert type(found[-1]) is MessagesReceived and found[-1].batch and found[-1].payloads == [message(b"batch")]


def test_a_refusal_comes_after_all_that_was_said_before_it() -> None:
    peer = EnginePeer().open()
    attaches = [raw.frame(raw.ATTACH, raw.sender_attach(handle, "queue")) for handle in range(500)]
    too_large = raw.frame(raw.FLOW, [*raw.flow_fields(), *[None] * 6, {"a": "x" * 20_000}])
    found = peer.engine.receive(b"".join(attaches) + too_large + attaches[0], 50)
    while peer.engine.has_more:
        assert not of(found, ConnectionClosed)
        found += peer.engine.receive(b"", 50)
    assert len(of(found, LinkAttached)) == 500 and type(found[-1]) is ConnectionClosed


def test_the_memory_of_many_links_is_given_back_a_part_at_a_time() -> None:
    peer = EnginePeer().open()
    attaches = [raw.frame(raw.ATTACH, raw.sender_attach(handle, "queue")) for handle in range(600)]
    for event in of(peer.say(*attaches), LinkAttached):
        peer.engine.accept_link(event.link)
    peer.hear()
    peer.release(peer.say(*[raw.frame(raw.DETACH, [UInt(handle), True]) for handle in range(600)]))
    writes = 0
    while peer.engine.has_leftovers:
        peer.engine.output()
        writes += 1
        assert writes < 10
    assert writes == 3 and peer.engine.link_count == 0


def test_the_memory_of_a_session_with_many_links_is_given_back_a_part_at_a_time() -> None:
    peer = EnginePeer().open()
    attaches = [raw.frame(raw.ATTACH, raw.sender_attach(handle, "queue")) for handle in range(600)]
    for event in of(peer.say(*attaches), LinkAttached):
        peer.engine.accept_link(event.link)
    peer.hear()
    peer.release(peer.say(raw.frame(raw.END, [])))
    assert raw.END in [frame.code for frame in peer.hear()]
    writes = 1
    while peer.engine.has_leftovers:
        peer.engine.output()
        writes += 1
        assert writes < 10
    assert writes == 3 and peer.engine.link_count == 0
