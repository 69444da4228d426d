"""A message in plain Python values, for protocols that do not carry AMQP's encoding: made from what such a
client sends, and read from what the broker delivers.

Encoding keeps each value's type: whole numbers are longs, fractions doubles, times timestamps. Reading turns
AMQP's many types into those that JSON and HTTP headers can show (`shown`). A message that goes from one AMQP
client to another never passes through this file.
"""

from __future__ import annotations

import base64
import datetime
import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from broker.base.errors import Reason, Refused
from broker.message.annotations import TIME_TO_LIVE_MS_MAX
from protocol.codec import (
    Array,
    Decimal32,
    Decimal64,
    Decimal128,
    DecodeError,
    Described,
    EncodeError,
    Long,
    Symbol,
    Timestamp,
    UInt,
    encode,
    encode_list,
    encode_map,
)
from protocol.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    FIELDS_MAX,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Sections,
    data_sections,
    fields,
    find_sections,
    pairs,
    section_at,
)
from protocol.values import decode_bounded, skip

Plain = None | bool | int | float | str | datetime.datetime
"""A property as HTTP shows it. Lists and maps, which only bodies and a few clients' properties have, are
shown as such."""

_NULL: Final = b"\x40"
_FIELDS: Final = {
    "message_id": 0,
    "to": 2,
    "subject": 3,
    "reply_to": 4,
    "correlation_id": 5,
    "content_type": 6,
    "session_id": 10,
    "reply_to_session_id": 12,
}
"""The properties (§3.2.4) that have an attribute of `PlainMessage`, by their positions."""
_SYMBOLS: Final = frozenset(("content_type",))
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(slots=True)
class PlainMessage:
    """One message. An attribute that is None is not set."""

    body: Any = b""
    """The bytes of data sections, one value, or the elements of sequences in one list."""
    message_id: str | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    partition_key: str | None = None
    via_partition_key: str | None = None
    time_to_live_ms: int | None = None
    scheduled_ms: int | None = None
    """When it is to be enqueued, in wall time."""
    properties: dict[str, Any] = field(default_factory=dict)
    """The application properties."""
    enqueued_number: int | None = None
    """Only when read: the sequence number that its first entity gave it."""


def encoded(message: PlainMessage) -> bytes:
    """The message as an AMQP client would send it; its body is bytes. Raises Refused(ARGUMENT) for what AMQP
    cannot carry."""
    try:
        return b"".join(_sections(message))
    except EncodeError as error:
        raise Refused(Reason.ARGUMENT, f"The message cannot be sent: {error}.") from error


def _sections(message: PlainMessage) -> Iterator[bytes]:
    if message.time_to_live_ms is not None:
        time_to_live = encode(UInt(min(message.time_to_live_ms, TIME_TO_LIVE_MS_MAX)))
        yield b"\x00\x53\x70" + encode_list((_NULL, _NULL, time_to_live))
    scheduled = None if message.scheduled_ms is None else Timestamp(message.scheduled_ms)
    annotations = {
        Symbol("x-opt-partition-key"): message.partition_key,
        Symbol("x-opt-via-partition-key"): message.via_partition_key,
        Symbol("x-opt-scheduled-enqueue-time"): scheduled,
    }
    if given := {key: value for key, value in annotations.items() if value is not None}:
        yield b"\x00\x53\x72" + encode(given)
    values = [_NULL] * (max(_FIELDS.values()) + 1)
    for name, place in _FIELDS.items():
        value = getattr(message, name)
        if value is not None:
            values[place] = encode(Symbol(value) if name in _SYMBOLS else value)
    yield b"\x00\x53\x73" + encode_list(values)
    if message.properties:
        yield b"\x00\x53\x74" + encode_map(
            [part for name, value in message.properties.items() for part in (encode(name), _typed(value))]
        )
    yield b"\x00\x53\x75" + encode(message.body)


