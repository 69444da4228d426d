"""Client errors that proton would refuse (`protocol/lenience.py`): delivery-ids out of sequence, and a detach
after an end. And what is kept of a stream with dispositions that take it long."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol._runs import lib
from protocol.codec import Described, UInt, ULong
from protocol.events import (
    ConnectionClosed,
    ErrorCondition,
    Event,
    LinkDetached,
    MessagesReceived,
    MessageTooLarge,
)
from protocol.lenience import Lenience
from protocol.limits import RESOURCE_LIMIT
from protocol.links import Delivery
from protocol.runs import BYTES_MAX
from tests.support import plain_frames
from tests.support import raw_amqp as raw
from tests.support.delivery_numbers import begun, native_ids, taken
from tests.support.engine_frames import detach, disposition, disposition_ranges, payloads, transfer
from tests.support.engine_peer import EnginePeer, frames_of, message, of, only

TOP = 2**32 - 1
ACCEPTED = raw.outcome(raw.ACCEPTED)
SEQUENCES = [
    [0, 1, 2, 3],
    [1, 1, 2],
    [1, 0, 2],
    [7, 7, 9, 9, 11],
    [3, 5, 4, 4, 100, 6, 0],
    [TOP, TOP, 0, 2, 1, 1],
    [5, 300, 5, 70_000, 5, 0],
]


def deliveries(events: list[Event]) -> list[Delivery]:
    return [delivery for event in of(events, MessagesReceived) for delivery in event.deliveries]


def numbered(numbers: list[int], **given: Any) -> list[bytes]:
    """A transfer for each number, all with the same tag, as racing threads give it to several deliveries."""
    return [
        transfer(0, number, b"m%d" % place, tag=b"\0\0\0\1", **given) for place, number in enumerate(numbers)
    ]


def answered(peer: EnginePeer) -> list[int]:
    """The delivery-ids of settled deliveries, in the order of the dispositions."""
    found: list[int] = []
    for frame in peer.heard(raw.DISPOSITION):
        assert frame.field(0) is raw.RECEIVER and frame.field(3) is True
        first, last = frame.field(1), first_or(frame.field(2), frame.field(1))
        found += [(first + step) % 2**32 for step in range((last - first) % 2**32 + 1)]
    return found


def first_or(value: Any, other: Any) -> Any:
    return other if value is None else value


# --- numbers out of sequence --------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", SEQUENCES)
def test_every_delivery_comes_and_is_answered_by_the_number_that_its_sender_gave_it(
    peer: EnginePeer, numbers: list[int]
) -> None:
    peer.sender()
    events = peer.say(*numbered(numbers))
    assert payloads(events) == [b"m%d" % place for place in range(len(numbers))]
    peer.engine.accept(deliveries(events))
    assert answered(peer) == numbers


@pytest.mark.parametrize("numbers", SEQUENCES)
def test_outcomes_in_another_order_find_their_deliveries(peer: EnginePeer, numbers: list[int]) -> None:
    peer.sender()
    found = deliveries(peer.say(*numbered(numbers)))
    answers = []
    for delivery in reversed(found):
        peer.engine.accept([delivery])
        answers += answered(peer)
    assert answers == numbers[::-1]
    assert not peer.engine._lenience.watches, "nothing is kept of what was answered"


def test_one_write_with_outcomes_of_different_kinds_names_each_delivery_once(peer: EnginePeer) -> None:
    peer.sender()
    found = deliveries(peer.say(*numbered([4, 4, 6, 5, 9])))
    peer.engine.accept(found[:2])
    peer.engine.reject(found[2:3], ErrorCondition("amqp:not-allowed", "because"))
    peer.engine.accept(found[3:])
    frames = peer.heard(raw.DISPOSITION)
    told = [(frame.field(1), frame.field(2), frame.field(4).descriptor) for frame in frames]
    accepted = [(4, 4, raw.ACCEPTED), (4, 4, raw.ACCEPTED), (5, 5, raw.ACCEPTED), (9, 9, raw.ACCEPTED)]
    assert sorted(told) == sorted([*accepted, (6, 6, raw.REJECTED)])
    (refusal,) = [frame.field(4).value[0] for frame in frames if frame.field(4).descriptor == raw.REJECTED]
    assert refusal.value[:2] == ["amqp:not-allowed", "because"]


def test_numbers_that_are_in_order_again_are_answered_in_one_disposition(peer: EnginePeer) -> None:
    peer.sender()
    peer.engine.accept(deliveries(peer.say(*numbered([1, 3, 4, 5, 6]))))
    assert [(frame.field(1), frame.field(2)) for frame in peer.heard(raw.DISPOSITION)] == [(1, 1), (3, 6)]


def test_a_stream_cut_at_any_byte_means_the_same() -> None:
    said = b"".join(
        (
            *numbered([1, 1, 0]),
            *numbered([400], settled=True),
            *numbered([5], batch=True),
            raw.frame(raw.FLOW, raw.flow_fields()),
            transfer(0, 9, b"first ", more=True, tag=b"t"),
            transfer(0, 10, b"second", tag=b"t"),
            raw.raw_frame(b""),
            raw.raw_frame(raw.performative(raw.TRANSFER, raw.transfer_fields(0, 77)) + b"end", doff=255),
        )
    )
    whole = EnginePeer().open()
    whole.sender()
    expected = payloads(whole.say(said))
    assert expected == [b"m0", b"m1", b"m2", b"m0", b"m0", b"first second", b"end"]
    for cut in range(1, len(said)):
        peer = EnginePeer().open()
        peer.sender()
        events = [*peer.say(said[:cut]), *peer.say(said[cut:])]
        assert payloads(events) == expected
        assert [len(event.payloads) for event in of(events, MessagesReceived) if event.batch] == [1]
        peer.engine.accept(deliveries(events))
        assert answered(peer) == [1, 1, 0, 5, 9, 77]
        peer.engine.free()


def test_a_frame_of_the_largest_size_has_room_for_a_longer_number() -> None:
    peer = EnginePeer(max_frame_bytes=512).open()
    peer.sender()
    room = 512 - len(transfer(0, 0, b"", tag=b"tag1"))
    events = peer.say(transfer(0, 2**31), transfer(0, 0, b"x" * room, tag=b"tag1"))
    peer.engine.accept(deliveries(events))
    assert answered(peer) == [2**31, 0]


def test_sessions_number_for_themselves_and_a_channel_begins_anew(peer: EnginePeer) -> None:
    """Our channels differ from the client's: for its channels 7 and 3, we use the lowest that are free."""
    for channel in (7, 3):
        peer.say(raw.frame(raw.BEGIN, raw.begin_fields(), channel=channel))
        peer.sender(0, channel=channel)
    events = peer.say(
        *(
            transfer(0, number, b"x", channel=channel)
            for channel, number in ((7, 5), (3, 1), (7, 5), (3, 0), (7, 9))
        )
    )
    peer.engine.accept(deliveries(events))
    by_channel = {
        channel: [(f.field(1), f.field(2)) for f in each]
        for channel, each in groupby(peer.heard(raw.DISPOSITION), lambda f: f.channel)
    }
    assert sorted(by_channel.values()) == [[(1, 1), (0, 0)], [(5, 5), (5, 5), (9, 9)]]
    peer.release(
        peer.say(raw.frame(raw.END, [], channel=7), raw.frame(raw.BEGIN, raw.begin_fields(), channel=7))
    )
    peer.hear()
    peer.sender(0, channel=7)
    events = peer.say(*(transfer(0, number, b"x", channel=7) for number in (20, 20, 22)))
    peer.engine.accept(deliveries(events))
    assert answered(peer) == [20, 20, 22]
    assert not peer.engine._lenience.watches


