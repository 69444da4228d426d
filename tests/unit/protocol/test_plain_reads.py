"""Reads that end within a frame: whole frames are taken as plain ones, and the beginning of a small one is
kept for the next read.
"""

from __future__ import annotations

import pytest

from protocol import runs
from protocol.engine import PUMPED_AT_ONCE
from protocol.events import ConnectionClosed, DeliveriesUpdated, Event, MessagesReceived
from protocol.intake import Intake
from protocol.plain_reads import KEPT_BYTES_MAX
from protocol.push_size import PUSH_BYTES_MAX
from tests.support import raw_amqp as raw
from tests.support.engine_frames import disposition, tags, transfer
from tests.support.engine_peer import EnginePeer, only


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What takes the way of the bytes that are not plain."""
    found: list[bytes] = []
    take = Intake.take

    def noting(intake: Intake, data: bytes, sent: int) -> list[tuple[bytes, bool]]:
        found.append(data)
        return take(intake, data, sent)

    monkeypatch.setattr(Intake, "take", noting)
    return found


def payloads(events: list[Event]) -> list[bytes]:
    return [payload for event in events if isinstance(event, MessagesReceived) for payload in event.payloads]


@pytest.mark.parametrize("cut", [1, 3, 4, 7, 8, 20, 1_000])
def test_the_beginning_of_a_frame_waits_for_the_rest(peer: EnginePeer, others: list[bytes], cut: int) -> None:
    peer.sender()
    data = b"".join(transfer(0, number, b"x" * 1_000) for number in range(3))
    others.clear()
    assert payloads(peer.engine.receive(data[:-cut])) == [b"x" * 1_000] * 2
    assert payloads(peer.engine.receive(data[-cut:])) == [b"x" * 1_000]
    assert not others


def test_a_frame_may_come_byte_by_byte(peer: EnginePeer, others: list[bytes]) -> None:
    peer.sender()
    frame = transfer(0, 0, b"hello")
    others.clear()
    for place in range(len(frame) - 1):
        assert peer.engine.receive(frame[place : place + 1]) == []
    assert payloads(peer.engine.receive(frame[-1:])) == [b"hello"]
    assert others[0] == frame[:2], "proton hears that the peer is not silent"


def test_a_peer_that_takes_long_for_a_frame_is_not_silent() -> None:
    peer = EnginePeer(idle_timeout_ms=10_000).open()
    peer.sender()
    peer.engine.tick(1_000)
    frame, now_ms = transfer(0, 0, b"x" * 3_000), 1_000
    for begin in range(0, len(frame), 200):
        now_ms += 4_000
        events = peer.engine.receive(frame[begin : begin + 200])
        peer.engine.tick(now_ms)
        assert not peer.engine.take_events()
    assert payloads(events) == [b"x" * 3_000]


def test_a_flow_among_messages_leaves_the_rest_plain(peer: EnginePeer, others: list[bytes]) -> None:
    peer.sender(credit=1_000)
    others.clear()
    flow = raw.frame(raw.FLOW, raw.flow_fields(0, 0, 7))
    messages = [transfer(0, number, b"x" * 1_000) for number in range(100)]
    data = b"".join((*messages[:20], flow, *messages[20:]))
    events = peer.engine.receive(data[:-500])
    events += peer.engine.receive(data[-500:])
    assert len(payloads(events)) == 100 and not others


def test_messages_of_one_read_are_one_event(peer: EnginePeer, others: list[bytes]) -> None:
    """However many pushes they take."""
    peer.sender(credit=1_000)
    others.clear()
    data = b"".join(transfer(0, number, b"%05d" % number * 200) for number in range(100))
    event = only(peer.engine.receive(data + b"\x00"), MessagesReceived)
    assert event.payloads == [b"%05d" % number * 200 for number in range(100)]
    assert len(set(event.deliveries)) == 100 and not others


def test_outcomes_of_one_read_are_one_event(peer: EnginePeer, others: list[bytes]) -> None:
    link = peer.receiver(credit=1_000)
    deliveries, _ = peer.engine.send(link, tags(*range(400)), [b"x"] * 400, False), peer.hear()
    others.clear()
    accepted = raw.outcome(raw.ACCEPTED)
    data = b"".join(disposition(number, number, accepted, settled=True) for number in range(400))
    assert only(peer.engine.receive(data), DeliveriesUpdated).deliveries == deliveries
    assert not others


def test_what_follows_plain_frames_in_a_read_keeps_its_place(peer: EnginePeer, others: list[bytes]) -> None:
    """The frames of one push are plain together, or none of them is."""
    peer.sender(credit=1_000)
    peer.engine.receive(b"".join(transfer(0, number, b"x" * 1_000) for number in range(64)))
    others.clear()
    count = PUSH_BYTES_MAX // 1_000 + 16  # more than one push takes
    plain = [transfer(0, 64 + number, b"x" * 1_000) for number in range(count)]
    batch, end = transfer(0, 64 + count, b"batch", batch=True), transfer(0, 65 + count, b"last")
    events = peer.engine.receive(b"".join(plain) + batch + end[:9])
    assert payloads(events) == [b"x" * 1_000] * count + [b"batch"]
    (rest,) = others
    assert rest.endswith(batch + end[:9]) and len(rest) < sum(map(len, plain))
    assert payloads(peer.engine.receive(end[9:])) == [b"last"]


@pytest.mark.parametrize("size", [0, 7, KEPT_BYTES_MAX + 1, 1 << 31])
def test_the_beginning_of_a_frame_of_another_size_is_not_kept(
    peer: EnginePeer, others: list[bytes], size: int
) -> None:
    peer.sender()
    others.clear()
    begin = size.to_bytes(4, "big") + b"\x02"
    peer.engine.receive(transfer(0, 0, b"first") + begin)
    assert others == [begin]


def test_a_long_read_of_tiny_messages_is_taken_in_parts(peer: EnginePeer) -> None:
    """As many as the caller allows at once, and the others with the next calls."""
    count = 3 * PUMPED_AT_ONCE
    peer.sender(credit=count)
    data = b"".join(transfer(0, number, b"") for number in range(count))
    found = len(payloads(peer.engine.receive(data, 64)))
    assert PUMPED_AT_ONCE <= found <= PUMPED_AT_ONCE + runs.MESSAGES_MAX and peer.engine.has_more
    while peer.engine.has_more:
        more = len(payloads(peer.engine.receive(b"", 64)))
        assert more <= PUMPED_AT_ONCE + runs.MESSAGES_MAX
        found += more
    assert found == count


def test_at_the_end_nothing_is_kept(peer: EnginePeer, others: list[bytes]) -> None:
    """Proton decides on a frame that is cut off."""
    peer.sender()
    others.clear()
    assert peer.engine.receive(transfer(0, 0)[:12]) == [] and not others
    only(peer.engine.receive_eof(), ConnectionClosed)
    assert others == [transfer(0, 0)[:12]]


def test_a_restriction_counts_a_frame_from_its_beginning(peer: EnginePeer, others: list[bytes]) -> None:
    peer.sender()
    frame = transfer(0, 0, b"x" * 300)
    assert peer.engine.receive(frame[:100]) == []
    others.clear()
    peer.engine.restrict()
    peer.engine.receive(frame[100:])
    assert others == [frame]
