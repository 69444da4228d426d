"""The properties of a stored message, as rules and selectors see them. Each is found and decoded only when
somebody asks for it, and only once.

Application properties are found by their names without regard to case (AMQP contract 11.2). If a message has
several that differ in case alone, the first one counts. System properties are those of the service's message
class (AMQP contract 11.4).

Nobody has checked the values before, only their sizes. One that cannot be decoded is an opaque binary, which
equals no text and no number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from broker.base.ticks import TICKS_PER_MS
from broker.message.forwarded import trail_of
from broker.message.stored import HEAD, bare_message_offset, section_end, time_to_live_of
from broker.rules.covers import Property
from broker.rules.values import Duration, EvaluationFailed, Instant, Value, from_amqp
from protocol.codec import DecodeError, decode
from protocol.sections import (
    APPLICATION_PROPERTIES,
    FIELDS_MAX,
    PROPERTIES,
    fields,
    pairs,
    section_at,
    text_bytes,
)
from protocol.values import skip

SEARCHED_CHARACTERS, FOUND_CHARACTERS = 32, 512
"""How many characters LIKE searches one by one, and how many it passes over when it finds a text, in the time
that looking at a filter takes."""
ANNOTATIONS_OF_WORK = 4
"""How many annotations are passed over in that time, to find one."""
SEARCHED_MAX = 65_536
"""Characters that LIKE may search one by one in a message for one expression: some 5 ms of the event loop."""


class MessageView:
    """One stored message. `enqueued_ms` is its enqueued time, in wall time."""

    __slots__ = ("_bare", "_fields", "_places", "_values", "enqueued_ms", "searched", "stored", "work")

    def __init__(self, stored: bytes, enqueued_ms: int) -> None:
        self.stored, self.enqueued_ms = stored, enqueued_ms
        self._bare = bare_message_offset(stored)
        self._fields: list[int] | None = None
        self._places: dict[str, int] | None = None
        self._values: dict[str, Value] = {}
        self.searched = 0
        """Characters that LIKE has searched one by one. Whoever evaluates several expressions resets it."""
        self.work = 0
        """What looking at the message has cost besides the expressions themselves, in filters: its properties
        and the texts that LIKE looks through."""

    def search(self, characters: int) -> None:
        """A LIKE is about to search so many characters one by one. Raises EvaluationFailed if these are too
        many for one expression."""
        self.searched += characters
        if self.searched > SEARCHED_MAX:
            self.searched -= characters
            raise EvaluationFailed(
                f"Searching the patterns of LIKE that have a '_' takes more than {SEARCHED_MAX} characters."
            )
        self.work += characters // SEARCHED_CHARACTERS

    def pass_over(self, characters: int) -> None:
        """A LIKE is about to find a text among so many characters."""
        self.work += characters // FOUND_CHARACTERS

    def take_work(self) -> int:
        """The work since the last call."""
        work, self.work = self.work, 0
        return work

    def properties_end(self) -> int:
        """Where the properties end, and annotations before them; the body follows."""
        _, value = section_at(self.stored, self._bare)
        end = section_end(self.stored, value)
        if end < len(self.stored):
            section, value = section_at(self.stored, end)
            if section == APPLICATION_PROPERTIES:
                return section_end(self.stored, value)
        return end

    def places(self) -> dict[str, int]:
        """Where the values of the application properties are, by folded names."""
        if self._places is None:
            self._places = self._find_places()
            self.work += len(self._places)
        return self._places

    def has(self, name: str) -> bool:
        """Whether there is an application property of this folded name; its value may be null."""
        return name in self.places()

    def application_property(self, name: str) -> Value:
        """The value of the application property of this folded name; None if there is none."""
        try:
            return self._values[name]
        except KeyError:
            place = self.places().get(name)
            value = None if place is None else from_amqp(self.decoded(place))
            self._values[name] = value
            return value

    def system_property(self, name: str) -> Value:
        """The value of the system property of this folded name. Raises EvaluationFailed if there is no such
        name."""
        read = SYSTEM_PROPERTIES.get(name)
        if read is None:
            raise EvaluationFailed(f"There is no system property 'sys.{name}'.")
        return read(self)

    def value_of(self, property: Property) -> Value:
        """The value of a property of either kind."""
        return (self.system_property if property.is_system else self.application_property)(property.name)

    def field(self, number: int) -> Any:
        """A decoded field of the properties section (§3.2.4); None if it is not set."""
        places = self._field_places()
        return self.decoded(places[number]) if number < len(places) - 1 else None

    def decoded(self, place: int) -> Any:
        """The decoded value at a place of the stored message; an empty binary for one that is malformed."""
        try:
            return decode(self.stored, place)[0]
        except DecodeError:
            return b""

    def annotation(self, key: bytes) -> Any:
        """The decoded value of one of the sender's message annotations; None if it is not there."""
        count, offset = self.stored[8] << 8 | self.stored[9], HEAD.size
        self.work += count // ANNOTATIONS_OF_WORK
        for _ in range(count):
            found = text_bytes(self.stored, offset) == key
            offset = skip(self.stored, offset)
            if found:
                return self.decoded(offset)
            offset = skip(self.stored, offset)
        return None

    def time_to_live_ms(self) -> int | None:
        """As the sender set it."""
        return time_to_live_of(self.stored)

    def _field_places(self) -> list[int]:
        if self._fields is None:
            section, value = section_at(self.stored, self._bare)
            assert section == PROPERTIES, "every stored message has a message-id"
            end = section_end(self.stored, value)
            self._fields = fields(self.stored, value, end, FIELDS_MAX[PROPERTIES])
        return self._fields

    def name_of(self, encoded: bytes) -> str:
        """The name under which an application property is found, from its encoded name without the
        constructor."""
        return _folded_short(encoded) if len(encoded) <= _SHORT_BYTES else _fold(encoded)

    def _find_places(self) -> dict[str, int]:
        stored = self.stored
        _, value = section_at(stored, self._bare)
        offset = section_end(stored, value)
        if offset >= len(stored):
            return {}
        section, value = section_at(stored, offset)
        if section != APPLICATION_PROPERTIES:
            return {}
        offsets = pairs(stored, value, section_end(stored, value))
        found: dict[str, int] = {}
        name_of = self.name_of
        for at_key, at_value in zip(offsets[:-1:2], offsets[1::2], strict=True):
            found.setdefault(name_of(stored[at_key + 1 : at_value]), at_value)
        return found


