"""Plain reads and writes (`protocol/exchange.py`): which reads are plain, and that they bring what the way of
the others brings.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from protocol import runs
from protocol.engine import Engine
from protocol.events import CreditGranted, Event, MessagesReceived
from protocol.intake import Intake
from tests.support import raw_amqp as raw
from tests.support.engine_frames import detach, disposition, tags, transfer
from tests.support.engine_peer import EnginePeer, NoPlainReads, only

ACCEPTED = raw.outcome(raw.ACCEPTED)
EMPTY = raw.raw_frame(b"")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What has taken the way of the reads that are not plain."""
    found: list[bytes] = []
    take = Intake.take

    def noting(intake: Intake, data: bytes, divided_below: int) -> Any:
        found.append(data)
        return take(intake, data, divided_below)

    monkeypatch.setattr(Intake, "take", noting)
    return found


def one_after_the_other(engine: Engine) -> Engine:
    """An engine that takes no plain reads."""
    engine._plain_reads = NoPlainReads()
    return engine


# --- what is plain ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1024, 1300])
def test_whole_small_transfers_are_plain(peer: EnginePeer, reads: list[bytes], size: int) -> None:
    link = peer.sender()
    reads.clear()
    event = only(peer.say(*(transfer(0, number, b"x" * size) for number in range(3))), MessagesReceived)
    assert event.link is link and event.payloads == [b"x" * size] * 3 and len(set(event.deliveries)) == 3
    assert not reads
    peer.engine.accept(event.deliveries)
    assert [(frame.fields[1], frame.fields[2]) for frame in peer.heard(raw.DISPOSITION)] == [(0, 2)]


def test_accepted_outcomes_and_flows_are_plain(peer: EnginePeer, reads: list[bytes]) -> None:
    link = peer.receiver()
    peer.engine.send(link, tags(1, 2), [b"a", b"b"], False)
    peer.hear()
    reads.clear()
    flow = raw.frame(raw.FLOW, raw.flow_fields(0, 2, 7))
    outcome, granted = peer.say(disposition(0, 1, ACCEPTED, settled=True), EMPTY, flow)
    assert outcome.settled and len(outcome.deliveries) == 2  # type: ignore[union-attr]
    assert isinstance(granted, CreditGranted) and peer.engine.credit(link) == 7
    assert not reads


@pytest.mark.parametrize(
    "frame",
    [
        transfer(0, 1, b"x", batch=True),
        transfer(0, 2, b"x"),
        transfer(0, 1, b"x", more=True),
        transfer(0, 1, b"x" * 5000),
        detach(0),
        raw.frame(raw.BEGIN, raw.begin_fields(), channel=1),
    ],
    ids=["batch", "out of order", "unfinished", "large", "detach", "begin"],
)
def test_what_is_for_python_to_decide_is_not_plain(
    peer: EnginePeer, reads: list[bytes], frame: bytes
) -> None:
    peer.sender()
    peer.say(transfer(0, 0, b"first"))
    reads.clear()
    peer.say(frame)
    assert len(reads) == 1


def test_a_read_that_is_not_plain_leaves_the_numbers_as_they_were(peer: EnginePeer) -> None:
    peer.sender()
    events = peer.say(transfer(0, 0, b"first"), transfer(0, 1, b"second"), transfer(0, 2, b"x", batch=True))
    assert [event.payloads for event in events] == [[b"first", b"second"], [b"x"]]  # type: ignore[union-attr]
    event = only(peer.say(transfer(0, 3, b"fourth")), MessagesReceived)
    peer.engine.accept(event.deliveries)
    assert [(frame.fields[1], frame.fields[2]) for frame in peer.heard(raw.DISPOSITION)] == [(3, None)]


def test_until_a_client_shows_credentials_no_read_is_plain(peer: EnginePeer, reads: list[bytes]) -> None:
    peer.sender()
    peer.engine.restrict()
    reads.clear()
    peer.say(transfer(0, 0))
    assert len(reads) == 1
    peer.engine.lift_restriction()
    peer.say(transfer(0, 1))
    assert len(reads) == 2
    peer.say(transfer(0, 2))
    assert len(reads) == 2


