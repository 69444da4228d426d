"""A disposition about many deliveries: its outcomes are read in slices."""

from __future__ import annotations

import pytest

from protocol.engine import PUMPED_AT_ONCE, PUMPED_ONE_BY_ONE
from protocol.events import DeliveriesUpdated, Event, MessagesReceived
from protocol.runs import MESSAGES_MAX
from tests.support import raw_amqp as raw
from tests.support.engine_frames import tags
from tests.support.engine_peer import EnginePeer, message, of

EVENTS_AT_ONCE = 64
COUNT = 3 * PUMPED_AT_ONCE


def sent(peer: EnginePeer) -> list[int]:
    """Send COUNT messages; gives their deliveries."""
    link = peer.receiver(credit=COUNT)
    deliveries: list[int] = []
    for first in range(0, COUNT, MESSAGES_MAX):
        numbers = range(first, min(first + MESSAGES_MAX, COUNT))
        deliveries += peer.engine.send(link, tags(*numbers), [b"x"] * len(numbers), False)
        peer.hear()
    return deliveries


def settled(outcome: int) -> bytes:
    """A disposition about all of them."""
    return raw.frame(
        raw.DISPOSITION,
        raw.disposition_fields(raw.RECEIVER, 0, COUNT - 1, False, raw.outcome(outcome)),
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
