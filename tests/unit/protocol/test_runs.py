"""Runs of plain deliveries (`protocol/runs.py`, `protocol/native/runs.c`): where they begin and end, and what
they leave to the engine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

from protocol import runs
from protocol._spans import largest, spans
from protocol.events import DeliveriesUpdated, ErrorCondition, Event, MessagesReceived, Outcome
from tests.support import raw_amqp as raw
from tests.support.engine_frames import detach, disposition, payloads, tags, transfer
from tests.support.engine_peer import EnginePeer, message, of, only
from tests.support.memory_use import resident_kib


def whole(number: int, size: int) -> bytes:
    return number.to_bytes(4, "big") + b"x" * (size - 4)


# --- incoming -----------------------------------------------------------------------------------------------


def test_more_messages_than_a_run_has_room_for_come_as_one_event_in_their_order(peer: EnginePeer) -> None:
    count = 2 * runs.MESSAGES_MAX + 1
    peer.sender(credit=count)
    sent = [whole(number, 8) for number in range(count)]
    event = only(
        peer.say(*(transfer(0, number, payload) for number, payload in enumerate(sent))), MessagesReceived
    )
    assert event.payloads == sent and len(event.deliveries) == len(set(event.deliveries)) == count
    peer.engine.accept(event.deliveries)
    assert [(frame.fields[1], frame.fields[2]) for frame in peer.heard(raw.DISPOSITION)] == [(0, count - 1)]


def test_more_bytes_than_a_run_has_room_for_come_as_one_event_in_their_order(peer: EnginePeer) -> None:
    size = 50_000
    count = 2 * runs.BYTES_MAX // size + 2
    peer.sender()
    sent = [whole(number, size) for number in range(count)]
    event = only(
        peer.say(*(transfer(0, number, payload) for number, payload in enumerate(sent))), MessagesReceived
    )
    assert event.payloads == sent and len(event.deliveries) == count


@pytest.mark.parametrize("size", [runs.BYTES_MAX - 1, runs.BYTES_MAX, runs.BYTES_MAX + 1, 3 * runs.BYTES_MAX])
@pytest.mark.parametrize("settled", [False, True])
def test_a_message_around_the_size_of_the_buffer_comes_whole_between_small_ones(
    size: int, settled: bool
) -> None:
    peer = EnginePeer(max_frame_bytes=1 << 20).open()
    peer.sender()
    sent = [b"before", whole(1, size), b"behind"]
    events = peer.say(*(transfer(0, number, payload, settled=settled) for number, payload in enumerate(sent)))
    assert payloads(events) == sent
    assert sum(len(event.deliveries) for event in of(events, MessagesReceived)) == (0 if settled else 3)


def test_messages_of_several_links_stay_in_the_order_in_which_they_came(peer: EnginePeer) -> None:
    links = [peer.sender(handle, credit=100) for handle in range(3)]
    order = [0, 0, 1, 1, 1, 2, 0, 2, 2, 1]
    events = of(
        peer.say(*(transfer(handle, number, whole(number, 10)) for number, handle in enumerate(order))),
        MessagesReceived,
    )
    assert [links.index(event.link) for event in events] == [handle for handle, _ in groupby(order)]
    assert payloads([*events]) == [whole(number, 10) for number in range(len(order))]


def test_settled_and_unsettled_messages_are_told_apart_in_one_read(peer: EnginePeer) -> None:
    peer.sender()
    kinds = [True, True, False, True, False, False]
    events = of(
        peer.say(*(transfer(0, number, whole(number, 9), settled=kind) for number, kind in enumerate(kinds))),
        MessagesReceived,
    )
    assert [(event.settled, len(event.payloads), len(event.deliveries)) for event in events] == [
        (True, 2, 0),
        (False, 1, 1),
        (True, 1, 0),
        (False, 2, 2),
    ]


def test_an_aborted_message_between_plain_ones_is_thrown_away(peer: EnginePeer) -> None:
    peer.sender()
    events = peer.say(
        transfer(0, 0, b"one"),
        transfer(0, 1, b"part", more=True),
        raw.frame(raw.TRANSFER, [*raw.transfer_fields(0, 1)[:5], False, None, None, None, True]),
        transfer(0, 2, b"two"),
    )
    assert payloads(events) == [b"one", b"two"]


def test_a_message_in_parts_between_plain_ones_comes_whole_and_in_its_place(peer: EnginePeer) -> None:
    peer.sender()
    peer.say(transfer(0, 0, b"one"), transfer(0, 1, b"tw", more=True))
    assert payloads(peer.say(transfer(0, 1, b"o"), transfer(0, 2, b"three"))) == [b"two", b"three"]


def test_an_aborted_message_stays_none_when_a_disposition_says_that_it_is_not_settled(
    peer: EnginePeer,
) -> None:
    peer.sender()
    aborted = raw.frame(raw.TRANSFER, [*raw.transfer_fields(0, 0)[:5], False, None, None, None, True])
    unsettled = raw.frame(raw.DISPOSITION, raw.disposition_fields(False, 0, 0, False, None))
    assert payloads(peer.say(aborted, unsettled)) == []


def test_messages_beside_an_unfinished_one_come_as_one_event(peer: EnginePeer) -> None:
    peer.sender(0)
    other = peer.sender(1)
    peer.say(transfer(0, 0, b"first part", more=True))
    event = only(peer.say(*(transfer(1, number, b"m") for number in range(1, 51))), MessagesReceived)
    assert event.link is other and len(event.payloads) == len(event.deliveries) == 50


def test_a_link_that_we_close_in_the_middle_of_a_message_slows_nobody(peer: EnginePeer) -> None:
    link = peer.sender(0)
    peer.say(transfer(0, 0, b"first part", more=True))
    peer.engine.close_link(link, ErrorCondition("amqp:not-found", "gone"))
    assert peer.engine.partial_bytes == 0


def test_large_messages_of_one_read_come_as_one_event() -> None:
    peer = EnginePeer(max_frame_bytes=1 << 20).open()
    peer.sender(max_message_bytes=1 << 22)
    sent = [whole(number, runs.BYTES_MAX + 1) for number in range(3)]
    assert (
        only(
            peer.say(*(transfer(0, number, payload) for number, payload in enumerate(sent))), MessagesReceived
        ).payloads
        == sent
    )


# --- outcomes -----------------------------------------------------------------------------------------------


def outcomes(events: list[Event]) -> list[tuple[int, bool, int]]:
    return [(event.outcome, event.settled, len(event.deliveries)) for event in of(events, DeliveriesUpdated)]


def test_runs_of_outcomes_end_where_the_outcome_or_the_settlement_changes(peer: EnginePeer) -> None:
    link = peer.receiver()
    sent = peer.engine.send(link, tags(*range(8)), [message()] * 8, False)
    peer.hear()
    events = peer.say(
        disposition(0, 2, raw.outcome(raw.ACCEPTED)),
        disposition(3, 3, raw.outcome(raw.RELEASED)),
        disposition(4, 5, raw.outcome(raw.ACCEPTED), settled=True),
        disposition(6, 7, raw.outcome(raw.ACCEPTED)),
    )
    assert outcomes(events) == [
        (Outcome.ACCEPTED, False, 3),
        (Outcome.RELEASED, False, 1),
        (Outcome.ACCEPTED, True, 2),
        (Outcome.ACCEPTED, False, 2),
    ]
    assert [delivery for event in of(events, DeliveriesUpdated) for delivery in event.deliveries] == sent


def test_more_outcomes_than_a_run_has_room_for_come_as_one_event(peer: EnginePeer) -> None:
    count = runs.MESSAGES_MAX + 10
    link = peer.receiver(credit=count)
    sent = peer.engine.send(link, tags(*range(count)), [b"x"] * count, False)
    peer.hear()
    assert (
        only(peer.say(disposition(0, count - 1, raw.outcome(raw.ACCEPTED))), DeliveriesUpdated).deliveries
        == sent
    )


@pytest.mark.parametrize("closed", [True, False])
def test_outcomes_that_come_after_their_links_detach_are_nobodys(peer: EnginePeer, closed: bool) -> None:
    link = peer.receiver()
    peer.engine.send(link, tags(1, 2), [message()] * 2, False)
    peer.hear()
    events = peer.say(
        disposition(0, 0, raw.outcome(raw.ACCEPTED)),
        detach(0, closed=closed),
        disposition(1, 1, raw.outcome(raw.ACCEPTED)),
    )
    assert outcomes(events) == [(Outcome.ACCEPTED, False, 1)]
    peer.release(events)
    assert [frame.code for frame in peer.hear()] == [raw.DETACH]


def test_outcomes_that_name_every_delivery_again_and_again_take_bounded_memory(peer: EnginePeer) -> None:
    count = 1000
    link = peer.receiver(credit=count)
    peer.engine.send(link, tags(*range(count)), [b"x"] * count, False)
    peer.hear()
    before = resident_kib()
    peer.say(*(disposition(number % 2, count - 1, raw.outcome(raw.RECEIVED)) for number in range(1000)))
    assert resident_kib() - before < 100_000, (
        "a million events of 165 bytes, if all of them were kept at a time"
    )


# --- outgoing -----------------------------------------------------------------------------------------------


def test_a_message_goes_out_in_two_parts_without_what_is_skipped(peer: EnginePeer) -> None:
    link = peer.receiver()
    fronts, rests = [b"front-1 ", b"all of 2", b"", b"front-4 "], [b"HEADrest 1", b"", b"HEADrest 3", b"HEAD"]
    assert len(peer.engine.send(link, tags(1, 2, 3, 4), fronts, False, rests, 4)) == 4
    sent = peer.heard(raw.TRANSFER)
    assert [frame.payload for frame in sent] == [b"front-1 rest 1", b"all of 2", b"rest 3", b"front-4 "]
    assert [frame.fields[2] for frame in sent] == tags(1, 2, 3, 4)


def test_a_frame_larger_than_the_buffer_is_written_whole_among_small_ones() -> None:
    peer = EnginePeer(max_frame_bytes=1 << 20).open(max_frame_bytes=1 << 20)
    link = peer.receiver()
    sent = [b"before", whole(1, 2 * runs.BYTES_MAX), b"behind"]
    peer.engine.send(link, tags(1, 2, 3), sent, True)
    assert [frame.payload for frame in peer.heard(raw.TRANSFER)] == sent


def test_many_messages_larger_than_the_buffer_together_are_written_in_order(peer: EnginePeer) -> None:
    link = peer.receiver(credit=100)
    sent = [whole(number, 40_000) for number in range(30)]
    peer.engine.send(link, tags(*range(30)), sent, True)
    assert [frame.payload for frame in peer.heard(raw.TRANSFER)] == sent


def test_tags_may_differ_in_size(peer: EnginePeer) -> None:
    link = peer.receiver()
    given = [b"x" * 16, b"y"]
    peer.engine.send(link, given, [b"a", b"b"], False)
    assert [(frame.fields[2], frame.payload) for frame in peer.heard(raw.TRANSFER)] == [
        (given[0], b"a"),
        (given[1], b"b"),
    ]


@pytest.mark.parametrize("call", [spans, largest])
def test_bytes_alone_have_spans_and_sizes(call: Callable[[Any], Any]) -> None:
    assert largest([]) == 0 and largest([b"a", b"abc", b""]) == 3 and spans([]) == b""
    for wrong in ((b"a",), [bytearray(b"a")], ["a"]):
        with pytest.raises(TypeError):
            call(wrong)


@pytest.mark.parametrize(
    ("given", "fronts", "rests"),
    [
        (tags(1, 2, 3), [b"a"], []),
        (tags(1, 2), [b"a", b"b"], [b"HEADx"]),
    ],
    ids=["fewer fronts", "fewer rests"],
)
def test_what_does_not_belong_together_is_not_sent(
    peer: EnginePeer, given: list[bytes], fronts: list[bytes], rests: list[bytes]
) -> None:
    link = peer.receiver()
    with pytest.raises(ValueError, match="every message"):
        peer.engine.send(link, given, fronts, True, rests, 4)
    assert peer.hear() == []