def _typed(value: Any) -> bytes:
    if isinstance(value, datetime.datetime):
        value = Timestamp((value - _EPOCH) // datetime.timedelta(milliseconds=1))
    elif isinstance(value, int) and not isinstance(value, bool):
        value = Long(value)
    return encode(value)


def plain(payload: bytes) -> PlainMessage:
    """A message as it is delivered (`annotations.py`). What cannot be decoded is left out."""
    sections = find_sections(payload)
    message = PlainMessage(_body(payload, sections))
    if sections.has(PROPERTIES):
        places = fields(
            payload, sections.values[PROPERTIES], sections.ends[PROPERTIES], FIELDS_MAX[PROPERTIES]
        )
        for name, place in _FIELDS.items():
            if place < len(places) - 1 and (value := _decoded(payload, places[place])) is not None:
                setattr(message, name, _text(value))
    for key, value in _entries(payload, sections, MESSAGE_ANNOTATIONS):
        match key:
            case "x-opt-partition-key":
                message.partition_key = _text(value)
            case "x-opt-scheduled-enqueue-time" if isinstance(value, int):
                message.scheduled_ms = int(value)
            case "x-opt-enqueue-sequence-number" if isinstance(value, int):
                message.enqueued_number = int(value)
    message.properties = {
        str(key): shown(value) for key, value in _entries(payload, sections, APPLICATION_PROPERTIES)
    }
    return message


def _body(payload: bytes, sections: Sections) -> Any:
    if sections.has(DATA):
        return b"".join(data_sections(payload, sections))
    if sections.has(VALUE):
        return shown(_decoded(payload, sections.values[VALUE]), binary=bytes)
    items: list[Any] = []
    offset, end = sections.begins[SEQUENCE], sections.ends[SEQUENCE]
    while offset < end:
        _, value = section_at(payload, offset)
        items += shown(_decoded(payload, value)) or ()
        offset = skip(payload, value)
    return items if sections.has(SEQUENCE) else b""


def _entries(payload: bytes, sections: Sections, section: int) -> Iterator[tuple[Any, Any]]:
    if sections.has(section):
        places = pairs(payload, sections.values[section], sections.ends[section])
        for at_key, at_value in zip(places[:-1:2], places[1::2], strict=True):
            yield _decoded(payload, at_key), _decoded(payload, at_value)


def _decoded(payload: bytes, place: int) -> Any:
    """The value at a place; None for one that is malformed, which nobody has looked at before."""
    try:
        return decode_bounded(payload, place)[0]
    except DecodeError:
        return None


def _text(value: Any) -> str:
    """An id or a name as text: ids may be numbers, uuids and binaries too (§3.2.11 to §3.2.14)."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def shown(value: Any, *, binary: Any = lambda value: base64.b64encode(value).decode()) -> Any:
    """An AMQP value in the types that JSON and headers can show: numbers, text, truth, times, lists and maps
    of these. Binaries become text in Base64, unless `binary` says otherwise. NaN and Infinity, which JSON
    does not have, become text too."""
    match value:
        case datetime.datetime() | None | bool():
            return value
        case Timestamp():
            return moment_of(value)
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
        case str():
            return str(value)
        case uuid.UUID():
            return str(value)
        case Decimal32() | Decimal64() | Decimal128() | bytes():
            return binary(bytes(value))
        case Described():
            return shown(value.value)
        case Array():
            return [shown(each) for each in value.values]
        case list() | tuple():
            return [shown(each) for each in value]
        case dict():
            return {_text(key): shown(each) for key, each in value.items()}
    raise AssertionError(f"{type(value)} is no type of AMQP")


_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}
_LEAST_MS: Final = -62_135_596_800_000
"""The beginning of the year 1, the earliest time that can be shown."""
_MOST_MS: Final = 253_402_300_799_999


def moment_of(wall_ms: int) -> datetime.datetime:
    """A time in ms since the epoch, or the nearest one that can be shown: a client may name any."""
    return _EPOCH + datetime.timedelta(milliseconds=min(max(wall_ms, _LEAST_MS), _MOST_MS))
