"""The roles of subqueues. Plain data.

Code asks a subqueue's *role* what to do and never checks which subqueue it has, so an entity may have any
number of subqueues in the same role. Each kind of entity lists its subqueues (`EntityDescription.subqueues`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, ValuesView
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

    @property
    def keeps_dead_letters(self) -> bool:
        """Its messages can be re-driven."""
        return self.counted_as in (CountedAs.DEAD_LETTER, CountedAs.TRANSFER_DEAD_LETTER)


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
    """One of an entity's subqueues."""

    name: str
    """The name that operations use."""
    role: Role
    dead_letters_to: int | None = None
    """The number of the subqueue for its dead letters; None if its messages cannot be dead-lettered
    (AMQP contract 10.4)."""
    transfers_fail_to: int | None = None
    """The number of the subqueue for its messages that no other entity takes; None if none is forwarded from
    here."""
    redrives_to: int = 0
    """The number of the subqueue that its messages came from if they are dead letters, and to which they are
    re-driven; otherwise its own."""


OWN_END: Final = 4
"""The subqueues of an entity itself have lower numbers than those of its subscriptions, if it has any."""


def is_of_same(subqueue: int, other: int) -> bool:
    """Whether two subqueues belong to the same subscription, or both to the entity itself. Each has OWN_END
    numbers."""
    return subqueue // OWN_END == other // OWN_END


class SubqueueTable(Mapping[int, SubqueueDescription]):
    """The subqueues of an entity, by number. Immutable.

    Numbers are stored, so a subqueue keeps its number for as long as it exists, and no other ever gets it.
    """

    __slots__ = ("_by_number", "_numbers", "end")

    def __init__(self, by_number: Mapping[int, SubqueueDescription], end: int) -> None:
        """`end` is above all numbers that were ever given. Those below that are missing belonged to subqueues
        that were deleted."""
        self.end = end
        self._by_number = by_number
        self._numbers = {each.name: number for number, each in by_number.items()}

    def __getitem__(self, number: int) -> SubqueueDescription:
        return self._by_number[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_number)

    def __len__(self) -> int:
        return len(self._by_number)

    def values(self) -> ValuesView[SubqueueDescription]:
        """The subqueues. A list of ten thousand entities asks for them ten thousand times, so they are not
        looked up one by one, as `Mapping` does."""
        return self._by_number.values()

    def number_of(self, name: str) -> int | None:
        """The number of the subqueue of this name; None if there is none."""
        return self._numbers.get(name)

    def first_with(self, role: Role) -> int | None:
        """The lowest number of a subqueue in this role; None if there is none."""
        return min((number for number, each in self._by_number.items() if each.role is role), default=None)

    def role_of(self, name: str) -> Role | None:
        """The role of the subqueue of this name; None if there is none."""
        number = self._numbers.get(name)
        return None if number is None else self._by_number[number].role

    def main_of(self, name: str) -> str:
        """The name of the subqueue whose messages become dead letters in the subqueue of this name; the same
        name for any other."""
        number = self._numbers.get(name)
        return name if number is None else self._by_number[self._by_number[number].redrives_to].name

    def takes_sends(self, name: str) -> bool:
        """Whether clients send to the subqueue of this name. Scheduled messages wait there."""
        return self._numbers.get(name) == 0
