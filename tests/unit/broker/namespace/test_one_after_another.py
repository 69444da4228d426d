"""Which closed partition of an entity is opened for receivers when memory is scarce."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.namespace.one_after_another import OneAfterAnother
from broker.operations.message_states import SubqueueCounts


@dataclass
class Partition:
    health: str = "closed"
    held: dict[str, SubqueueCounts] = field(default_factory=dict)

    def counts(self, only: str | None = None) -> dict[str, SubqueueCounts]:
        return self.held


async def test_one_partition_after_the_other_is_opened_while_memory_has_no_room() -> None:
    turns, partitions = OneAfterAnother(), [Partition() for _ in range(3)]

    def turn() -> list[bool]:
        return [
            turns.has_turn(number, "", lambda number: partitions[number].health, partitions)
            for number in range(3)
        ]

    assert turn() == [True, False, False] == turn(), "it was asked for, and is about to be opened"
    partitions[0].health = "opening"
    assert turn() == [False, False, False]
    partitions[0].health, partitions[0].held[""] = "healthy", SubqueueCounts(active=5, locked=4)
    assert turn()[1:] == [False, False], "it has a message that nobody has locked"
    partitions[0].held[""].locked = 5
    assert turn()[1:] == [True, False]
    partitions[1].health = "recovering"
    assert turn()[2], "nobody waits for a partition that is down"


async def test_what_an_open_partition_holds_for_others_keeps_no_receiver_waiting() -> None:
    open_one = Partition("healthy", {"$deadletterqueue": SubqueueCounts(active=3)})
    turns, partitions = OneAfterAnother(), [open_one, Partition()]
    assert turns.has_turn(1, "", lambda number: partitions[number].health, partitions)
