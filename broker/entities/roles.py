"""The roles of subqueues. Plain data.

Code asks a subqueue's *role* what to do and never checks which subqueue it has, so an entity may have any
number of subqueues in the same role. Each kind of entity lists its subqueues (`EntityDescription.subqueues`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class CountedAs(enum.Enum):
    """The figure of an entity to which the messages of a subqueue belong (HTTP contract 2.6)."""

    ACTIVE = enum.auto()
    DEAD_LETTER = enum.auto()
    TRANSFER = enum.auto()
    TRANSFER_DEAD_LETTER = enum.auto()


@dataclass(slots=True, frozen=True)
class Role:
    """How a subqueue treats its messages."""

    enforces_time_to_live: bool
    """Messages expire. Dead-letter subqueues ignore the time to live (AMQP contract 5.6)."""
    counts_deliveries: bool
    """A failed delivery is counted, up to the maximum delivery count (AMQP contract 10.3)."""
    has_sessions: bool
    """If the entity requires sessions, messages are received with their session (AMQP contract 5.4)."""
    counted_as: CountedAs


SERVES_RECEIVERS: Final = Role(
    enforces_time_to_live=True, counts_deliveries=True, has_sessions=True, counted_as=CountedAs.ACTIVE
)
"""For messages to be received."""
KEEPS_DEAD_LETTERS: Final = Role(
    enforces_time_to_live=False,
    counts_deliveries=False,
    has_sessions=False,
    counted_as=CountedAs.DEAD_LETTER,
)
"""For messages that could not be received."""
DISTRIBUTES: Final = Role(
    enforces_time_to_live=True, counts_deliveries=False, has_sessions=False, counted_as=CountedAs.ACTIVE
)
"""For what clients send to a topic: scheduled messages wait here, the rest goes to subscriptions at once."""
PASSES_ON: Final = Role(
    enforces_time_to_live=False,
    counts_deliveries=False,
    has_sessions=False,
    counted_as=CountedAs.TRANSFER,
)
"""For messages that transactions have sent to other entities, until these have them. No client sees them."""
KEEPS_FAILED_TRANSFERS: Final = Role(
    enforces_time_to_live=False,
    counts_deliveries=False,
    has_sessions=False,
    counted_as=CountedAs.TRANSFER_DEAD_LETTER,
)
"""For messages that could not be forwarded."""


@dataclass(slots=True, frozen=True)
class SubqueueDescription:
    """One of an entity's subqueues. Its number is its index in the list."""

    name: str
    """The name that operations use."""
    role: Role
    dead_letters_to: int | None = None
    """The number of the subqueue for its dead letters; None if its messages cannot be dead-lettered
    (AMQP contract 10.4)."""