def test_deliveries_of_several_frames_on_two_links_keep_apart_while_their_numbers_change(
    peer: EnginePeer,
) -> None:
    """The client reads its counter again for each frame of a delivery, and another thread increments it in
    between."""
    links = [peer.sender(handle) for handle in range(2)]
    events = peer.say(
        transfer(0, 3, b"a1", more=True, tag=b"a"),
        transfer(1, 3, b"b1", more=True, tag=b"b"),
        transfer(0, 3, b"a2", more=True, tag=b"a"),
        transfer(1, 4, b"b2", more=True, tag=b"b"),
        raw.frame(raw.TRANSFER, [UInt(0), None, None, None, False, True], b"a3"),
        transfer(1, 5, b"b3", tag=b"b"),
        transfer(1, 5, b"c", tag=b"c"),
        transfer(0, 6, b"a4", tag=b"a"),
    )
    got = [
        (links.index(event.link), payload)
        for event in of(events, MessagesReceived)
        for payload in event.payloads
    ]
    assert sorted(got) == [(0, b"a1a2a3a4"), (1, b"b1b2b3"), (1, b"c")]
    peer.engine.accept(deliveries(events))
    assert sorted(answered(peer)) == [3, 3, 5]


def test_the_rest_of_a_message_that_is_too_large_is_thrown_away_under_any_number(peer: EnginePeer) -> None:
    peer.sender(max_message_bytes=10)
    events = peer.say(transfer(0, 5), transfer(0, 5, b"x" * 11, more=True, tag=b"t"))
    large = only(of(events, MessageTooLarge), MessageTooLarge)
    peer.engine.reject(large.deliveries, ErrorCondition("amqp:link:message-size-exceeded", "too large"))
    events += peer.say(
        transfer(0, 6, b"y", more=True, tag=b"t"),
        transfer(0, 7, b"z", tag=b"t"),
        transfer(0, 7, b"next", tag=b"u"),
    )
    assert payloads(events) == [b"x", b"next"]
    peer.engine.accept(deliveries(events))
    assert sorted(answered(peer)) == [5, 5, 7]


