"""The roles of subqueues. Plain data.

Code asks a subqueue's *role* what to do and never checks which subqueue it has, so an entity may have any
number of subqueues in the same role. `QUEUE` lists the subqueues of a queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER


@dataclass(slots=True, frozen=True)
class Role:
    """How a subqueue treats its messages."""

    enforces_time_to_live: bool
    """Messages expire. Dead-letter subqueues ignore the time to live (AMQP contract 5.6)."""
    counts_deliveries: bool
    """A failed delivery is counted, up to the maximum delivery count (AMQP contract 10.3)."""
    has_sessions: bool
    """If the entity requires sessions, messages are received with their session (AMQP contract 5.4)."""


SERVES_RECEIVERS: Final = Role(enforces_time_to_live=True, counts_deliveries=True, has_sessions=True)
"""For messages to be received."""
KEEPS_DEAD_LETTERS: Final = Role(enforces_time_to_live=False, counts_deliveries=False, has_sessions=False)
"""For messages that could not be received, or could not be forwarded."""


@dataclass(slots=True, frozen=True)
class Place:
    """One of an entity's subqueues. Its number is its index in the list."""

    name: str
    """The name that operations use."""
    role: Role
    dead_letters_to: int | None = None
    """The number of the subqueue for its dead letters; None if its messages cannot be dead-lettered
    (10.4)."""


QUEUE: Final = (
    Place(MAIN, SERVES_RECEIVERS, dead_letters_to=1),
    Place(DEAD_LETTER, KEEPS_DEAD_LETTERS),
    Place(TRANSFER_DEAD_LETTER, KEEPS_DEAD_LETTERS),
)
"""The subqueues of a queue."""
