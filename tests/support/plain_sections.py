"""What `protocol/native/sections.c` does, in Python, and the comparison of the two."""

from __future__ import annotations

from protocol._sections import find as native_find
from protocol.codec import DecodeError
from protocol.sections import DATA, SECTIONS_MAX, Sections, data_sections, find_by_rules, find_sections
from protocol.values import skip


def contents(message: bytes, sections: Sections) -> list[bytes]:
    """The contents of the body's data sections."""
    offset, end = sections.values[DATA], sections.ends[DATA]
    found: list[bytes] = []
    while offset < end:
        behind = skip(message, offset)
        found.append(message[offset + (2 if message[offset] == 0xA0 else 5) : behind])
        offset = skip(message, behind + 1) if behind < end else end  # skips the next section's descriptor
    return found


def compare(message: bytes) -> Sections | None:
    """Check that C finds in any bytes what the Python rules find; None if they are no message."""
    try:
        found = native_find(message, SECTIONS_MAX)
    except OverflowError:
        found = None
    try:
        by_rules = find_by_rules(message)
    except DecodeError:
        assert found is None, "C accepts no message that the rules refuse"
        return None
    assert find_sections(message) == by_rules
    assert found is None or Sections(*found) == by_rules
    assert data_sections(message, by_rules) == contents(message, by_rules)
    return by_rules
