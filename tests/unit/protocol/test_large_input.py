"""Large payloads go round proton, and come back in their place."""

from __future__ import annotations

import itertools
import random
import struct
import tracemalloc

import pytest

from protocol.events import ConnectionClosed, MessagesReceived, MessageTooLarge
from protocol.large_input import FRAME_BYTES_MIN, LargeInput
from tests.support import raw_amqp as raw
from tests.support.engine_frames import REFUSAL, payloads, transfer
from tests.support.engine_peer import EnginePeer, of, only
from tests.support.large_frames import pushed, restored, without_empty

FRAME_BYTES_MAX = 64 * 1024
LARGE = bytes(range(256)) * 64


def cut(dice: random.Random, stream: bytes) -> list[bytes]:
    """A stream in pieces, some of them of a few bytes."""
    places = sorted({dice.randrange(1, len(stream)) for _ in range(dice.choice((0, 1, 5, 60)))})
    places += [place + 1 for place in places if dice.random() < 0.5]
    places = [0, *sorted({place for place in places if place < len(stream)}), len(stream)]
    return [stream[begin:end] for begin, end in itertools.pairwise(places)]


def any_frame(dice: random.Random) -> bytes:
    """A frame: small or large, plain or not."""
    size = dice.choice((0, 1, 100, 2_000, FRAME_BYTES_MIN, 16 * 1024, 40_000)) + dice.randrange(60)
    frame = transfer(dice.randrange(3), dice.randrange(9), dice.randbytes(size), more=dice.random() < 0.3)
    match dice.randrange(12):
        case 0:  # an extended header
            frame = struct.pack(">IB", len(frame) + 4, 3) + frame[5:8] + b"more" + frame[8:]
        case 1:  # another performative that is as large
            frame = frame[:10] + b"\x15" + frame[11:]
        case 2:  # a list that ends behind its frame
            frame = frame[:11] + b"\xd0" + struct.pack(">II", 1 << 20, 5) + frame[13:]
            frame = struct.pack(">I", len(frame)) + frame[4:]
        case 3:  # the longer form of a list
            fields = frame[13 : 12 + frame[12] + 1]
            behind = frame[12 + frame[12] + 1 :]
            body = (
                frame[8:11] + b"\xd0" + struct.pack(">II", len(fields) + 4, frame[13]) + fields[1:] + behind
            )
            frame = struct.pack(">I", 8 + len(body)) + frame[4:8] + body
        case 4:
            frame = struct.pack(">IBBH", 8, 2, 0, 0)
    return frame


@pytest.mark.parametrize("seed", range(60))
def test_the_stream_stays_what_it_was_wherever_it_is_cut(seed: int) -> None:
    dice = random.Random(seed)
    frames = [any_frame(dice) for _ in range(dice.randrange(1, 30))]
    stream = raw.AMQP_HEADER + b"".join(frames)
    large = LargeInput(FRAME_BYTES_MAX)
    most = dice.choice((256, 4_096, 32_768))
    through = b"".join(pushed(large, piece, most) for piece in cut(dice, stream))
    assert restored(large, through) == without_empty(stream)


def test_of_a_large_transfer_only_the_performative_is_pushed() -> None:
    frame, large = transfer(0, 0, LARGE), LargeInput(FRAME_BYTES_MAX)
    through = pushed(large, raw.AMQP_HEADER + frame * 200, 32_768)
    assert len(through) < 200 * 80
    large.clear()
    assert not large.has_payloads and large.resolved([b"x"]) == [b"x"]


@pytest.mark.parametrize("size", [0, 7, FRAME_BYTES_MAX + 1, (1 << 32) - 1])
def test_from_a_frame_of_an_impossible_size_on_everything_is_pushed(size: int) -> None:
    rest = struct.pack(">I", size) + transfer(0, 0, LARGE)[4:] * 3
    large = LargeInput(FRAME_BYTES_MAX)
    assert pushed(large, raw.AMQP_HEADER + rest, 4_096) == raw.AMQP_HEADER + rest


@pytest.mark.parametrize("step", [1 << 20, 40_000, 16_399, 1_000])
def test_large_messages_come_whole_with_small_ones_between_them(peer: EnginePeer, step: int) -> None:
    peer.sender()
    sent = [LARGE, b"small", b"", LARGE[::-1], b"y" * 2_000, LARGE * 4, b"z"]
    stream = b"".join(transfer(0, number, payload) for number, payload in enumerate(sent))
    pieces = [stream[begin : begin + step] for begin in range(0, len(stream), step)]
    assert [each for piece in pieces for each in payloads(peer.engine.receive(piece))] == sent


