"""How much room the annotations and properties of a message may take (AMQP contract 10.1, header size). Pure.

No message takes more than LARGEST says: its stored form and its settlements rely on it. A namespace may
permit less. Then what clients send is checked once more, before it is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from broker.base.errors import Reason, Refused
from protocol.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FIELDS_MAX,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Sections,
    fields,
    find_sections,
    pairs,
    text_bytes,
)

METADATA_BYTES_MAX = 65_536
"""Limit of all annotations, properties and application-properties together."""
PROPERTY_BYTES_MAX = 32_768
"""Limit of the value of one property, encoded."""

_COUNTED = (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES)


@dataclass(slots=True, frozen=True)
class PropertyLimits:
    """How much one message may take, in bytes."""

    together: int = METADATA_BYTES_MAX
    """All annotations, properties and application-properties."""
    each: int = PROPERTY_BYTES_MAX
    """The value of one property, encoded."""


LARGEST = PropertyLimits()


def limits_of(together_kb: int, each_kb: int) -> PropertyLimits | None:
    """The limits of a namespace; None if they are the same for all, which need no other check."""
    limits = PropertyLimits(together_kb << 10, each_kb << 10)
    return None if limits == LARGEST else limits


def beyond(
    payloads: Sequence[bytes], malformed: Collection[int], limits: PropertyLimits
) -> Iterator[tuple[int, Refused]]:
    """Those messages, as their senders encoded them, that take more than these limits permit, by their
    numbers; without malformed ones."""
    for index, payload in enumerate(payloads):
        if index not in malformed:
            try:
                check_sizes(payload, find_sections(payload), limits)
            except Refused as why:  # keep a copy: the traceback of `why` refers to this frame, a cycle
                yield index, Refused(why.reason, why.description)


def check_sizes(payload: bytes, sections: Sections, limits: PropertyLimits = LARGEST) -> None:
    """Raises Refused(MESSAGE_TOO_LARGE) for a message that takes more."""
    begins, ends = sections.begins, sections.ends
    size = sum([ends[each] - begins[each] for each in _COUNTED])
    if size > limits.together:
        raise Refused(
            Reason.MESSAGE_TOO_LARGE,
            f"The message's annotations and properties take {size} bytes; the limit is {limits.together}.",
        )
    if size > limits.each:  # if the total is smaller, no property can be too large
        _check_each(payload, sections, limits)


def _check_each(payload: bytes, sections: Sections, limits: PropertyLimits) -> None:
    values, ends = sections.values, sections.ends
    if ends[PROPERTIES]:
        places = fields(payload, values[PROPERTIES], ends[PROPERTIES], FIELDS_MAX[PROPERTIES])
        for number, (at, behind) in enumerate(pairwise(places)):
            _check_one(f"number {number} of the properties list", behind - at, limits)
    if ends[APPLICATION_PROPERTIES]:
        places = pairs(payload, values[APPLICATION_PROPERTIES], ends[APPLICATION_PROPERTIES])
        for at_key, at, behind in zip(places[:-1:2], places[1::2], places[2::2], strict=True):
            name = (text_bytes(payload, at_key) or b"").decode()
            if behind - at > limits.each:  # most are not, so form no text for them
                _check_one(f"'{name:.80}'", behind - at, limits)


def _check_one(name: str, size: int, limits: PropertyLimits) -> None:
    if size > limits.each:
        raise Refused(
            Reason.MESSAGE_TOO_LARGE,
            f"The property {name} takes {size} bytes; the limit is {limits.each}.",
        )
