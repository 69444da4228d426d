"""Messages that the engine receives: whole, in parts, too large, in batches. Rules: AMQP contract 0.4."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.codec import Described, UInt, ULong
from protocol.events import (
    ConnectionClosed,
    ErrorCondition,
    MessagesReceived,
    MessageTooLarge,
)
from tests.support import raw_amqp as raw
from tests.support.engine_frames import REFUSAL, detach, payloads, transfer
from tests.support.engine_peer import EnginePeer, of, only


def test_messages_of_one_read_come_as_one_event_and_are_accepted_by_one_disposition(peer: EnginePeer) -> None:
    link = peer.sender(credit=500)
    event = only(peer.say(*(transfer(0, number, b"%d" % number) for number in range(200))), MessagesReceived)
    assert (
        event.link is link
        and event.payloads == [b"%d" % number for number in range(200)]
        and not event.settled
        and not event.batch
    )
    peer.engine.accept(event.deliveries)
    (answer,) = peer.heard(raw.DISPOSITION)
    assert (answer.field(0), answer.field(1), answer.field(2), answer.field(3)) == (True, 0, 199, True)
    assert answer.field(4) == Described(ULong(raw.ACCEPTED), [])


def test_messages_accepted_in_any_order_before_one_output_share_a_disposition(peer: EnginePeer) -> None:
    """Messages of one read go to several partitions, which answer at different times."""
    peer.sender(credit=500)
    event = only(peer.say(*(transfer(0, number, b"x") for number in range(200))), MessagesReceived)
    for part in range(16):
        peer.engine.accept(event.deliveries[part:150:16])
    peer.engine.accept(event.deliveries[:151:-1])
    answers = [(each.field(1), each.field(2) or each.field(1)) for each in peer.heard(raw.DISPOSITION)]
    assert answers == [(0, 149), (152, 199)]
    peer.engine.accept(event.deliveries[150:152])
    assert [(each.field(1), each.field(2)) for each in peer.heard(raw.DISPOSITION)] == [(150, 151)]


def test_an_acceptance_is_written_before_the_link_is_freed(peer: EnginePeer) -> None:
    link = peer.sender(credit=5)
    event = only(peer.say(transfer(0, 0, b"x"), transfer(0, 1, b"y")), MessagesReceived)
    peer.engine.accept(event.deliveries[:1])
    peer.engine.close_link(link, REFUSAL)
    assert peer.say(detach(0)) == [], "the link is freed at once, because we have closed it"
    outcomes = {each.field(1): each.field(4) for each in peer.heard(raw.DISPOSITION)}
    assert outcomes == {0: Described(ULong(raw.ACCEPTED), []), 1: None}


def test_a_message_of_several_frames_comes_whole(peer: EnginePeer) -> None:
    peer.sender()
    assert peer.say(transfer(0, 0, b"a" * 1000, more=True)) == []
    assert peer.say(transfer(0, 0, b"b" * 1000, more=True)) == []
    event = only(peer.say(transfer(0, 0, b"c")), MessagesReceived)
    assert event.payloads == [b"a" * 1000 + b"b" * 1000 + b"c"]


def test_messages_of_several_frames_on_several_links_come_whole_each(peer: EnginePeer) -> None:
    links = [peer.sender(handle) for handle in range(3)]
    stream = [
        transfer(handle, handle, b"%d" % handle, more=part < 9) for part in range(10) for handle in range(3)
    ]
    events = of(peer.say(*stream), MessagesReceived)
    assert [(event.link, event.payloads) for event in events] == [
        (links[handle], [b"%d" % handle * 10]) for handle in range(3)
    ]


def test_an_empty_message_is_a_message(peer: EnginePeer) -> None:
    peer.sender()
    assert only(peer.say(transfer(0, 0, b"")), MessagesReceived).payloads == [b""]
    assert peer.say(transfer(0, 1, b"", more=True)) == []
    assert only(peer.say(transfer(0, 1, b"")), MessagesReceived).payloads == [b""]


def test_settled_transfers_are_reported_as_settled_and_leave_nothing_to_settle(peer: EnginePeer) -> None:
    peer.sender()
    events = peer.say(transfer(0, 0, settled=True), transfer(0, 1, settled=True), transfer(0, 2))
    assert [
        (len(event.payloads), len(event.deliveries), event.settled) for event in of(events, MessagesReceived)
    ] == [
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
    assert (flow.field(4), flow.field(5), flow.field(6)) == (0, 0, 77), (
        "handle, delivery-count and link-credit"
    )


def test_an_aborted_delivery_is_thrown_away_and_its_credit_granted_anew(peer: EnginePeer) -> None:
    peer.sender(credit=10)
    peer.say(transfer(0, 0, b"half", more=True))
    fields = [*raw.transfer_fields(0, 0), None, None, None, True]
    assert peer.say(raw.frame(raw.TRANSFER, fields)) == []
    (flow,) = peer.heard(raw.FLOW)
    assert (flow.field(5), flow.field(6)) == (1, 10), "delivery-count, link-credit"
    assert only(peer.say(transfer(0, 1, b"next")), MessagesReceived).payloads == [b"next"]


# --- size ---------------------------------------------------------------------------------------------------


def test_a_message_at_the_limit_is_taken_and_one_over_it_is_not(peer: EnginePeer) -> None:
    link = peer.sender(max_message_bytes=1000)
    assert payloads(peer.say(transfer(0, 0, b"x" * 1000))) == [b"x" * 1000]
    event = only(peer.say(transfer(0, 1, b"x" * 1001)), MessageTooLarge)
    assert (event.link, event.size, len(event.deliveries)) == (link, 1001, 1)
    peer.engine.reject(event.deliveries, ErrorCondition("amqp:link:message-size-exceeded", "1001 bytes"))
    assert [frame.field(4).descriptor for frame in peer.heard(raw.DISPOSITION)] == [raw.REJECTED]
    assert payloads(peer.say(transfer(0, 2, b"after"))) == [b"after"]


def test_a_message_of_several_frames_is_refused_as_soon_as_it_is_too_large_and_what_follows_is_thrown_away(
    peer: EnginePeer,
) -> None:
    peer.sender(max_message_bytes=1000)
    assert peer.say(transfer(0, 0, b"x" * 600, more=True)) == []
    event = only(peer.say(transfer(0, 0, b"x" * 600, more=True)), MessageTooLarge)
    peer.engine.reject(event.deliveries, ErrorCondition("amqp:link:message-size-exceeded", "too large"))
    assert [frame.field(4).descriptor for frame in peer.heard(raw.DISPOSITION)] == [raw.REJECTED]
    assert peer.say(*(transfer(0, 0, b"x" * 600, more=part < 9) for part in range(10))) == []
    assert payloads(peer.say(transfer(0, 1, b"after"))) == [b"after"]


def test_what_follows_a_message_that_was_too_large_is_thrown_away_also_while_nobody_has_refused_it_yet(
    peer: EnginePeer,
) -> None:
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


# --- states -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [raw.outcome(raw.ACCEPTED), raw.outcome(raw.RECEIVED, [UInt(0), ULong(0)])],
    ids=["accepted", "received"],
)
def test_a_transfer_with_another_state_is_a_message_like_any(peer: EnginePeer, state: Any) -> None:
    peer.sender()
    assert payloads(
        peer.say(transfer(0, 0, b"one"), transfer(0, 1, b"two", state=state), transfer(0, 2, b"three"))
    ) == [
        b"one",
        b"two",
        b"three",
    ]


# --- batches ------------------------------------------------------------------------------------------------


def test_a_batch_comes_alone_and_what_is_around_it_is_none(peer: EnginePeer) -> None:
    peer.sender()
    stream = [
        transfer(0, 0, b"a"),
        transfer(0, 1, b"b", batch=True),
        transfer(0, 2, b"c", batch=True),
        transfer(0, 3, b"d"),
    ]
    events = of(peer.say(*stream), MessagesReceived)
    assert [(event.payloads, event.batch) for event in events] == [
        ([b"a"], False),
        ([b"b"], True),
        ([b"c"], True),
        ([b"d"], False),
    ]


def test_the_formats_bytes_in_a_payload_or_a_tag_make_no_batch(peer: EnginePeer) -> None:
    peer.sender()
    mark = b"\x70\x80\x01\x37\x00"
    stream = [
        transfer(0, 0, mark * 40),
        transfer(0, 1, b"x", tag=b"\x80\x01\x37\x00"),
        transfer(0, 2, b"\x00\x53\x14" + mark, tag=mark),
    ]
    events = of(peer.say(*stream), MessagesReceived)
    assert [event.batch for event in events] == [False] and len(events[0].payloads) == 3


def test_a_batch_of_several_frames_between_transfers_of_other_links_is_a_batch_and_they_are_not(
    peer: EnginePeer,
) -> None:
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
    for number in range(1, 5):  # proton pools deliveries: one of these reuses the batch's delivery
        assert peer.say(transfer(0, number, b"part", more=True)) == []
        event = only(peer.say(transfer(0, number, b"")), MessagesReceived)
        assert not event.batch
        peer.engine.accept(event.deliveries)
        peer.hear()