def test_aborted_and_settled_deliveries_count_and_leave_nothing_behind(peer: EnginePeer) -> None:
    peer.sender()
    aborted = [UInt(0), None, None, None, None, False, None, None, None, True]
    events = peer.say(
        transfer(0, 9),
        transfer(0, 1, b"gone", more=True, tag=b"t"),
        raw.frame(raw.TRANSFER, aborted),
        transfer(0, 1, b"settled", settled=True),
        transfer(0, 4, b"late", more=True, tag=b"v"),
        transfer(0, 4, b"ly", settled=True, tag=b"v"),
        transfer(0, 3, b"end"),
    )
    assert payloads(events) == [b"x", b"settled", b"lately", b"end"]
    peer.engine.accept(deliveries(events))
    assert answered(peer) == [9, 3]
    assert not peer.engine._lenience.watches


def test_what_was_numbered_for_a_link_is_forgotten_with_it(peer: EnginePeer) -> None:
    for closed in (True, False):
        peer.sender()
        events = peer.say(*numbered([5, 5, 5]), detach(0, closed=closed))
        assert len(deliveries(events)) == 3 and of(events, LinkDetached)
        peer.release(events)
        peer.hear()
        assert not peer.engine._lenience.watches


def test_outcomes_in_the_write_that_answers_a_detach_have_the_senders_numbers(peer: EnginePeer) -> None:
    peer.sender()
    events = peer.say(*numbered([5, 5, 5]), detach(0))
    peer.engine.accept(deliveries(events)[1:])
    peer.release(events)
    assert answered(peer) == [5, 5]


def test_a_write_before_the_detach_is_served_forgets_no_number(peer: EnginePeer) -> None:
    peer.sender()
    for handle in (1, 2):
        peer.receiver(handle)
    # Too much for one turn: flows that make one event each stand between the transfers and the detach.
    flows = [
        raw.frame(
            raw.FLOW, [*raw.flow_fields(1 + each % 2, 0, 200 + each), None, None, None, {"a": "x" * 280}]
        )
        for each in range(200)
    ]
    events = peer.engine.receive(b"".join((*numbered([5, 5, 5]), *flows, detach(0))), 64)
    found = deliveries(events)
    assert len(found) == 3 and peer.engine.has_more
    peer.hear()
    peer.engine.accept(found[:1])
    assert answered(peer) == [5]
    while peer.engine.has_more:
        events = peer.engine.receive(b"", 64)
    assert of(events, LinkDetached)
    peer.engine.accept(found[1:])
    assert answered(peer) == [5, 5]
    peer.release(events)
    peer.hear()
    assert not peer.engine._lenience.watches


