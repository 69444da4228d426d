"""What applications send: messages of several shapes, and the rows in which brokers are compared.

A *shape* is the size of the body and what else is in the message. Each shape has a pool of different
messages, which senders send in turn: ids, keys and properties vary as they do in an application. Knows
neither brokers nor rounds.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Final

from proton import Message, symbol

POOL_BYTES_MAX = 4 << 20
POOL_MESSAGES_MAX = 1_000
KEYS = 1_000
COUNTRIES = ("de", "fr", "it", "nl", "pl", "pt", "se", "uk")


@dataclass(slots=True, frozen=True)
class Shape:
    """One kind of message."""

    name: str
    body_bytes: int
    application: bool = False
    """Random id, subject, correlation-id, content-type and four application properties."""
    keyed: bool = False
    """One of 1,000 partition keys."""
    share: float = 1.0
    """The number of messages, as a share of that of the other shapes: fewer of the large ones."""

    def messages(self) -> list[bytes]:
        """The pool of this shape: the same for each run and broker."""
        dice = random.Random(f"shape {self.name}")
        count = max(8, min(POOL_MESSAGES_MAX, POOL_BYTES_MAX // self.body_bytes))
        return [self._message(dice, number) for number in range(count)]

    def _message(self, dice: random.Random, number: int) -> bytes:
        annotations = (
            {symbol("x-opt-partition-key"): f"customer-{dice.randrange(KEYS)}"} if self.keyed else None
        )
        properties = {
            "tenant": f"tenant-{dice.randrange(50)}",
            "country": dice.choice(COUNTRIES),
            "attempt": dice.randrange(4),
            "amount": round(dice.uniform(1, 1_000), 2),
        }
        message = Message(
            body=dice.randbytes(self.body_bytes),
            durable=True,
            inferred=True,
            annotations=annotations,
            properties=properties if self.application else None,
        )
        message.id = f"message-{number:08}"
        if self.application:
            message.id = str(uuid.UUID(int=dice.getrandbits(128), version=4))
            message.subject = dice.choice(("order.created", "order.paid", "order.shipped"))
            message.correlation_id = f"order-{dice.randrange(100_000)}"
            message.content_type = "application/json"
        return bytes(message.encode())


PLAIN: Final = Shape("plain", 1024)
SHAPES: Final = (
    PLAIN,
    Shape("application", 1024, application=True),
    Shape("keyed", 1024, keyed=True),
    Shape("application, keyed", 1024, application=True, keyed=True),
    Shape("64 B", 64),
    Shape("16 KiB", 16 * 1024, share=0.2),
    Shape("200 KiB", 200 * 1024, share=0.03),
)
"""Each is sent and received by one connection with a window of 500 (fewer of large ones, see
`window_of`)."""
WINDOW_BYTES = 16 << 20


def window_of(shape: Shape, window: int) -> int:
    """At most `window` messages, and at most 16 MiB of them, may be unacknowledged."""
    return max(8, min(window, WINDOW_BYTES // shape.body_bytes))