def test_more_sessions_than_native_code_looks_at_are_served(reads: list[bytes]) -> None:
    peer = EnginePeer().open()
    for channel in range(1, 100):
        peer.say(raw.frame(raw.BEGIN, raw.begin_fields(), channel=channel))
    peer.sender(0, channel=99)
    reads.clear()
    event = only(peer.say(transfer(0, 0, b"hello", channel=99)), MessagesReceived)
    assert event.payloads == [b"hello"] and len(reads) == 1


def test_a_message_that_is_too_large_for_its_link_is_refused(peer: EnginePeer, reads: list[bytes]) -> None:
    peer.sender(max_message_bytes=100)
    reads.clear()
    events = peer.say(transfer(0, 0, b"x" * 100), transfer(0, 1, b"x" * 101), transfer(0, 2, b"x"))
    assert [type(event).__name__ for event in events] == [
        "MessagesReceived", "MessageTooLarge", "MessagesReceived"
    ]  # fmt: skip
    assert not reads


def test_many_dispositions_of_many_deliveries_are_counted_before_they_are_pushed(
    reads: list[bytes],
) -> None:
    peer = EnginePeer().open()
    link = peer.receiver(credit=20_000)
    for _ in range(20):
        peer.engine.send(link, [number.to_bytes(4, "big") for number in range(1000)], [b"x"] * 1000, False)
        peer.hear()
    reads.clear()
    some = disposition(0, 19_999, ACCEPTED, settled=False)
    peer.say(*[some] * (300 // len(some) + 20))
    assert len(reads) == 1


def test_a_write_of_more_than_the_buffer_holds_is_whole(peer: EnginePeer) -> None:
    link = peer.receiver(credit=1000)
    body = b"y" * 8000
    peer.engine.send(link, tags(*range(100)), [body] * 100, True)
    heard = peer.heard(raw.TRANSFER)
    assert [frame.payload for frame in heard] == [body] * 100
    assert 100 * len(body) > runs.BYTES_MAX


def test_more_deliveries_than_the_buffer_has_room_for_are_accepted(peer: EnginePeer) -> None:
    count = runs.MESSAGES_MAX + 5
    peer.sender(credit=count)
    events = peer.say(*(transfer(0, number) for number in range(count)))
    peer.engine.accept(only(events, MessagesReceived).deliveries)
    assert [(frame.fields[1], frame.fields[2]) for frame in peer.heard(raw.DISPOSITION)] == [(0, count - 1)]


# --- beside the other way -----------------------------------------------------------------------------------


def told(events: Sequence[Event], known: dict[int, int]) -> list[Any]:
    """Events without what differs from one engine to another: deliveries are numbered as they come."""
    found: list[Any] = []
    for event in events:
        fields = {name: getattr(event, name) for name in event.__slots__}
        deliveries = fields.pop("deliveries", ())
        link = fields.pop("link", None)
        numbers = [known.setdefault(each, len(known)) for each in deliveries]
        found.append((type(event), None if link is None else link.name, numbers, fields))
    return found


class Pair:
    """Two engines that get the same bytes. One takes no plain reads."""

    def __init__(self) -> None:
        self._peers = [EnginePeer(max_frame_bytes=65_536).open() for _ in range(2)]
        one_after_the_other(self._peers[1].engine)
        for peer in self._peers:
            peer.sender(0, credit=10_000, max_message_bytes=6000)
            peer.sender(1, credit=10_000, max_message_bytes=6000)
            peer.receiver(2, credit=10_000)
        self._known: list[dict[int, int]] = [{}, {}]

    def receive(self, data: bytes, chooser: random.Random) -> None:
        """Give both engines the same bytes. What they tell and write must be the same."""
        accepts, sends = chooser.random() < 0.7, chooser.random() < 0.3
        told_by: list[Any] = []
        written_by: list[Any] = []
        for peer, known in zip(self._peers, self._known, strict=True):
            engine = peer.engine
            events = engine.receive(data)
            told_by.append((told(events, known), engine.partial_bytes, engine.has_more))
            for event in events:
                if isinstance(event, MessagesReceived) and accepts:
                    engine.accept(event.deliveries)
            if sends:
                link = next(each for each in engine.links() if not each.incoming)
                engine.send(link, [len(data).to_bytes(4, "big")], [b"sent"], False)
            written = b"".join(engine.output())
            written_by.append((written, told(engine.take_events(), known), engine.finished))
        assert told_by[0] == told_by[1]
        assert written_by[0] == written_by[1]

    def receive_eof(self) -> None:
        """The peer closes its end, of both engines."""
        ends = [
            told(peer.engine.receive_eof(), known)
            for peer, known in zip(self._peers, self._known, strict=True)
        ]
        written = [b"".join(peer.engine.output()) for peer in self._peers]
        assert ends[0] == ends[1] and written[0] == written[1]


def frames(chooser: random.Random, count: int) -> list[bytes]:
    """A client's frames: most of them plain."""
    made, number, sizes = [], 0, (0, 1, 20, 1000, 4080, 5000, 7000)
    for _ in range(count):
        match chooser.randrange(12):
            case 0:
                first = chooser.randrange(20)
                outcome = chooser.choice((ACCEPTED, ACCEPTED, raw.outcome(raw.RELEASED), None))
                made.append(
                    disposition(first, first + chooser.randrange(4), outcome, settled=chooser.random() < 0.5)
                )
            case 1:
                made.append(raw.frame(raw.FLOW, raw.flow_fields(2, 0, chooser.randrange(100))))
            case 2:
                made.append(EMPTY)
            case 3:
                parts = [b"a" * chooser.choice(sizes) for _ in range(3)]
                handle = chooser.randrange(2)
                made += [transfer(handle, number, part, more=place < 2) for place, part in enumerate(parts)]
                number += 1
            case _:
                given = number + (chooser.randrange(3) if chooser.random() < 0.05 else 0)
                made.append(
                    transfer(
                        chooser.randrange(2) if chooser.random() < 0.3 else 0,
                        given,
                        bytes([chooser.randrange(256)]) * chooser.choice(sizes),
                        batch=chooser.random() < 0.1,
                        settled=chooser.random() < 0.2,
                    )
                )
                number += 1
    return made


@pytest.mark.parametrize("seed", range(60))
def test_plain_reads_bring_what_the_others_bring(seed: int) -> None:
    chooser, pair = random.Random(seed), Pair()
    stream = frames(chooser, 150)
    is_cut_often = chooser.random() < 0.5
    if chooser.random() < 0.3:
        broken = chooser.randrange(len(stream))
        stream[broken] = stream[broken][:-1] + b"\xff\x00\x00"
    while stream:
        count = chooser.choice((1, 1, 1, 2, 3, 10))
        data = b"".join(stream[:count])
        del stream[:count]
        while data and chooser.random() < (0.7 if is_cut_often else 0.1):
            place = chooser.randrange(len(data) + 1)
            pair.receive(data[:place], chooser)
            data = data[place:]
        if data:
            pair.receive(data, chooser)
    pair.receive_eof()


def test_a_connection_that_has_ended_takes_nothing_more(peer: EnginePeer) -> None:
    peer.sender()
    peer.say(transfer(0, 0))
    peer.say(raw.frame(raw.CLOSE, [None]))
    assert peer.say(transfer(0, 1)) == []
    assert peer.engine.receive_eof() == []


def test_the_handle_of_a_transfer_may_be_unknown(peer: EnginePeer) -> None:
    peer.sender()
    peer.say(transfer(0, 0))
    events = peer.say(transfer(7, 1))
    assert [type(event).__name__ for event in events] == ["ConnectionClosed"]
    assert peer.say(transfer(0, 2)) == []
