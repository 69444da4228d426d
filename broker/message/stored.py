"""The form in which a message is kept in the log: opaque to the partition, cheap to make and cheap to
deliver.

    version   1 byte     1; 2 with delivery-annotations; 5 and 6: the same of forwarded messages
    flags     1 byte     1: the sender set a priority, 2: the sender set a time to live, 4: see `forwarded.py`
    priority  1 byte     header.priority (AMQP 1.0 §3.2.1), 0 if not set
    hops      1 byte     how often the message was forwarded (`forwarded.py`)
    ttl       4 bytes    header.ttl in milliseconds, 0 if not set
    pairs     2 bytes    number of message-annotation pairs that follow
    length    2 bytes    their length in bytes
    …                    the sender's message-annotation pairs, key and value in turn, as they came
    pairs     2 bytes    versions 2 and 6 only: number of delivery-annotation pairs that follow
    length    2 bytes    versions 2 and 6 only: their length in bytes
    …                    versions 2 and 6 only: the sender's delivery-annotation pairs, as they came
    …                    the bare message (§3.2): properties, application-properties, body, footer, each
                         as it came

All numbers are big endian. The sender's header goes no further than this: each delivery gets its own
(`message/annotations.py`), and also the annotations that only the broker may set, so those from a sender are
dropped. Few senders set delivery-annotations, so most messages have version 1. The bare message is never
decoded and encoded again. Its sections are put into the order of the specification, and a message without a
message-id is given one, because the official JS client cannot settle a message that has none (AMQP contract
12.20). Nothing else is changed.

Invalid messages are refused here, before anything is stored: malformed parts that this broker would have to
read later, keys over their limits, and more metadata than the service takes (AMQP contract 10.1).
Annotations that name twice what the broker interprets or replaces are malformed as well: a map with two equal
keys is invalid (§1.6.23). Other keys are only passed on, so nothing looks for equal ones.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from broker.base.errors import Reason, Refused
from broker.message._stored import store as native_store
from broker.message.property_sizes import check_sizes
from protocol.codec import DecodeError, encode
from protocol.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FIELDS_MAX,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Sections,
    fields,
    find_sections,
    pairs,
    section_at,
    text_bytes,
)

VERSION, VERSION_WITH_DELIVERY_ANNOTATIONS = 1, 2
FORWARDED = 0b100
"""This bit of the version is set if the message was forwarded."""
_DELIVERY_HEAD = struct.Struct(">HH")
HEAD = struct.Struct(">BBBxIHH")
HAS_PRIORITY, HAS_TIME_TO_LIVE, HAS_DEAD_LETTER_SOURCE = 1, 2, 4

KEY_CHARACTERS_MAX = 128
"""Limit of a message-id, session-id or partition-key (AMQP contract 10.1)."""

BROKER_ANNOTATIONS = frozenset(
    (
        b"x-opt-sequence-number", b"x-opt-enqueued-time", b"x-opt-locked-until",
        b"x-opt-enqueue-sequence-number",
        b"x-opt-partition-id", b"x-opt-message-state", b"x-opt-deadletter-source", b"x-opt-lock-token",
    )
)  # fmt: skip
"""Message annotations that only the broker sets (AMQP contract 5.5)."""

_MESSAGE_ID, _GROUP_ID = 0, 10  # positions in the properties list (§3.2.4)
_NULL = 0x40
_U32, _I64 = struct.Struct(">I"), struct.Struct(">q")


@dataclass(slots=True)
class StoredMessage:
    """A message as it goes into the log, with the values that routing and timers need."""

    data: bytes
    time_to_live_ms: int | None
    """As the sender set it; None if it set none, or 0, which many clients write for "for ever"."""
    session_id: str | None
    partition_key: str | None
    scheduled_enqueue_time_ms: int | None
    """When the message becomes active, in wall time since the epoch; None for now."""

    def message_id(self) -> bytes:
        """See `message_id`."""
        return message_id(self.data)


@dataclass(slots=True)
class StoredRun:
    """Messages that came together, by columns. Each column is as long as the run, or None if no message has a
    value."""

    data: list[bytes]
    """As they go into the log; empty for a message that is refused."""
    times_to_live_ms: list[int | None] | None
    """As the senders set them."""
    session_ids: list[str | None] | None
    partition_keys: list[str | None] | None
    scheduled_enqueue_times_ms: list[int | None] | None
    refused: dict[int, Refused]
    """The reason, by the message's number in the run."""

    def put(self, index: int, message: StoredMessage) -> None:
        """Set one message's values."""
        count = len(self.data)
        self.data[index] = message.data
        self.times_to_live_ms = _put(self.times_to_live_ms, count, index, message.time_to_live_ms)
        self.session_ids = _put(self.session_ids, count, index, message.session_id)
        self.partition_keys = _put(self.partition_keys, count, index, message.partition_key)
        self.scheduled_enqueue_times_ms = _put(
            self.scheduled_enqueue_times_ms, count, index, message.scheduled_enqueue_time_ms
        )

    def message(self, index: int) -> StoredMessage:
        """One message by itself."""
        return StoredMessage(
            self.data[index],
            _at(self.times_to_live_ms, index),
            _at(self.session_ids, index),
            _at(self.partition_keys, index),
            _at(self.scheduled_enqueue_times_ms, index),
        )


