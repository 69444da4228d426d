"""Batches as the official clients send them: a transfer with message-format 0x80013700 (AMQP contract 4.5).

The payload is itself a message, the *envelope*, and each data section of its body holds a whole message.
Clients copy annotations and properties from the first message to the envelope, each client a different set.
They are a hint for routing, never part of a message. Only its message-format marks a transfer as a batch
(`protocol/frames.py`), never its content.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.base.errors import Reason, Refused
from protocol.codec import DecodeError, encode
from protocol.sections import DATA, PROPERTIES, annotation, data_sections, field, find_sections

BATCH_MESSAGE_FORMAT = 0x80013700

BATCH_BYTES_MAX = 1024 * 1024
"""The limit for a batch as a whole, even where the entity takes larger messages (AMQP contract 4.5)."""

_GROUP_ID = 10  # position in the properties (§3.2.4)


@dataclass(slots=True, frozen=True)
class RoutingHint:
    """The keys that the envelope gives for its messages. Trust them only as far as the messages agree."""

    session_id: str | None
    partition_key: str | None


def split(payload: bytes) -> tuple[list[bytes], RoutingHint]:
    """The messages of a batch, each as its sender encoded it, and the envelope's routing hint.

    Raises Refused: DECODE if the payload is not a batch or holds no messages; MESSAGE_TOO_LARGE for more than
    BATCH_BYTES_MAX.
    """
    if len(payload) > BATCH_BYTES_MAX:
        raise batch_too_large(len(payload))
    try:
        sections = find_sections(payload)
        if not sections.has(DATA):
            raise Refused(Reason.DECODE, "The batch holds no messages: its body has no data sections.")
        session_id = field(payload, sections, PROPERTIES, _GROUP_ID)
        partition_key = annotation(payload, sections, b"x-opt-partition-key")
    except DecodeError as error:
        raise Refused(Reason.DECODE, f"The batch is malformed: {error}.") from error
    return data_sections(payload, sections), RoutingHint(_text(session_id), _text(partition_key))


def batch_too_large(size: int) -> Refused:
    """The refusal of a batch over the limit of all batches."""
    return Refused(
        Reason.MESSAGE_TOO_LARGE,
        f"The batch has {size} bytes; the limit for a batch is {BATCH_BYTES_MAX}, even where a "
        "single message may be larger.",
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def enveloped(message: bytes) -> bytes:
    """The data section of one message. Such sections, one after the other, are a batch without a routing
    hint."""
    return b"\x00\x53\x75" + encode(message)