def test_a_write_of_many_bytes_goes_out_whole_while_numbers_are_watched(peer: EnginePeer) -> None:
    peer.sender()
    receiver = peer.receiver(1, credit=1_000)
    found = deliveries(peer.say(*numbered([5, 5, 5])))
    bodies = [
        message(bytes([place % 256]) * 3_001) for place in range(200)
    ]  # more than is taken from proton at once
    peer.engine.send(receiver, [b"%08d" % place for place in range(200)], bodies, False)
    peer.engine.accept(found)
    written = b"".join(peer.engine.output())
    assert len(written) > 2 * BYTES_MAX
    frames = frames_of(written)
    assert [frame.payload for frame in frames if frame.code == raw.TRANSFER] == bodies
    assert [frame.field(1) for frame in frames if frame.code == raw.DISPOSITION] == [5, 5, 5]


def test_transfers_on_a_link_that_is_closed_leave_nothing_behind(peer: EnginePeer) -> None:
    link = peer.sender()
    peer.say(transfer(0, 1))
    peer.engine.close_link(link, ErrorCondition("amqp:unauthorized-access", "expired"))
    peer.hear()
    for _ in range(3):
        peer.say(*numbered([1, 1, 1]))
        peer.hear()
        assert not peer.engine._lenience.watches


# --- errors that are still refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(
            raw.frame(raw.TRANSFER, [UInt(0), None, b"t"], b"x"),
            id="the first delivery of a session without a number",
        ),
        pytest.param(
            transfer(0, 0, more=True, tag=b"a") + transfer(0, 1, more=True, tag=b"b"),
            id="two deliveries on a link at once",
        ),
        pytest.param(transfer(5, 0), id="a link that is not there"),
        pytest.param(transfer(0, 0) + transfer(0, 0, channel=4), id="a session that is not there"),
        pytest.param(detach(0) + detach(0), id="a link that is detached already"),
        pytest.param(
            raw.frame(raw.DETACH, [UInt(0), True], channel=4),
            id="a detach on a channel that never had a session",
        ),
    ],
)
def test_what_nobody_can_make_sense_of_is_refused(peer: EnginePeer, said: bytes) -> None:
    peer.sender()
    assert of(peer.say(said), ConnectionClosed)


def test_a_number_of_another_type_is_left_to_proton(peer: EnginePeer) -> None:
    peer.sender()
    peer.say(transfer(0, 0), raw.frame(raw.TRANSFER, [UInt(0), "one", b"t"], b"x"))
    assert of(peer.say(*numbered([7])), ConnectionClosed), "from there on, nothing is made good"


# --- a detach after an end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [True, False])
def test_a_detach_behind_the_end_of_its_session_is_passed_over(peer: EnginePeer, at_once: bool) -> None:
    peer.sender()
    frames = [raw.frame(raw.END, []), detach(0), detach(1), raw.frame(raw.CLOSE, [])]
    events: list[Event] = []
    for said in [b"".join(frames)] if at_once else [bytes([byte]) for byte in b"".join(frames)]:
        found = peer.say(said)
        peer.release(found)
        events += found
    assert only(of(events, ConnectionClosed), ConnectionClosed).error is None
    assert [frame.code for frame in peer.hear()] == [raw.END, raw.CLOSE]
    assert peer.hear() == []


# --- sessions that come and go ------------------------------------------------------------------------------


BEGIN_AND_END = raw.frame(raw.BEGIN, raw.begin_fields(), channel=7) + raw.frame(raw.END, [], channel=7)


def test_sessions_that_begin_and_end_in_one_write_leave_nothing_behind(peer: EnginePeer) -> None:
    lenience = peer.engine._lenience
    for _ in range(10):
        assert peer.say(BEGIN_AND_END * 100) == []
        assert [frame.code for frame in peer.hear()] == [raw.BEGIN] * 100 + [raw.END] * 100
    assert not lenience.watches
    assert peer.attach(raw.sender_attach(0, "queue"))


