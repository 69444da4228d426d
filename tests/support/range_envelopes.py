"""Reads range envelopes (AMQP contract 7.6.2) as a client does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protocol.codec import Array
from tests.support.amqp_messages import ANNOTATIONS, DATA, sections


@dataclass
class Envelope:
    """An envelope, taken apart."""

    fields: dict[str, Any]
    """What it says of the range; columns as lists."""
    messages: list[bytes]
    bodies: list[bytes | None]
    """The content of each body; None for a body that is not one data section."""


def envelope_of(encoded: bytes) -> Envelope:
    """Take an envelope apart, by its columns alone."""
    found = sections(encoded)
    assert set(found) == {ANNOTATIONS, DATA}
    data = found[DATA]
    fields = {
        str(key): list(value.values) if isinstance(value, Array) else value
        for key, value in found[ANNOTATIONS].items()
    }
    ends = fields["ends"]
    messages = [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    bodies = [
        data[offset : offset + size] if size != 0xFFFF_FFFF else None
        for offset, size in zip(fields["body-offsets"], fields["body-sizes"], strict=True)
    ]
    return Envelope(fields, messages, bodies)