_Value = TypeVar("_Value")


def _at(column: list[_Value | None] | None, index: int) -> _Value | None:
    return None if column is None else column[index]


def _put(
    column: list[_Value | None] | None, count: int, index: int, value: _Value | None
) -> list[_Value | None] | None:
    """Set one value of a column that may not exist yet."""
    if value is None:
        return column
    if column is None:
        column = [None] * count
    column[index] = value
    return column


class MessageIds:
    """Makes ids for messages without one: 32 hex digits, a random prefix of this process and a counter."""

    def __init__(self, prefix: bytes | None = None) -> None:
        self._prefix = (os.urandom(8) if prefix is None else prefix).hex()
        self._numbers = count()

    def __call__(self) -> str:
        return f"{self._prefix}{next(self._numbers):016x}"


def message_id(stored: bytes) -> bytes:
    """The message-id of a stored message in its AMQP encoding, including the type, for comparing and hashing.

    Walks the message.
    """
    _, value = section_at(stored, bare_message_offset(stored))
    places = fields(stored, value, section_end(stored, value), FIELDS_MAX[PROPERTIES])
    return stored[places[0] : places[1]]


def priority_of(stored: bytes) -> int | None:
    """The priority of a stored message (§3.2.1); None if the sender set none."""
    return stored[2] if stored[1] & HAS_PRIORITY else None


def time_to_live_of(stored: bytes) -> int | None:
    """The time to live of a stored message in ms, as the sender set it; None if it set none."""
    return int.from_bytes(stored[4:8], "big") if stored[1] & HAS_TIME_TO_LIVE else None


def bare_message_offset(stored: bytes) -> int:
    """Where the bare message begins in a stored message."""
    return delivery_annotations(stored, HEAD.size + (stored[10] << 8 | stored[11]))[2]


def delivery_annotations(stored: bytes, offset: int) -> tuple[int, bytes, int]:
    """The number of the sender's delivery-annotation pairs, their bytes, and where the bare message begins
    after them.

    `offset` is where the message-annotation pairs end.
    """
    version = stored[0] & ~FORWARDED
    if version == VERSION:
        return 0, b"", offset
    assert version == VERSION_WITH_DELIVERY_ANNOTATIONS, "no later release wrote this"
    count, size = _DELIVERY_HEAD.unpack_from(stored, offset)
    begin = offset + _DELIVERY_HEAD.size
    return count, stored[begin : begin + size], begin + size


def section_end(buffer: bytes, value: int) -> int:
    """Where the list or map whose constructor is at `value` ends."""
    constructor = buffer[value]
    if constructor == 0x45:
        return value + 1
    if constructor < 0xD0:
        return value + 2 + buffer[value + 1]
    return value + 5 + int(_U32.unpack_from(buffer, value + 1)[0])


