"""A draft: the copy of a message while an action changes its properties.

It can be read like the message that it was made of. A new value takes the type of the one that it replaces,
if that type can hold it (AMQP contract 11.5).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from broker.base.ticks import TICKS_PER_MS
from broker.message.forwarded import as_sent
from broker.message.stored import priority_of
from broker.rules.arithmetic import kind_of
from broker.rules.message_view import (
    CONTENT_TYPE,
    CORRELATION_ID,
    GROUP_ID,
    MESSAGE_ID,
    REPLY_TO,
    REPLY_TO_GROUP_ID,
    SUBJECT,
    TO,
    MessageView,
)
from broker.rules.values import Duration, EvaluationFailed, Instant, Value, from_amqp
from protocol.codec import (
    Byte,
    DecodeError,
    Described,
    EncodeError,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
)
from protocol.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FIELDS_MAX,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    find_sections,
)

_TEXT_FIELDS: Mapping[str, int] = {
    "messageid": MESSAGE_ID,
    "correlationid": CORRELATION_ID,
    "contenttype": CONTENT_TYPE,
    "label": SUBJECT,
    "subject": SUBJECT,
    "to": TO,
    "replyto": REPLY_TO,
    "replytosessionid": REPLY_TO_GROUP_ID,
    "sessionid": GROUP_ID,
}
SETTABLE = frozenset((*_TEXT_FIELDS, "timetolive", "scheduledenqueuetimeutc"))
"""Folded names of the system properties that an action may set. The others are the broker's own, or say in
which partition the message is."""
REMOVABLE = SETTABLE - {"messageid"}

_SCHEDULED, _PARTITION_KEY = b"x-opt-scheduled-enqueue-time", b"x-opt-partition-key"
_TTL_MS_MAX = 2**32 - 1


class Draft(MessageView):
    """A copy of a message that can be changed."""

    __slots__ = ("_annotations", "_application", "_changed", "_payload", "_sections", "_ttl_ms")

    def __init__(self, message: MessageView) -> None:
        super().__init__(message.stored, message.enqueued_ms)
        self._payload = as_sent(message.stored, None)
        self._sections = find_sections(self._payload)
        self._application: dict[str, tuple[str, Any]] = {}
        """Spellings and AMQP values of the application properties, by folded names."""
        for name, value in self._map(APPLICATION_PROPERTIES).items():
            self._application.setdefault(name.casefold(), (name, value))
        self.work += len(self._application)  # to read them, and to write them again
        self._changed: dict[int, Any] = {}
        """New values of fields of the properties section."""
        self._annotations: dict[bytes, Timestamp | None] = {}
        """New values of message annotations; None for one that is removed."""
        self._ttl_ms = super().time_to_live_ms()

    def has(self, name: str) -> bool:
        return name in self._application

    def application_property(self, name: str) -> Value:
        found = self._application.get(name)
        return None if found is None else from_amqp(found[1])

    def field(self, number: int) -> Any:
        return self._changed[number] if number in self._changed else super().field(number)

    def decoded(self, place: int) -> Any:
        try:
            return decode(self.stored, place)[0]
        except DecodeError as error:  # there is nothing that could be encoded again
            raise _malformed(error) from error

    def annotation(self, key: bytes) -> Any:
        return self._annotations[key] if key in self._annotations else super().annotation(key)

    def time_to_live_ms(self) -> int | None:
        return self._ttl_ms

    def set_application_property(self, name: str, value: Value) -> None:
        """Set an application property. One that is there keeps its spelling."""
        spelling, earlier = self._application.get(name.casefold(), (name, None))
        self._application[name.casefold()] = spelling, _as_type_of(earlier, value)

    def remove_application_property(self, name: str) -> None:
        """Remove the application property of this folded name, if there is one."""
        self._application.pop(name, None)

    def set_system_property(self, name: str, value: Value) -> None:
        """Set the one of the SETTABLE properties that has this folded name; null removes it. Raises
        EvaluationFailed."""
        if name == "timetolive":
            self._ttl_ms = _time_to_live_ms(name, value)
        elif name == "scheduledenqueuetimeutc":
            scheduled_ms = _milliseconds(name, value, Instant)
            self._annotations[_SCHEDULED] = None if scheduled_ms is None else Timestamp(scheduled_ms)
        else:
            self._set_text(_TEXT_FIELDS[name], _settable_text(name, value))

    def encoded(self) -> bytes:
        """The changed message as a sender would encode it. Raises EvaluationFailed."""
        sections = self._sections
        properties = [self.field(number) for number in range(FIELDS_MAX[PROPERTIES])]
        try:
            parts = [
                self._header(),
                self._payload[sections.begins[DELIVERY_ANNOTATIONS] : sections.ends[DELIVERY_ANNOTATIONS]],
                self._message_annotations(),
                _section(PROPERTIES, properties),
                _section(APPLICATION_PROPERTIES, dict(self._application.values())),
            ]
        except EncodeError as error:
            raise EvaluationFailed(f"A changed property cannot be sent: {error}.") from error
        return b"".join((*parts, self._payload[max(sections.ends[: APPLICATION_PROPERTIES + 1]) :]))

    def _set_text(self, number: int, text: str | None) -> None:
        self._changed[number] = Symbol(text) if number == CONTENT_TYPE and text is not None else text
        if number == GROUP_ID:  # the partition-key of a message in a session is its session-id
            self._annotations[_PARTITION_KEY] = None

    def _header(self) -> bytes:
        priority = priority_of(self.stored)
        return _section(
            HEADER,
            [
                None,
                None if priority is None else UByte(priority),
                None if self._ttl_ms is None else UInt(self._ttl_ms),
            ],
        )

    def _message_annotations(self) -> bytes:
        sections = self._sections
        if not self._annotations:
            return self._payload[sections.begins[MESSAGE_ANNOTATIONS] : sections.ends[MESSAGE_ANNOTATIONS]]
        annotations = self._map(MESSAGE_ANNOTATIONS)
        for key, value in self._annotations.items():
            name = Symbol(key.decode())
            if value is None:
                annotations.pop(name, None)
            else:
                annotations[name] = value
        return _section(MESSAGE_ANNOTATIONS, annotations)

    def _map(self, section: int) -> dict[Any, Any]:
        if not self._sections.has(section):
            return {}
        try:
            found: dict[Any, Any] = decode(self._payload, self._sections.values[section])[0]
        except DecodeError as error:
            raise _malformed(error) from error
        return found


def check_settable(name: str, value: Value) -> None:
    """Check that the one of the SETTABLE properties that has this folded name can be set to a value. Raises
    EvaluationFailed."""
    if name == "timetolive":
        _time_to_live_ms(name, value)
    elif name == "scheduledenqueuetimeutc":
        _milliseconds(name, value, Instant)
    else:
        _settable_text(name, value)


def _time_to_live_ms(name: str, value: Value) -> int | None:
    ttl_ms = _milliseconds(name, value, Duration)
    if ttl_ms is not None and not 0 < ttl_ms <= _TTL_MS_MAX:
        raise EvaluationFailed(f"A time to live of {ttl_ms} ms is not possible.")
    return ttl_ms


def _settable_text(name: str, value: Value) -> str | None:
    text = None if value is None else _text_of(value)
    if text is None and value is not None:
        raise EvaluationFailed(f"The system property 'sys.{name}' is a text, not {kind_of(value)}.")
    if text is None and name not in REMOVABLE:
        raise EvaluationFailed(f"The system property 'sys.{name}' cannot be null.")
    return text


def _malformed(error: DecodeError) -> EvaluationFailed:
    return EvaluationFailed(f"A property of the message is malformed: {error}.")


def _section(number: int, value: Any) -> bytes:
    return encode(Described(ULong(0x70 + number), value))


def _milliseconds(name: str, value: Value, kind: type[Instant] | type[Duration]) -> int | None:
    if value is None:
        return None
    if not isinstance(value, kind):
        raise EvaluationFailed(f"The system property 'sys.{name}' cannot be {kind_of(value)}.")
    return value.ticks // TICKS_PER_MS


def _text_of(value: Value) -> str | None:
    """The value as text; None if it has no obvious one."""
    if isinstance(value, bool):
        return "True" if value else "False"
    return str(value) if isinstance(value, str | int | float | Decimal | uuid.UUID) else None


def _as_type_of(earlier: Any, value: Value) -> Any:
    """The AMQP value of an application property: of the type of the earlier one if that can hold it."""
    if value is not None and (convert := _CONVERSIONS.get(type(earlier))) is not None:
        converted = convert(value, type(earlier))
        if converted is not None:
            return converted
    if isinstance(value, Instant):
        return Timestamp(value.ticks // TICKS_PER_MS)
    if isinstance(value, Duration):
        return Described(Symbol("com.microsoft:timespan"), Long(value.ticks))
    if type(value) is int:
        return Long(value) if value < 2**63 else ULong(value)
    return float(value) if isinstance(value, Decimal) else value


_INTEGERS: Mapping[type, tuple[int, int]] = {
    Byte: (-(2**7), 2**7), UByte: (0, 2**8), Short: (-(2**15), 2**15), UShort: (0, 2**16),
    int: (-(2**31), 2**31), Int: (-(2**31), 2**31), UInt: (0, 2**32), Long: (-(2**63), 2**63),
    ULong: (0, 2**64),
}  # fmt: skip
"""The first value of each type, and the first one beyond it."""


def _to_integer(value: Value, kind: type) -> Any:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
            return None
        number = int(value)
        if not isinstance(value, str) and number != value:
            return None
    except (ValueError, OverflowError):
        return None
    low, high = _INTEGERS[kind]
    return kind(number) if low <= number < high else None


def _to_float(value: Value, kind: type) -> Any:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
            return None
        return kind(value)
    except (ValueError, OverflowError):
        return None


def _to_text(value: Value, kind: type) -> Any:
    text = _text_of(value)
    return None if text is None else str(text)


def _to_boolean(value: Value, kind: type) -> Any:
    return {"true": True, "false": False}.get(value.casefold()) if isinstance(value, str) else None


def _to_guid(value: Value, kind: type) -> Any:
    try:
        return uuid.UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


_CONVERSIONS: Mapping[type, Callable[[Value, type], Any]] = {
    **dict.fromkeys(_INTEGERS, _to_integer),
    **dict.fromkeys((float, Float), _to_float),
    str: _to_text,
    bool: _to_boolean,
    uuid.UUID: _to_guid,
}
"""Give None for a value that the type cannot hold."""
