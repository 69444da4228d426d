"""Messages that the engine sends: their numbers, credit, drain and settlement. Rules: AMQP contract 0.4."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.codec import Described, Symbol, UInt, ULong, decode
from protocol.events import (
    CreditGranted,
    DeliveriesUpdated,
    ErrorCondition,
    Outcome,
)
from tests.support import raw_amqp as raw
from tests.support.engine_frames import assert_has_three_fields, disposition, tags
from tests.support.engine_peer import EnginePeer, frames_of, message, of, only


def test_rule_8_every_transfer_says_that_its_message_format_is_0(peer: EnginePeer) -> None:
    link = peer.receiver()
    peer.engine.send(link, tags(1, 2), [message(), message(b"x" * 100_000)], False)
    transfers = peer.heard(raw.TRANSFER)
    assert len(transfers) >= 3, "the second message takes more than one frame"
    firsts = [frame for frame in transfers if frame.field(2) is not None]
    assert len(firsts) >= 2 and all(frame.field(3) == 0 for frame in firsts)


def test_rule_9_deliveries_are_numbered_consecutively_per_session_over_several_links(
    peer: EnginePeer,
) -> None:
    links = [peer.receiver(handle) for handle in range(3)]
    for number in range(12):
        peer.engine.send(
            links[number % 3],
            tags(number),
            [message(b"x" * (100_000 if number % 4 == 0 else 1))],
            number % 2 == 0,
        )
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
    assert (first.field(2), first.payload, bool(first.field(4)), bool(first.field(5))) == (
        tags(7)[0],
        message(b"one"),
        False,
        False,
    )
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


# --- drain (AMQP contract 0.4.11) ---------------------------------------------------------------------------


def test_rule_11_a_drain_is_answered_by_a_flow_with_drain_no_credit_and_an_advanced_delivery_count(
    peer: EnginePeer,
) -> None:
    link = peer.receiver(credit=10)
    peer.engine.send(link, tags(1, 2), [message()] * 2, False)
    peer.hear()
    only(peer.say(raw.frame(raw.FLOW, raw.flow_fields(0, 2, 8, drain=True))), CreditGranted)
    assert peer.engine.draining(link) and peer.engine.credit(link) == 8
    peer.engine.drained(link)
    (flow,) = peer.heard(raw.FLOW)
    assert (flow.field(5), flow.field(6), flow.field(8)) == (10, 0, True), (
        "delivery-count, link-credit, drain"
    )
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


# --- settlement (AMQP contract 0.4.10) ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "fields"),
    [
        (Outcome.ACCEPTED, []),
        (Outcome.RELEASED, []),
        (Outcome.REJECTED, []),
        (Outcome.MODIFIED, [True, True]),
    ],
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
    peer.engine.settle(
        event.deliveries, event.outcome, failed=event.failed, undeliverable_here=event.undeliverable_here
    )
    answers = peer.heard(raw.DISPOSITION)
    assert sorted(
        each
        for answer in answers
        for each in range(answer.field(1), (answer.field(2) or answer.field(1)) + 1)
    ) == [0, 1, 2]
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
        ULong(raw.ERROR),
        [
            Symbol("com.microsoft:dead-letter"),
            "why",
            {Symbol("DeadLetterReason"): "broken", Symbol("Other"): None},
        ],
    )
    modified = raw.outcome(raw.MODIFIED, [False, True, {Symbol("colour"): "red"}])
    rejected, deferred = of(
        peer.say(disposition(0, 0, raw.outcome(raw.REJECTED, [error])), disposition(1, 1, modified)),
        DeliveriesUpdated,
    )
    assert rejected.error is not None and rejected.error.condition == "com.microsoft:dead-letter"
    assert decode(rejected.error.info)[0] == {"DeadLetterReason": "broken", "Other": None}
    assert (deferred.failed, deferred.undeliverable_here) == (False, True) and decode(deferred.annotations)[
        0
    ] == {"colour": "red"}


def test_different_outcomes_are_different_events_and_equal_ones_are_one(peer: EnginePeer) -> None:
    link = peer.receiver()
    peer.engine.send(link, tags(*range(6)), [message()] * 6, False)
    peer.hear()
    accepted, released = raw.outcome(raw.ACCEPTED), raw.outcome(raw.RELEASED)
    events = of(
        peer.say(
            disposition(0, 1, accepted),
            disposition(2, 2, accepted),
            disposition(3, 3, released),
            disposition(4, 5, accepted),
        ),
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