def test_every_channel_may_be_begun_anew_in_each_write(peer: EnginePeer) -> None:
    channels = range(1, 128)
    for _ in range(3):
        peer.say(*[raw.frame(raw.BEGIN, raw.begin_fields(), channel=channel) for channel in channels])
        assert len(peer.heard(raw.BEGIN)) == len(channels)
        ends = [raw.frame(raw.END, [], channel=channel) for channel in channels]
        begins = [raw.frame(raw.BEGIN, raw.begin_fields(), channel=channel) for channel in channels]
        assert peer.say(*ends, *begins, *ends) == []
        assert len(peer.heard(raw.END)) == 2 * len(channels)
    assert not peer.engine._lenience.watches


def test_a_second_begin_on_a_channel_ends_the_connection(peer: EnginePeer) -> None:
    """Symptom: each made a session of proton's, and from the 257th on nothing was written any more."""
    (closed,) = peer.say(raw.frame(raw.BEGIN, raw.begin_fields()))
    assert isinstance(closed, ConnectionClosed) and closed.error is not None
    assert closed.error.condition == "amqp:not-allowed" and peer.engine.session_count == 1


@pytest.mark.parametrize("write_frames", [512, 1, 3])
def test_more_sessions_than_there_are_channels_end_the_connection(
    peer: EnginePeer, write_frames: int
) -> None:
    """Proton fails silently when it finds no channel, and keeps all later frames as long as the connection
    lasts."""
    frames = [raw.frame(raw.BEGIN, raw.begin_fields(), channel=7), raw.frame(raw.END, [], channel=7)] * 256
    events: list[Event] = []
    for begin in range(0, len(frames), write_frames):
        events += peer.say(*frames[begin : begin + write_frames])
    closed = only(events, ConnectionClosed).error
    assert closed is not None and closed.condition == "amqp:resource-limit-exceeded"
    assert peer.say(BEGIN_AND_END * 1_000) == []
    assert [frame.code for frame in peer.hear()][-1] == raw.CLOSE
    assert peer.engine.finished


# --- dispositions of many deliveries (`wide_dispositions.py`) ---------------------------------------------


def test_very_many_dispositions_of_many_deliveries_are_divided_in_portions() -> None:
    """Symptom: a MiB of them, about deliveries that did not exist, held the event loop for five seconds."""
    lenience, said = begun(1_000 * 1_024), disposition(0, 2**31 - 1, ACCEPTED, settled=True)
    behind = transfer(0, 0)
    given = [lenience.incoming(said * 4 + behind)]
    while lenience.has_more:
        assert len(disposition_ranges(given[-1])) < 8 and not lenience.is_between_frames
        given.append(lenience.incoming(b""))
    whole = b"".join(given)
    assert whole.endswith(behind) and len(disposition_ranges(whole.removesuffix(behind))) == 4_000
    assert lenience.is_between_frames and lenience.refusal is None


def test_who_names_deliveries_again_and_again_is_refused() -> None:
    lenience, said = begun(10_000), disposition(0, 9_999, ACCEPTED, settled=True)
    assert len(disposition_ranges(taken(lenience, said * 1_000 + transfer(0, 0)))) < 110 * 10
    assert lenience.refusal is not None and lenience.incoming(said) == b""


def test_without_many_deliveries_nothing_is_divided_and_still_looked_at_in_portions() -> None:
    for sent in (0, 1_000):
        lenience, said = begun(sent), disposition(0, 5_000, ACCEPTED, settled=True) * 1_000
        given = [lenience.incoming(said)]
        while lenience.has_more:
            given.append(lenience.incoming(b""))
        assert len(given) == (1_000 / 8 if not sent else 1_000 / 5)
        whole = b"".join(given)
        assert disposition_ranges(whole) == [(0, 999)] * 1_000 if sent else not whole


def test_dispositions_of_few_deliveries_are_counted_and_looked_at_in_portions() -> None:
    """Symptom: 55 KB of dispositions of 256 deliveries each took 5 s, 60 ms at a time."""
    lenience, said = begun(300), disposition(0, 255, raw.outcome(raw.MODIFIED)) * 2_400
    given = [lenience.incoming(said)]
    while lenience.has_more:
        given.append(lenience.incoming(b""))
    assert b"".join(given) == said and max(map(len, given)) == 33 * len(said) / 2_400
    taken(lenience, said)
    assert lenience.refusal is not None and lenience.refusal.condition == RESOURCE_LIMIT


