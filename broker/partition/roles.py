"""What the subqueues of a partition are for, and what follows from it. Plain data.

A subqueue has a *role*. Code asks the role what to do, never which subqueue it has in hand, so that an entity
may have any number of subqueues in the same role. `QUEUE` lists those of a queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER


@dataclass(slots=True, frozen=True)
class Role:
    """What happens to the messages of a subqueue."""

    enforces_time_to_live: bool
    """Messages expire. Dead-letter subqueues know no time to live (AMQP contract 5.6)."""
    counts_deliveries: bool
    """A delivery that fails is counted, up to the maximum delivery count (AMQP contract 10.3)."""


SERVES_RECEIVERS: Final = Role(enforces_time_to_live=True, counts_deliveries=True)
"""Messages are here to be received."""
KEEPS_DEAD_LETTERS: Final = Role(enforces_time_to_live=False, counts_deliveries=False)
"""Messages are here because they could not be received, or not be sent on."""


@dataclass(slots=True, frozen=True)
class Place:
    """One of an entity's subqueues. Its number is its place in the list."""

    name: str
    """As operations name it."""
    role: Role
    dead_letters_to: int | None = None
    """The number of the subqueue for its dead letters; None if its messages go no further (10.4)."""


QUEUE: Final = (
    Place(MAIN, SERVES_RECEIVERS, dead_letters_to=1),
    Place(DEAD_LETTER, KEEPS_DEAD_LETTERS),
    Place(TRANSFER_DEAD_LETTER, KEEPS_DEAD_LETTERS),
)
"""The subqueues of a queue."""