def store_run(payloads: Sequence[bytes], fallback_message_id: Callable[[], str]) -> StoredRun:
    """The stored form of messages as their senders encoded them.

    `fallback_message_id` makes an id for each message that has none. Refusals are part of the result: DECODE
    for malformed messages, ARGUMENT for a key over its limit or of a wrong type, NOT_ALLOWED if session-id
    and partition-key differ, MESSAGE_TOO_LARGE for too much metadata.

    The native code stores messages in one walk. It leaves only those that must be refused to the Python code
    below, which knows all the rules.
    """
    run, left = _stored_natively(payloads, fallback_message_id)
    for index in left:
        try:
            run.put(index, store_by_rules(payloads[index], fallback_message_id))
        except Refused as why:  # keep a copy: the traceback of `why` refers to `run`, a cycle
            run.refused[index] = Refused(why.reason, why.description)
    return run


def store_together(payloads: Sequence[bytes], fallback_message_id: Callable[[], str]) -> StoredRun:
    """The same for messages of which all or none are stored. Raises Refused for the first that must be
    refused.

    Python does not look at those after it: each may take it 20 ms, with 64 KiB of malformed metadata.
    """
    run, left = _stored_natively(payloads, fallback_message_id)
    for index in left:
        run.put(index, store_by_rules(payloads[index], fallback_message_id))
    return run


def _stored_natively(
    payloads: Sequence[bytes], fallback_message_id: Callable[[], str]
) -> tuple[StoredRun, list[int]]:
    """The run, and the numbers of the messages that are left to `store_by_rules`."""
    data, times_to_live_ms, session_ids, partition_keys, scheduled_ms, left = native_store(
        payloads, fallback_message_id
    )
    return StoredRun(data, times_to_live_ms, session_ids, partition_keys, scheduled_ms, {}), left


def store(payload: bytes, fallback_message_id: Callable[[], str]) -> StoredMessage:
    """The stored form of one message, as `store_run` makes it. Raises Refused."""
    run = store_run((payload,), fallback_message_id)
    if run.refused:
        raise run.refused.pop(0)
    return run.message(0)


def store_by_rules(payload: bytes, fallback_message_id: Callable[[], str]) -> StoredMessage:
    """The stored form of any message, made without native code. This is the reference if the two differ.
    Raises Refused."""
    try:
        return _store(payload, fallback_message_id)
    except (DecodeError, IndexError, struct.error, UnicodeDecodeError) as error:
        raise Refused(Reason.DECODE, f"The message is malformed: {error}.") from error


def _store(payload: bytes, fallback_message_id: Callable[[], str]) -> StoredMessage:
    sections = find_sections(payload)
    begins, values, ends = sections.begins, sections.values, sections.ends
    check_sizes(payload, sections)
    flags = priority = ttl_ms = 0
    if ends[HEADER] - values[HEADER] > 1:  # many clients send it empty
        flags, priority, ttl_ms = _header(payload, values[HEADER], ends[HEADER])
    annotations, annotation_pairs, partition_key, scheduled_ms = _NO_ANNOTATIONS
    if ends[MESSAGE_ANNOTATIONS] - values[MESSAGE_ANNOTATIONS] > 3:
        annotations, annotation_pairs, partition_key, scheduled_ms = _annotations(
            payload, values[MESSAGE_ANNOTATIONS], ends[MESSAGE_ANNOTATIONS]
        )
    version = VERSION
    if ends[DELIVERY_ANNOTATIONS] - values[DELIVERY_ANNOTATIONS] > 3:
        kept = _delivery_annotations(payload, values[DELIVERY_ANNOTATIONS], ends[DELIVERY_ANNOTATIONS])
        version = VERSION_WITH_DELIVERY_ANNOTATIONS if kept else VERSION
    if ends[APPLICATION_PROPERTIES]:
        _check_application_properties(payload, values[APPLICATION_PROPERTIES], ends[APPLICATION_PROPERTIES])

    session_id = None
    properties_end = ends[PROPERTIES]
    if properties_end:
        places = fields(payload, values[PROPERTIES], properties_end, 13)
        has_message_id = len(places) > 1 and payload[places[0]] != _NULL
        if has_message_id:
            _check_message_id(payload, places[0], places[1])
        if len(places) > _GROUP_ID + 1 and payload[places[_GROUP_ID]] != _NULL:
            session_id = _key(payload, places[_GROUP_ID], "session-id")
    else:
        places, has_message_id = [0], False

    if session_id is not None and partition_key is not None and session_id != partition_key:
        raise Refused(
            Reason.NOT_ALLOWED,
            (
                f"The partition-key '{partition_key}' differs from the session-id '{session_id}': where "
                "both are set they must be the same."
            ),
        )
    head = HEAD.pack(version, flags, priority, ttl_ms, annotation_pairs, len(annotations))
    if version != VERSION:
        annotations += kept
    if has_message_id and sections.in_order:
        data = b"".join((head, annotations, payload[begins[PROPERTIES] :]))
    else:
        properties = (
            payload[begins[PROPERTIES] : properties_end]
            if has_message_id
            else _with_message_id(payload, places, fallback_message_id())
        )
        data = b"".join((head, annotations, properties, _behind_properties(payload, sections)))
    return StoredMessage(data, ttl_ms or None, session_id, partition_key, scheduled_ms)


