"""Dispositions about many deliveries: proton applies them, and their outcomes are read, in slices."""

from __future__ import annotations

import pytest

from protocol.engine import PUMPED_AT_ONCE, PUMPED_ONE_BY_ONE
from protocol.events import DeliveriesUpdated, Event, MessagesReceived
from protocol.links import Delivery
from protocol.proton_values import delivery_of, lib
from protocol.runs import MESSAGES_MAX
from tests.support import raw_amqp as raw
from tests.support.engine_frames import tags
from tests.support.engine_peer import EnginePeer, message, of

EVENTS_AT_ONCE = 64
COUNT = 3 * PUMPED_AT_ONCE


def sent(peer: EnginePeer) -> list[Delivery]:
    """Send COUNT messages; gives their deliveries."""
    link = peer.receiver(credit=COUNT)
    deliveries: list[Delivery] = []
    for first in range(0, COUNT, MESSAGES_MAX):
        numbers = range(first, min(first + MESSAGES_MAX, COUNT))
        deliveries += peer.engine.send(link, tags(*numbers), [b"x"] * len(numbers), False)
        peer.hear()
    return deliveries


def settled(outcome: int, first: int = 0, last: int = COUNT - 1) -> bytes:
    """A disposition about all of them, or some."""
    return raw.frame(
        raw.DISPOSITION,
        raw.disposition_fields(raw.RECEIVER, first, last, False, raw.outcome(outcome)),
    )


def reported(events: list[Event]) -> list[int]:
    """The deliveries that have an outcome, in order."""
    return [delivery for update in of(events, DeliveriesUpdated) for delivery in update.deliveries]


@pytest.mark.parametrize(
    ("outcome", "most"),
    [
        (raw.ACCEPTED, PUMPED_AT_ONCE + MESSAGES_MAX),
        (raw.RELEASED, PUMPED_AT_ONCE // PUMPED_ONE_BY_ONE + 1),
    ],
)
@pytest.mark.parametrize("is_large", [False, True])
def test_many_outcomes_come_in_slices_and_nothing_overtakes_them(
    peer: EnginePeer, outcome: int, most: int, is_large: bool
) -> None:
    """Symptom: 90,000 outcomes took one turn of the event loop for 55 ms, and those that are not `accepted`
    for four times as long."""
    peer.sender(1)
    deliveries, body = sent(peer), message(bytes(50_000 if is_large else 10))
    behind = raw.frame(raw.TRANSFER, raw.transfer_fields(1, 0), body)
    events = peer.engine.receive(settled(outcome) + behind, EVENTS_AT_ONCE)
    found, slices = reported(events), 1
    assert 0 < len(found) <= most
    while peer.engine.has_more:
        assert not of(events, MessagesReceived), "it is the last event"
        events = peer.engine.receive(b"", EVENTS_AT_ONCE)
        assert len(reported(events)) <= most
        found += reported(events)
        slices += 1
    assert found == deliveries and slices >= COUNT // most
    (received,) = of(events, MessagesReceived)
    assert received.payloads == [body]


@pytest.mark.parametrize("each", [100, 1_000, COUNT])
@pytest.mark.parametrize("between", [b"", raw.frame(raw.TRANSFER, raw.transfer_fields(1, 0, batch=True))])
def test_proton_applies_few_outcomes_in_each_turn(peer: EnginePeer, each: int, between: bytes) -> None:
    """Symptom: it applied 90,000 in one turn of the event loop, in 30 ms."""
    if between:
        peer.sender(1)
    deliveries = sent(peer)
    said = between.join(
        settled(raw.ACCEPTED, first, min(first + each, COUNT) - 1) for first in range(0, COUNT, each)
    )
    found = reported(peer.engine.receive(said, EVENTS_AT_ONCE))
    while peer.engine.has_more:
        with_outcome = sum(map(has_outcome, deliveries))
        assert with_outcome - len(found) < PUMPED_AT_ONCE
        found += reported(peer.engine.receive(b"", EVENTS_AT_ONCE))
    assert found == deliveries


def test_dispositions_of_deliveries_that_do_not_exist_take_many_turns(peer: EnginePeer) -> None:
    deliveries = sent(peer)
    said = settled(raw.ACCEPTED, 0, 2**31 - 1) * 100 + raw.frame(raw.FLOW, raw.flow_fields())
    found, turns = reported(peer.engine.receive(said, EVENTS_AT_ONCE)), 1
    while peer.engine.has_more:
        found += reported(peer.engine.receive(b"", EVENTS_AT_ONCE))
        turns += 1
    assert {*found} == {*deliveries} and turns >= 100


def has_outcome(delivery: Delivery) -> bool:
    """Whether proton has applied the peer's outcome."""
    return bool(lib.pn_delivery_remote_state(delivery_of(delivery)))


def test_what_comes_meanwhile_and_a_write_leave_outcomes_in_order(peer: EnginePeer) -> None:
    peer.sender(1)
    deliveries = sent(peer)
    events = peer.engine.receive(settled(raw.ACCEPTED), EVENTS_AT_ONCE)
    assert peer.engine.has_more
    later = raw.frame(raw.TRANSFER, raw.transfer_fields(1, 0), message())
    events += peer.engine.receive(later, EVENTS_AT_ONCE)
    while peer.engine.has_more:
        peer.engine.output()
        events += peer.engine.take_events()
        events += peer.engine.receive(b"", EVENTS_AT_ONCE)
    assert reported(events) == deliveries
    assert isinstance(events[-1], MessagesReceived)


def test_all_outcomes_are_reported_when_the_peer_hangs_up(peer: EnginePeer) -> None:
    deliveries = sent(peer)
    events = peer.engine.receive(settled(raw.ACCEPTED), EVENTS_AT_ONCE)
    assert peer.engine.has_more
    assert reported(events + peer.engine.receive_eof()) == deliveries