def test_what_waits_is_not_copied_for_each_portion() -> None:
    """Symptom: 40 MB of dispositions with large states took 30 ms for every eight of them."""
    lenience = begun(300)
    said = disposition(0, 900, ACCEPTED) * 100 + transfer(0, 0)
    given = [lenience.incoming(said)]
    while lenience.has_more:
        assert lenience._rest is said or lenience._first
        given.append(lenience.incoming(b""))
    assert b"".join(given).endswith(transfer(0, 0)) and len(given) > 10


def test_a_frame_that_has_not_arrived_whole_ends_where_it_ends_though_others_should_have_their_turn() -> None:
    plain = transfer(0, 5) + disposition(0, 255, ACCEPTED) * (lib.WORK_AT_ONCE // 256)
    behind = transfer(0, 7, bytes(1_000)) + transfer(0, 7)
    parts, whole = begun(), begun()
    given = parts.incoming(plain + behind[:200])
    assert parts.wide.had_enough and not parts.is_between_frames
    given += taken(parts, behind[200:])
    assert given == taken(whole, plain + behind) and given.startswith(plain)
    assert parts.is_between_frames and behind not in given, "both were numbered anew"


@pytest.mark.parametrize("cut", [0, 5, 50, 500])
def test_what_arrives_meanwhile_comes_behind_what_waits(cut: int) -> None:
    said = (disposition(0, 20_000, ACCEPTED) + transfer(0, 0)) * 3
    parts, whole = begun(20_000), begun(20_000)
    given = parts.incoming(said[: len(said) - cut])
    given += parts.incoming(b"")
    given += taken(parts, said[len(said) - cut :])
    assert given == taken(whole, said) and not parts.has_more


def test_a_disposition_of_a_session_that_does_not_exist_is_left_to_proton() -> None:
    said = disposition(0, 5, ACCEPTED)
    lenience = Lenience(255, 1 << 16)
    assert lenience.incoming(raw.AMQP_HEADER + said) == raw.AMQP_HEADER + said
    lenience = begun()
    assert lenience.incoming(raw.frame(raw.END, []) + said).endswith(said)


def test_dispositions_that_are_not_divided_are_handed_on_as_they_came() -> None:
    lenience, said = begun(), disposition(5_000, 0, ACCEPTED, settled=True)
    assert lenience.incoming(said + transfer(0, 0)) == said + transfer(0, 0)
    assert b"".join(lenience.incoming(said[at : at + 1]) for at in range(len(said))) == said


@pytest.mark.parametrize(
    "said",
    [
        raw.frame(raw.DISPOSITION, [raw.RECEIVER, 0, 5_000]),
        raw.raw_frame(b"\x00\x53\x15\xc0\x09\x03\x41\x43\x70\x00\x00\xff\xff\x40"),
        raw.raw_frame(b"\x00\x53\x15\xc0\x09\x05\x41\x43\x52\xff\x42\x00\x53\x23"),
        raw.raw_frame(b"\x00\x53\x15\xc0\x08\x00\x41\x43\x70\x00\x00\x0f\xff"),
        raw.raw_frame(b"\x00\x53\x15\xc0\x08\x02\x41\x43\x70\x00\x00\x0f\xff"),
    ],
    ids=["longs", "beyond-its-list", "cut-off", "none-said", "more-than-said"],
)
def test_malformed_dispositions_end_the_connection(said: bytes) -> None:
    lenience = begun()
    assert lenience.incoming(transfer(0, 0) + said + transfer(0, 1)) == transfer(0, 0)
    assert lenience.refusal is not None and lenience.refusal.condition == "amqp:decode-error"


def test_what_is_kept_is_given_back_to_whoever_checks_the_stream() -> None:
    lenience, said = begun(128 * 1_024), disposition(0, 2**31 - 1, ACCEPTED, settled=True)
    given = disposition_ranges(lenience.incoming(said * 2 + said[:10]))
    kept, missing = lenience.take_back()
    rest = disposition(7_168, 128 * 1_024 - 1, ACCEPTED, settled=True)
    assert (kept[-len(said + said[:10]) :], missing) == (said + said[:10], 0) and len(given) == 7
    assert disposition_ranges(kept[: -len(said + said[:10])]) == disposition_ranges(rest)
    assert not lenience.has_more


# --- bytes --------------------------------------------------------------------------------------------------


def test_a_stream_in_order_is_handed_on_as_it_came() -> None:
    lenience = begun()
    data = b"".join(transfer(0, number) for number in range(300)) + raw.frame(raw.FLOW, raw.flow_fields())
    assert lenience.incoming(data) is data
    parts = transfer(0, 300, more=True) + transfer(0, 300, b"rest") + transfer(0, 301)
    assert lenience.incoming(parts) is parts


def test_only_the_head_of_a_frame_is_kept_back() -> None:
    lenience = begun()
    said = transfer(0, 0, bytes(60_000))
    given = [lenience.incoming(said[begin : begin + 10]) for begin in range(0, len(said), 10)]
    assert b"".join(given) == said and sum(not each for each in given) == 2


def test_a_performative_that_does_not_end_is_not_kept_for_ever() -> None:
    lenience = begun()
    endless = raw.raw_frame(
        b"\x00\x53\x14\xd0"
        + (50_000).to_bytes(4, "big")
        + (3).to_bytes(4, "big")
        + b"\x43\x43\xb0\x00\x00\xc0\x00"
        + bytes(49_000)
    )
    given = [lenience.incoming(endless[begin : begin + 100]) for begin in range(0, len(endless), 100)]
    assert b"".join(given) == endless and sum(not each for each in given) < 25


@pytest.mark.parametrize(
    "value", [b"\xf0\0\0\0\5\x7f\xff\xff\xff\x40", b"\0\x53\1" * 600 + b"\x40"], ids=["nulls", "nested"]
)
@pytest.mark.parametrize("place", range(11))
def test_a_field_that_grows_when_it_is_read_is_not_read(peer: EnginePeer, place: int, value: bytes) -> None:
    peer.sender()
    fields = [b"\x43", b"\x52\5", b"\xa0\1t", *[b"\x40"] * 8]
    fields[place] = value
    listed = b"".join(fields)
    body = b"\x00\x53\x14\xd0" + (4 + len(listed)).to_bytes(4, "big") + (11).to_bytes(4, "big") + listed
    events = peer.say(transfer(0, 3, more=True), raw.raw_frame(body), detach(0))
    assert all(isinstance(event, ConnectionClosed | LinkDetached | MessagesReceived) for event in events)


numbers = st.sampled_from([0, 1, 2, 3, 254, 255, 256, TOP]) | st.integers(0, TOP)
transfers = st.builds(
    lambda channel, handle, number, keywords, payload: transfer(
        handle, number, payload, channel=channel, **keywords
    ),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 3) | numbers,
    st.fixed_dictionaries(
        {},
        optional={name: st.booleans() for name in ("more", "settled", "batch")}
        | {"tag": st.binary(max_size=40)},
    ),
    st.binary(max_size=20),
)
other_frames = st.sampled_from(
    [
        raw.raw_frame(b""),
        raw.raw_frame(b"", doff=3),
        raw.raw_frame(b"", doff=1),
        raw.raw_frame(b"", frame_type=1),
        raw.frame(raw.FLOW, raw.flow_fields()),
        raw.frame(raw.DISPOSITION, [True, UInt(0)]),
        raw.frame(raw.DISPOSITION, [False, UInt(0), UInt(1)]),
        raw.frame(raw.DISPOSITION, [True, UInt(1), None, True]),
        raw.frame(raw.DISPOSITION, [True, UInt(TOP), UInt(3), False, raw.outcome(raw.ACCEPTED)]),
        raw.frame(raw.DISPOSITION, [True, UInt(0), UInt(255), False, Described(ULong(0x99), [])]),
        raw.frame(raw.DISPOSITION, [True, UInt(0), UInt(1), False, raw.outcome(raw.REJECTED, [b"x" * 99])]),
        raw.frame(raw.DISPOSITION, [True, UInt(0), UInt(0), False, raw.outcome(raw.REJECTED, [b"x" * 99])]),
        raw.frame(raw.DISPOSITION, [True, UInt(0), UInt(1_023), False, raw.outcome(raw.ACCEPTED)]),
        raw.frame(raw.DISPOSITION, [True, UInt(5), UInt(9_000), False, raw.outcome(raw.ACCEPTED)], channel=1),
        raw.frame(raw.DISPOSITION, [True, UInt(9_000), UInt(5)]),
        raw.frame(raw.BEGIN, raw.begin_fields(), channel=1),
        raw.frame(raw.END, [], channel=1),
        detach(0),
        raw.frame(raw.ATTACH, raw.sender_attach(1, "queue")),
        raw.frame(raw.TRANSFER, [UInt(0), UInt(1), None, None, None, None, None, None, True, None, True]),
        raw.frame(raw.TRANSFER, [UInt(0), UInt(1), b"t", None, None, None, None, raw.outcome(raw.ACCEPTED)]),
        raw.frame(raw.TRANSFER, [UInt(0), None, b"t", None, None, None, None, None, None, True]),
        raw.frame(raw.TRANSFER, [UInt(0)]),
        raw.frame(raw.TRANSFER, []),
    ]
)
streams = st.lists(transfers | other_frames, max_size=12).map(b"".join)