def _header(payload: bytes, value: int, end: int) -> tuple[int, int, int]:
    """Flags, priority and time to live in milliseconds from a header section (§3.2.1)."""
    places = fields(payload, value, end, 5)
    known = len(places) - 1
    flags = priority = ttl_ms = 0
    if known > 1 and payload[places[1]] != _NULL:
        if payload[places[1]] != 0x50:
            raise DecodeError("header.priority is not a ubyte")
        flags, priority = HAS_PRIORITY, payload[places[1] + 1]
    if known > 2 and payload[places[2]] != _NULL:
        ttl_ms = _uint(payload, places[2])
        if ttl_ms:
            flags |= HAS_TIME_TO_LIVE
    return flags, priority, ttl_ms


def _uint(payload: bytes, place: int) -> int:
    match payload[place]:
        case 0x70:
            return int(_U32.unpack_from(payload, place + 1)[0])
        case 0x52:
            return payload[place + 1]
        case 0x43:
            return 0
    raise DecodeError("header.ttl is not a uint")


_Annotations = tuple[bytes, int, str | None, int | None]
"""The sender's annotations that are kept, the number of their pairs, the partition-key, and the scheduled
time in milliseconds."""

_LOCK_TOKEN = b"x-opt-lock-token"
_KEY_ANNOTATIONS = {
    b"x-opt-partition-key": "partition-key",
    b"x-opt-via-partition-key": "via-partition-key",
}
_SCHEDULED_TIME = b"x-opt-scheduled-enqueue-time"
_RESERVED = BROKER_ANNOTATIONS | _KEY_ANNOTATIONS.keys() | {_SCHEDULED_TIME}
_BINARY_8, _BINARY_32 = 0xA0, 0xB0
_NO_ANNOTATIONS: _Annotations = (b"", 0, None, None)


def _annotations(payload: bytes, value: int, end: int) -> _Annotations:
    places = pairs(payload, value, end)
    count = len(places) // 2
    kept, kept_from = list[bytes](), places[0]
    partition_key = scheduled_ms = None
    seen = set[bytes]()
    for at_key, at_value, behind in zip(places[:-1:2], places[1::2], places[2::2], strict=True):
        key = text_bytes(payload, at_key)
        if key is None or not key.startswith(b"x-opt-"):
            continue
        if key in _RESERVED:
            if key in seen:
                raise _named_twice(key, at_key)
            seen.add(key)
        if key in BROKER_ANNOTATIONS:
            kept.append(payload[kept_from:at_key])
            kept_from = behind
            count -= 1
        elif payload[at_value] == _NULL:
            continue
        elif key in _KEY_ANNOTATIONS:
            encoded = payload[at_value:behind]
            if encoded[0] in (_BINARY_8, _BINARY_32):
                # The Python client sends a message that it has received with its text as binary. Binary and
                # text differ in their code alone (§1.6.19, §1.6.20).
                encoded = bytes([encoded[0] | 1]) + encoded[1:]
                kept += payload[kept_from:at_value], encoded
                kept_from = behind
            text = _key(encoded, 0, _KEY_ANNOTATIONS[key])
            if key == b"x-opt-partition-key":
                partition_key = text
        elif key == _SCHEDULED_TIME:
            if payload[at_value] != 0x83:
                raise Refused(
                    Reason.ARGUMENT, "The annotation x-opt-scheduled-enqueue-time is not a timestamp."
                )
            scheduled_ms = _I64.unpack_from(payload, at_value + 1)[0]
    kept.append(payload[kept_from:end])
    return b"".join(kept), count, partition_key, scheduled_ms