def exact_name(name: bytes) -> str:
    """The text of an encoded name: one or four bytes of size, then UTF-8."""
    text = name[1:] if len(name) == 1 + name[0] else name[4:]
    return text.decode("utf-8", "replace")


def _fold(name: bytes) -> str:
    return exact_name(name).casefold()


_SHORT_BYTES = 64
"""Longer names are not remembered, because senders choose them."""
_folded_short = lru_cache(4096)(_fold)


def _text_field(number: int) -> Callable[[MessageView], Value]:
    def read(message: MessageView) -> Value:
        value = message.field(number)
        return value if value is None or isinstance(value, bytes) else str(value)

    return read


def _id_field(number: int) -> Callable[[MessageView], Value]:
    return lambda message: text_of_id(message.field(number))


def text_of_id(value: Any) -> str | None:
    """The text of an id, whatever type the sender used (§3.2.11 to §3.2.14), as the service's clients show
    it."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return None if value is None else str(value)


def _annotation_text(key: bytes) -> Callable[[MessageView], Value]:
    def read(message: MessageView) -> Value:
        value = message.annotation(key)
        return value if value is None or isinstance(value, bytes) else str(value)

    return read


def _scheduled(message: MessageView) -> Value:
    value = message.annotation(b"x-opt-scheduled-enqueue-time")
    return Instant(int(value) * TICKS_PER_MS) if isinstance(value, int) else None


def _time_to_live(message: MessageView) -> Value:
    ttl_ms = message.time_to_live_ms()
    return None if ttl_ms is None else Duration(ttl_ms * TICKS_PER_MS)


def _expires_at(message: MessageView) -> Value:
    ttl_ms = message.time_to_live_ms()
    return None if ttl_ms is None else Instant((message.enqueued_ms + ttl_ms) * TICKS_PER_MS)


def _not_yet(message: MessageView) -> Value:
    """A message gets this after its rules have been evaluated."""
    return None


MESSAGE_ID, USER_ID, TO, SUBJECT, REPLY_TO, CORRELATION_ID, CONTENT_TYPE = range(7)
CREATION_TIME, GROUP_ID, GROUP_SEQUENCE, REPLY_TO_GROUP_ID = 9, 10, 11, 12
"""Positions in the properties section (§3.2.4)."""

SYSTEM_PROPERTIES: Mapping[str, Callable[[MessageView], Value]] = {
    "messageid": _id_field(MESSAGE_ID),
    "correlationid": _id_field(CORRELATION_ID),
    "contenttype": _text_field(CONTENT_TYPE),
    "label": _text_field(SUBJECT),
    "subject": _text_field(SUBJECT),
    "to": _text_field(TO),
    "replyto": _text_field(REPLY_TO),
    "replytosessionid": _text_field(REPLY_TO_GROUP_ID),
    "sessionid": _text_field(GROUP_ID),
    "partitionkey": _annotation_text(b"x-opt-partition-key"),
    "viapartitionkey": _annotation_text(b"x-opt-via-partition-key"),
    "timetolive": _time_to_live,
    "scheduledenqueuetimeutc": _scheduled,
    "enqueuedtimeutc": lambda message: Instant(message.enqueued_ms * TICKS_PER_MS),
    "expiresatutc": _expires_at,
    "deadlettersource": lambda message: trail_of(message.stored, 0).dead_letter_source,
    "size": lambda message: len(message.stored),
    "state": lambda message: 0,  # active
    "deliverycount": lambda message: 0,
    "forcepersistence": lambda message: True,  # what is acknowledged is on disk
    "sequencenumber": _not_yet,
    "enqueuedsequencenumber": _not_yet,
    "lockeduntilutc": _not_yet,
    "locktoken": _not_yet,
}
"""Folded names of the system properties (AMQP contract 11.4)."""
