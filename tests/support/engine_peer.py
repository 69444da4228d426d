"""An in-memory peer of `protocol/engine.py`: frames go in and events come out; the engine's output comes back
as frames. No socket, no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from protocol.codec import UInt, decode
from protocol.engine import Engine
from protocol.events import CreditGranted, Event, LinkAttached, LinkDetached
from protocol.links import Link
from protocol.plain_reads import PlainReads
from tests.support import raw_amqp as raw
from tests.support.raw_amqp import Frame

E = TypeVar("E")


def frames_of(data: bytes) -> list[Frame]:
    """All frames in `data`, which starts and ends at frame boundaries. A protocol header at the start is
    skipped.
    """
    return list(_frames(data))


def _frames(data: bytes) -> Iterator[Frame]:
    offset = 8 if data.startswith(b"AMQP") else 0
    while offset < len(data):
        size = struct.unpack_from(">I", data, offset)[0]
        assert 8 <= size <= len(data) - offset, "what is written ends with a whole frame"
        whole = data[offset : offset + size]
        offset += size
        body = whole[4 * whole[4] :]
        channel = int.from_bytes(whole[6:8], "big")
        if not body:
            yield Frame(channel, None, [], b"")
            continue
        assert body[:2] == b"\x00\x53", "descriptors of performatives are smallulongs"
        value, end = decode(body)
        yield Frame(channel, int(value.descriptor), value.value, body[end:])


class NoPlainReads(PlainReads):
    """In an engine, this lets all bytes take the way of those that are not plain."""

    def __init__(self) -> None:
        self._kept = b""

    def take(
        self, data: bytes, begin: int, at_once: float, is_late: Callable[[], bool]
    ) -> tuple[int, bool, float]:
        return begin, True, at_once

    def keeps(self, rest: bytes, is_new: bool) -> bool:
        return False


class EnginePeer:
    """One engine and the peer that talks to it."""

    def __init__(
        self, *, idle_timeout_ms: int = 0, partial_bytes_max: int = 1 << 26, max_frame_bytes: int = 262_144
    ) -> None:
        self.engine = Engine(
            container_id="broker",
            max_frame_bytes=max_frame_bytes,
            channel_max=255,
            idle_timeout_ms=idle_timeout_ms,
            partial_bytes_max=partial_bytes_max,
        )

    def say(self, *frames: bytes) -> list[Event]:
        """Write frames in one piece; gives the resulting events."""
        return self.engine.receive(b"".join(frames))

    def hear(self) -> list[Frame]:
        """Frames the engine writes now. Writing uses credit; the engine reports that in an event that no test
        needs.
        """
        frames = frames_of(b"".join(self.engine.output()))
        assert all(isinstance(event, CreditGranted) for event in self.engine.take_events())
        return frames

    def heard(self, code: int) -> list[Frame]:
        """The frames of one performative among those the engine writes now."""
        return [frame for frame in self.hear() if frame.code == code]

    def open(
        self, *, max_frame_bytes: int = 65_536, idle_timeout_ms: int = 0, window: int = 100_000
    ) -> EnginePeer:
        """Open the connection and begin a session on channel 0."""
        fields = raw.open_fields(max_frame_bytes=max_frame_bytes)
        fields[4] = UInt(idle_timeout_ms)
        self.say(raw.AMQP_HEADER, raw.frame(raw.OPEN, fields), raw.frame(raw.BEGIN, raw.begin_fields(window)))
        self.engine.open({})
        self.hear()
        return self

    def attach(self, fields: list[Any], *, max_message_bytes: int = 0, channel: int = 0) -> Link:
        """Attach a link and accept it."""
        link = only(self.say(raw.frame(raw.ATTACH, fields, channel=channel)), LinkAttached).link
        self.engine.accept_link(link, max_message_bytes=max_message_bytes)
        self.hear()
        return link

    def sender(
        self, handle: int = 0, *, credit: int = 100, max_message_bytes: int = 1 << 20, channel: int = 0
    ) -> Link:
        """Attach a link on which the peer sends."""
        link = self.attach(
            raw.sender_attach(handle, "queue"), max_message_bytes=max_message_bytes, channel=channel
        )
        self.engine.grant(link, credit)
        self.hear()
        return link

    def receiver(
        self, handle: int = 0, *, credit: int = 100, settled: bool = False, channel: int = 0
    ) -> Link:
        """Attach a link on which the peer receives."""
        link = self.attach(raw.receiver_attach(handle, "queue", settled=settled), channel=channel)
        self.say(raw.frame(raw.FLOW, raw.flow_fields(handle, 0, credit), channel=channel))
        self.hear()
        return link

    def release(self, events: list[Event]) -> None:
        """Consume the events, and release the links that were detached."""
        for event in events:
            if isinstance(event, LinkDetached):
                self.engine.release_link(event.link)


def only(events: list[Event], kind: type[E]) -> E:
    """The only event, which must be of this kind."""
    assert len(events) == 1 and isinstance(events[0], kind), events
    return events[0]


def of(events: list[Event], kind: type[E]) -> list[E]:
    """The events of this kind."""
    return [event for event in events if isinstance(event, kind)]


def message(body: bytes = b"hello") -> bytes:
    """An encoded message with one data section."""
    return b"\x00\x53\x75\xb0" + struct.pack(">I", len(body)) + body