def _delivery_annotations(payload: bytes, value: int, end: int) -> bytes:
    """A sender's delivery-annotations in stored form, preceded by their number and size; empty if none is
    kept."""
    places = pairs(payload, value, end)
    kept, seen = list[bytes](), False
    for at_key, behind in zip(places[:-1:2], places[2::2], strict=True):
        if text_bytes(payload, at_key) != _LOCK_TOKEN:
            kept.append(payload[at_key:behind])
        elif seen:
            raise _named_twice(_LOCK_TOKEN, at_key)
        else:
            seen = True
    together = b"".join(kept)
    return _DELIVERY_HEAD.pack(len(kept), len(together)) + together if kept else b""


def _named_twice(key: bytes, place: int) -> DecodeError:
    return DecodeError(f"the annotation {key.decode()} occurs a second time at byte {place}")


def _key(payload: bytes, place: int, name: str) -> str:
    encoded = text_bytes(payload, place)
    if encoded is None or payload[place] == 0xA3 or payload[place] == 0xB3:
        raise Refused(Reason.ARGUMENT, f"The {name} is not a string.")
    text = encoded.decode()
    if len(text) > KEY_CHARACTERS_MAX:
        raise Refused(
            Reason.ARGUMENT,
            f"The {name} has {len(text)} characters; the limit is {KEY_CHARACTERS_MAX}.",
        )
    return text


def _check_message_id(payload: bytes, place: int, end: int) -> None:
    """Refuse an id that is too long or of a type that an id cannot have (§3.2.11 to §3.2.14), and a string
    that is not UTF-8 (§1.6.20): such an id could neither place its message nor tell it apart."""
    if payload[place] not in (0xA1, 0xB1, 0xA0, 0xB0, 0x98, 0x80, 0x53, 0x44):
        raise Refused(Reason.ARGUMENT, "The message-id is neither string, binary, ulong nor uuid.")
    head = 2 if payload[place] in (0xA0, 0xA1) else 5 if payload[place] in (0xB0, 0xB1) else 0
    is_string = payload[place] in (0xA1, 0xB1)
    length = len(payload[place + head : end].decode()) if is_string else end - place - head
    if length > KEY_CHARACTERS_MAX:
        raise Refused(
            Reason.ARGUMENT,
            f"The message-id has {length} characters; the limit is {KEY_CHARACTERS_MAX}.",
        )


def _check_application_properties(payload: bytes, value: int, end: int) -> None:
    for at_key in pairs(payload, value, end)[:-1:2]:
        if payload[at_key] != 0xA1 and payload[at_key] != 0xB1:
            raise DecodeError("the key of an application property is not a string")


def _with_message_id(payload: bytes, places: list[int], message_id: str) -> bytes:
    """The properties section with this id set. `places` are its fields, of which the first is null or
    missing; the others stay as they came."""
    count = max(1, len(places) - 1)
    body = encode(message_id) + payload[places[0] + 1 : places[-1]]
    size = len(body)
    if size < 255:
        return b"\x00\x53\x73\xc0" + bytes((size + 1, count)) + body
    return b"\x00\x53\x73\xd0" + _U32.pack(size + 4) + _U32.pack(count) + body


def _behind_properties(payload: bytes, sections: Sections) -> bytes:
    """The bare message without its properties, in the order of the specification."""
    if sections.in_order:
        return payload[max(sections.ends[: PROPERTIES + 1]) :]
    extents = zip(sections.begins[PROPERTIES + 1 : FOOTER + 1], sections.ends[PROPERTIES + 1 :], strict=True)
    return b"".join([payload[begin:end] for begin, end in extents])
