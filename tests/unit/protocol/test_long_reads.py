"""Reads with very many small frames: the engine takes them in parts, so that no turn of the event loop is
long, whatever the frames are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from protocol.codec import UInt
from protocol.events import Event, MessagesReceived
from protocol.frames import SEARCHED_AT_ONCE
from protocol.lenience import DECIDED_AT_ONCE, PER_TRANSFER
from protocol.push_size import PUSH_BYTES_MAX
from tests.support import raw_amqp as raw
from tests.support.engine_frames import transfer
from tests.support.engine_peer import EnginePeer

_FIELDS = b"\x00\x53\x14\xc0\x07\x06\x43\x40\x40\x40\x40\x41"
PART = struct.pack(">IBBH", len(_FIELDS) + 8, 2, 0, 0) + _FIELDS
"""The smallest transfer: an empty part of an unfinished delivery on handle 0."""
FLOW = b"\x00\x80" + bytes(7) + b"\x13" + b"\xc0\x07\x04\x43\x52\x64\x43\x52\x64"
"""Of a session (§2.7.4), with a descriptor of eight bytes."""
COUNT = 6_000


def taken(engine_peer: EnginePeer, data: bytes, is_late: Callable[[], bool]) -> tuple[int, list[Event]]:
    """Give the engine the data, and call it until nothing is left; gives how often, and the events."""
    events, calls = engine_peer.engine.receive(data, 64, is_late), 1
    while engine_peer.engine.has_more:
        events += engine_peer.engine.receive(b"", 64, is_late)
        calls += 1
    return calls, events


def payloads(events: list[Event]) -> list[bytes]:
    return [payload for event in events if isinstance(event, MessagesReceived) for payload in event.payloads]


def test_parts_of_a_delivery(peer: EnginePeer) -> None:
    peer.sender(credit=COUNT)
    data = transfer(0, 0, b"begin", more=True) + PART * COUNT + transfer(0, 0, b"end")
    calls, events = taken(peer, data, lambda: False)
    assert calls >= COUNT * PER_TRANSFER // DECIDED_AT_ONCE
    assert payloads(events) == [b"beginend"]


@pytest.mark.parametrize(
    "frame",
    [
        raw.frame(raw.DETACH, [UInt(7)], channel=1),  # of a session that has ended
        struct.pack(">IBBH", 8, 2, 1, 0),  # of a type that does not exist here
        struct.pack(">IBBH", 8 + len(FLOW), 2, 0, 0) + FLOW,
    ],
    ids=["detach", "type 1", "flow with a long descriptor"],
)
def test_frames_that_mean_nothing(peer: EnginePeer, frame: bytes) -> None:
    peer.say(raw.frame(raw.BEGIN, raw.begin_fields(), channel=1))
    peer.say(raw.frame(raw.END, [], channel=1))
    peer.sender()
    peer.hear()
    calls, events = taken(peer, frame * COUNT + transfer(0, 0, b"last"), lambda: False)
    assert calls >= COUNT // DECIDED_AT_ONCE
    assert payloads(events) == [b"last"]


def test_batches(peer: EnginePeer) -> None:
    peer.sender(credit=COUNT)
    frames = [transfer(0, number, b"%d" % number, batch=True) for number in range(COUNT)]
    calls, events = taken(peer, b"".join(frames), lambda: False)
    assert calls >= COUNT // SEARCHED_AT_ONCE
    assert payloads(events) == [b"%d" % number for number in range(COUNT)]


def test_batches_behind_which_more_arrives(peer: EnginePeer) -> None:
    """What comes meanwhile stays behind what waits."""
    peer.sender(credit=COUNT)
    frames = [transfer(0, number, b"%d" % number, batch=number % 3 > 0) for number in range(COUNT)]
    data = b"".join(frames)
    events: list[Event] = []
    for begin in range(0, len(data), 50_001):
        events += peer.engine.receive(data[begin : begin + 50_001], 64)
    while peer.engine.has_more:
        events += peer.engine.receive(b"", 64)
    assert payloads(events) == [b"%d" % number for number in range(COUNT)]


@pytest.mark.parametrize("batch_every", [0, 7])
def test_when_it_is_late_each_call_makes_one_push(peer: EnginePeer, batch_every: int) -> None:
    peer.sender(credit=COUNT)
    frames = [
        transfer(0, number, b"%d" % number, batch=bool(batch_every) and number % batch_every == 0)
        for number in range(COUNT)
    ]
    data = b"".join(frames)
    calls, events = taken(peer, data, lambda: True)
    assert calls >= (COUNT // batch_every if batch_every else len(data) // PUSH_BYTES_MAX)
    assert payloads(events) == [b"%d" % number for number in range(COUNT)]
