"""Batches as the official clients send them: a transfer with message-format 0x80013700 (AMQP contract 4.5).

The payload is a message of its own, the *envelope*, and each data section of its body holds a whole message.
The envelope's annotations and properties are copied from the first message, more or less of them by each
client: a hint for routing, never a message's content. Whether a transfer is a batch its format tells
(`protocol/frames.py`), never its content.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.base.errors import Reason, Refused
from protocol.codec import DecodeError
from protocol.sections import DATA, PROPERTIES, annotation, data_sections, field, find_sections

BATCH_MESSAGE_FORMAT = 0x80013700

BATCH_BYTES_MAX = 1024 * 1024
"""Of a batch as a whole, also where the entity takes larger messages (AMQP contract 4.5)."""

_GROUP_ID = 10  # place in the properties (§3.2.4)


@dataclass(slots=True, frozen=True)
class RoutingHint:
    """What the envelope says of its messages' keys: to be believed only as far as the messages agree."""

    session_id: str | None
    partition_key: str | None


def split(payload: bytes) -> tuple[list[bytes], RoutingHint]:
    """The messages of a batch, each as its sender encoded it.

    Raises Refused: DECODE if there are none, or no batch; MESSAGE_TOO_LARGE for more than BATCH_BYTES_MAX.
    """
    if len(payload) > BATCH_BYTES_MAX:
        raise Refused(
            Reason.MESSAGE_TOO_LARGE,
            (
                f"The batch has {len(payload)} bytes; {BATCH_BYTES_MAX} are the maximum, whatever a single "
                "message may have."
            ),
        )
    try:
        sections = find_sections(payload)
        if not sections.has(DATA):
            raise Refused(Reason.DECODE, "The batch holds no messages: its body has no data sections.")
        session_id = field(payload, sections, PROPERTIES, _GROUP_ID)
        partition_key = annotation(payload, sections, b"x-opt-partition-key")
    except DecodeError as error:
        raise Refused(Reason.DECODE, f"The batch is malformed: {error}.") from error
    return data_sections(payload, sections), RoutingHint(_text(session_id), _text(partition_key))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