def test_a_message_in_large_and_small_frames_comes_whole(peer: EnginePeer) -> None:
    peer.sender()
    parts = [b"", LARGE, b"a" * 10, b"b", LARGE[::-1], LARGE, b"c" * 5_000, b"d"]
    for number, part in enumerate(parts):
        events = peer.say(transfer(0, 0, part, more=number < len(parts) - 1))
        assert peer.engine.partial_bytes == (
            max(sum(map(len, parts[: number + 1])), 1) if number < len(parts) - 1 else 0
        )
    assert only(events, MessagesReceived).payloads == [b"".join(parts)]
    events = peer.say(*(transfer(0, 1, part, more=True) for part in parts), transfer(0, 1, LARGE))
    assert only(events, MessagesReceived).payloads == [b"".join(parts) + LARGE]


def test_a_message_is_too_large_by_itself_and_its_neighbours_are_not(peer: EnginePeer) -> None:
    link = peer.sender(max_message_bytes=20_000)
    events = peer.say(
        transfer(0, 0, LARGE), transfer(0, 1, LARGE * 2), transfer(0, 2, LARGE), transfer(0, 3, b"small")
    )
    assert [type(event) for event in events] == [MessagesReceived, MessageTooLarge, MessagesReceived]
    assert payloads(events) == [LARGE, LARGE, b"small"]
    (refused,) = of(events, MessageTooLarge)
    assert refused.size == 2 * len(LARGE) and len(refused.deliveries) == 1 and refused.link is link
    events = peer.say(transfer(0, 4, LARGE, more=True), transfer(0, 4, LARGE, more=True))
    assert only(events, MessageTooLarge).size == 2 * len(LARGE)
    assert peer.say(transfer(0, 4, LARGE)) == [] and peer.engine.partial_bytes == 0
    assert payloads(peer.say(transfer(0, 5, LARGE, settled=True))) == [LARGE]
    (refused,) = of(peer.say(transfer(0, 6, LARGE * 2, settled=True)), MessageTooLarge)
    assert refused.deliveries == []


def test_a_payload_that_comes_in_single_bytes_takes_little_memory() -> None:
    frame, large = transfer(0, 0, LARGE * 2), LargeInput(FRAME_BYTES_MAX)
    pushed(large, raw.AMQP_HEADER, 4_096)
    tracemalloc.start()
    try:
        through = b"".join(pushed(large, frame[place : place + 1], 4_096) for place in range(len(frame) - 1))
        taken_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    through += pushed(large, frame[-1:], 4_096)
    assert taken_bytes - len(through) < 2 * len(frame)
    assert restored(large, raw.AMQP_HEADER + through)[8:] == frame


def test_an_aborted_message_leaves_nothing(peer: EnginePeer) -> None:
    peer.sender()
    assert peer.say(transfer(0, 0, LARGE, more=True)) == []
    fields = [*raw.transfer_fields(0, 0), None, None, None, True]
    assert peer.say(raw.frame(raw.TRANSFER, fields)) == [] and peer.engine.partial_bytes == 0
    assert payloads(peer.say(transfer(0, 1, LARGE))) == [LARGE]


@pytest.mark.parametrize("step", [1 << 20, 20_000, 5_000])
def test_a_large_batch_is_known_as_one(peer: EnginePeer, step: int) -> None:
    peer.sender()
    stream = b"".join(transfer(0, number, LARGE, batch=number == 1) for number in range(3))
    pieces = [stream[begin : begin + step] for begin in range(0, len(stream), step)]
    events = [event for piece in pieces for event in of(peer.engine.receive(piece), MessagesReceived)]
    assert [(event.payloads, event.batch) for event in events] == [
        ([LARGE], False),
        ([LARGE], True),
        ([LARGE], False),
    ]


def test_nothing_is_kept_of_messages_for_a_link_that_is_closed(peer: EnginePeer) -> None:
    link = peer.sender()
    peer.engine.close_link(link, REFUSAL)
    peer.hear()
    assert peer.say(*(transfer(0, number, LARGE) for number in range(50))) == []
    assert not peer.engine._large_input.has_payloads


def test_a_client_that_sends_a_long_frame_slowly_is_not_idle() -> None:
    peer = EnginePeer(idle_timeout_ms=1_000).open()
    peer.sender()
    frame = transfer(0, 0, LARGE)
    for now_ms in range(1, 20):
        peer.engine.receive(frame[now_ms * 500 - 500 : now_ms * 500])
        peer.engine.tick(now_ms * 600)
        assert not of(peer.engine.take_events(), ConnectionClosed)
    assert payloads(peer.engine.receive(frame[19 * 500 :])) == [LARGE]