def damaged(stream: bytes, damage: list[tuple[int, int]]) -> bytes:
    data = bytearray(stream)
    for place, byte in damage:
        if data:
            data[place % len(data)] = byte
    return bytes(data)


damages = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4)


@given(
    streams | st.binary(max_size=80),
    damages,
    st.lists(
        st.tuples(
            numbers, st.booleans(), st.booleans(), st.none() | numbers, st.sampled_from([16, 4_096, 1 << 22])
        ),
        min_size=1,
        max_size=2,
    ),
    st.sampled_from([0, 4_000, 8_190]),
)
@settings(max_examples=800, deadline=None)
def test_the_walk_in_c_goes_as_far_as_its_python_form(
    stream: bytes,
    damage: list[tuple[int, int]],
    states: list[tuple[int, bool, bool, int | None, int]],
    work: int,
) -> None:
    data = damaged(stream, damage)
    sessions = [plain_frames.SessionIds(*state) for state in states]
    reference = plain_frames.DeliveryIds(sessions, 4_096, work=work)
    ids, table = native_ids(reference)
    assert lib.delivery_ids_walk(ids, data, 0, len(data)) == plain_frames.walk(reference, data, 0)
    assert (ids.received, ids.named, ids.work) == (reference.received, reference.named, reference.work)
    assert [(each.next, each.known, each.divided) for each in table] == [
        (each.next, each.known, each.divided) for each in sessions
    ]


