"""Frames that tests send to the engine, and helpers to inspect its answers."""

from __future__ import annotations

from typing import Any

from protocol.codec import Described, UInt
from protocol.events import ErrorCondition, Event, MessagesReceived
from tests.support import raw_amqp as raw
from tests.support.engine_peer import frames_of, of

REFUSAL = ErrorCondition("amqp:not-found", "The messaging entity 'queue' could not be found.")


def transfer(handle: int, number: int, payload: bytes = b"x", *, channel: int = 0, **given: Any) -> bytes:
    """One transfer frame."""
    return raw.frame(raw.TRANSFER, raw.transfer_fields(handle, number, **given), payload, channel)


def disposition(first: int, last: int, outcome: object, *, settled: bool = False) -> bytes:
    """A disposition in which the peer, as receiver, gives deliveries an outcome."""
    return raw.frame(raw.DISPOSITION, raw.disposition_fields(True, first, last, settled, outcome))


def disposition_ranges(data: bytes) -> list[tuple[int, int]]:
    """What each of these settled dispositions is about; checks that they are alike otherwise."""
    frames = frames_of(data)
    assert {(frame.code, frame.channel, frame.field(0), frame.field(3)) for frame in frames} == {
        (raw.DISPOSITION, 0, raw.RECEIVER, True)
    }
    assert len({repr(frame.field(4)) for frame in frames}) == 1
    return [(frame.field(1), frame.field(2)) for frame in frames]


def detach(handle: int, *, closed: bool = True) -> bytes:
    """A detach frame; it closes the link unless `closed` is false."""
    return raw.frame(raw.DETACH, [UInt(handle), closed])


def payloads(events: list[Event]) -> list[bytes]:
    """Payloads of the messages among the events, in order."""
    return [payload for event in of(events, MessagesReceived) for payload in event.payloads]


def error_fields(value: Any) -> list[Any]:
    """Condition, description and info of an error."""
    assert isinstance(value, Described) and value.descriptor == raw.ERROR
    return list(value.value)


def assert_has_three_fields(value: Any, condition: str) -> None:
    """Assert that the error has this condition and a non-empty description and info (AMQP contract 0.4, rule
    7).
    """
    fields = error_fields(value)
    assert len(fields) == 3 and fields[0] == condition and fields[1] and fields[2], fields


def tags(*numbers: int) -> list[bytes]:
    """Delivery tags of 16 bytes."""
    return [number.to_bytes(16, "big") for number in numbers]
