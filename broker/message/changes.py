"""Application properties that a settlement changes: abandon and defer with modifications, dead-letter with a
reason.

A change is an encoded AMQP map with string keys; a null value removes the property. Changes are laid over one
another (`merge_changes`), and over the message on delivery (`with_changes`); the stored message stays as it
is. Unchanged values keep their bytes and are never decoded. Both the partition and the front end use changes;
nothing here knows AMQP frames or links.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.base.errors import Reason, Refused
from broker.message import _changes
from broker.message.property_sizes import METADATA_BYTES_MAX, PROPERTY_BYTES_MAX
from protocol.codec import EncodeError, encode, encode_map, encode_text
from protocol.sections import APPLICATION_PROPERTIES, PROPERTIES, find_sections, pairs, text_bytes

DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"
"""Application properties of a dead-lettered message. They must be strings and never null, or the official Go
client panics."""

_NULL = b"\x40"
_SECTION = b"\x00\x53\x74"
"""What an application-properties section begins with."""


def encode_changes(properties: Mapping[Any, Any], *, drop_nulls: bool = False) -> bytes | None:
    """Encode a client's change, whose keys are symbols or strings; None if there is nothing to change.

    Set `drop_nulls` for a dead-letter's info map, where the official Python and JS clients write null for
    "not given" (AMQP contract 6.1). Raises Refused(ARGUMENT) for keys that are not text, values that AMQP
    cannot carry, or more than a message may have (AMQP contract 10.1).
    """
    changes: list[bytes] = []
    for key, value in properties.items():
        if not isinstance(key, str):
            raise Refused(Reason.ARGUMENT, f"The property name {key!r:.80} is not a string.")
        if value is None and drop_nulls:
            continue
        if key in (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION) and value is not None:
            value = str(value)
        try:
            encoded = encode(value)
            changes += encode(str(key)), encoded
        except EncodeError as error:
            raise Refused(Reason.ARGUMENT, f"The property '{key}' cannot be set: {error}.") from error
        if len(encoded) > PROPERTY_BYTES_MAX:
            raise Refused(
                Reason.ARGUMENT,
                f"The property '{key:.80}' takes {len(encoded)} bytes; the limit is {PROPERTY_BYTES_MAX}.",
            )
    if (size := sum(map(len, changes))) > METADATA_BYTES_MAX:
        raise Refused(
            Reason.ARGUMENT, f"The properties to set take {size} bytes; the limit is {METADATA_BYTES_MAX}."
        )
    return encode_map(changes) if changes else None


def merge_changes(earlier: bytes | None, later: bytes | None) -> bytes | None:
    """Merge two changes; where they differ, the later one wins. Removals are kept, because they apply to the
    message later.

    Changes that exceed METADATA_BYTES_MAX are dropped, oldest first, because a message may be given back any
    number of times.
    """
    if earlier is None or later is None:
        return later if earlier is None else earlier
    old, new = _entries(earlier, 0, len(earlier)), _entries(later, 0, len(later))
    excess = _changes.total(old | new) - METADATA_BYTES_MAX
    if excess > 0:
        for key in [key for key in old if key not in new]:
            if excess <= 0:
                break
            excess -= _changes.total({key: old.pop(key)})
    return _changes.encoded(old | new)


def count_of(changed: bytes) -> int:
    """How many properties a change sets or removes. Costs little, however many they are."""
    items = changed[2] if changed[0] == 0xC1 else int.from_bytes(changed[5:9], "big")
    return items // 2


def has_reason(changed: bytes | None, reason: str) -> bool:
    """Whether a change sets this dead-letter reason."""
    if changed is None or (text := reason.encode("utf-8", "surrogatepass")) not in changed:
        return False  # without decoding anything
    value = _entries(changed, 0, len(changed)).get(DEAD_LETTER_REASON.encode())
    return value is not None and text_bytes(value, 0) == text


def without_reasons(bare_message: bytes, changed: bytes | None) -> bytes:
    """The bare message with the change applied, and without a dead-letter reason and description."""
    return with_changes(bare_message, merge_changes(changed, _NO_REASONS) or _NO_REASONS)


def with_changes(bare_message: bytes, changed: bytes) -> bytes:
    """The bare message with the change applied to its application properties; all other sections stay as they
    are."""
    sections = find_sections(bare_message)
    begin, end = sections.begins[APPLICATION_PROPERTIES], sections.ends[APPLICATION_PROPERTIES]
    changes = _entries(changed, 0, len(changed))
    if end:
        value = sections.values[APPLICATION_PROPERTIES]
        made = _changes.laid_over(bare_message, value, end, changes)
        if made is None:
            made = laid_over_in_python(bare_message, value, end, changes)
    else:
        begin = end = sections.ends[PROPERTIES]
        made = _changes.encoded({key: each for key, each in changes.items() if each != _NULL})
    return bare_message[:begin] + (_SECTION + made if count_of(made) else b"") + bare_message[end:]


def laid_over_in_python(buffer: bytes, value: int, end: int, changes: Mapping[bytes, bytes]) -> bytes:
    """As `_changes.laid_over`, and the reference for it. Raises DecodeError for a map that is none."""
    places = pairs(buffer, value, end)
    left, parts = dict(changes), list[bytes]()
    for at_key, at_value, behind in zip(places[:-1:2], places[1::2], places[2::2], strict=True):
        key = text_bytes(buffer, at_key)
        assert key is not None, "checked when the message was stored"
        if key not in changes:
            parts += buffer[at_key:at_value], buffer[at_value:behind]
        elif left.pop(key, _NULL) != _NULL:
            parts += buffer[at_key:at_value], changes[key]
    for key, each in left.items():
        if each != _NULL:
            parts += encode_text(key), each
    return encode_map(parts)


def _entries(buffer: bytes, value: int, end: int) -> dict[bytes, bytes]:
    """Key text → encoded value."""
    found = _changes.entries(buffer, value, end)
    return entries_in_python(buffer, value, end) if found is None else found


def entries_in_python(buffer: bytes, value: int, end: int) -> dict[bytes, bytes]:
    """As `_changes.entries`, and the reference for it. Raises DecodeError for a map that is none."""
    places = pairs(buffer, value, end)
    found: dict[bytes, bytes] = {}
    for at_key, at_value, behind in zip(places[:-1:2], places[1::2], places[2::2], strict=True):
        key = text_bytes(buffer, at_key)
        assert key is not None, "checked when the message was stored and when the change was encoded"
        found[key] = buffer[at_value:behind]
    return found


def entries_of(changed: bytes) -> dict[bytes, bytes]:
    """The encoded values of a change by the text of their keys; null for a property that is removed."""
    return _entries(changed, 0, len(changed))


def encoded_in_python(entries: Mapping[bytes, bytes]) -> bytes:
    """As `_changes.encoded`, and the reference for it."""
    return encode_map([part for key, value in entries.items() for part in (encode_text(key), value)])


_NO_REASONS = _changes.encoded(
    dict.fromkeys((DEAD_LETTER_REASON.encode(), DEAD_LETTER_DESCRIPTION.encode()), _NULL)
)