@given(streams, damages, st.lists(st.integers(0, 1 << 12), max_size=6))
@settings(max_examples=400, deadline=None)
def test_where_a_stream_is_cut_makes_no_difference(
    stream: bytes, damage: list[tuple[int, int]], places: list[int]
) -> None:
    data = damaged(stream, damage)
    whole, cut = begun(), begun()
    bounds = sorted(place % (len(data) + 1) for place in places)
    pieces = [data[begin:end] for begin, end in zip([0, *bounds], [*bounds, len(data)], strict=True)]
    assert b"".join([taken(cut, piece) for piece in pieces]) + cut._head == taken(whole, data) + whole._head


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4) | numbers, st.booleans()), max_size=20))
@settings(max_examples=150, deadline=None)
def test_all_deliveries_of_whole_frames_come_and_are_answered(described: list[tuple[int, int, bool]]) -> None:
    peer = EnginePeer().open()
    for handle in range(3):
        peer.sender(handle)
    events = peer.say(
        *(
            transfer(handle, number, b"%d" % place, settled=settled)
            for place, (handle, number, settled) in enumerate(described)
        )
    )
    assert payloads(events) == [b"%d" % place for place in range(len(described))]
    peer.engine.accept(deliveries(events))
    assert answered(peer) == [number for _, number, settled in described if not settled]
    assert not peer.engine._lenience.watches
    peer.engine.free()
