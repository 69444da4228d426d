"""Asks the partitions of an entity where their messages begin and end, for clients that read by position
(AMQP contract 7.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from broker.base.errors import Reason, Refused
from broker.base.plurals import counted
from broker.identifiers import partition_of
from broker.messaging.asking import answer_of
from broker.namespace.entity import Entity
from broker.operations.streams import FindPositions, Positions


def by_partition(entity: Entity, positions: Sequence[int]) -> dict[int, int]:
    """Positions by their partitions. Raises Refused(ARGUMENT) if a partition does not exist or has two."""
    found: dict[int, int] = {}
    for position in positions:
        number = partition_of(position)
        if not 0 <= number < entity.description.partitions:
            raise Refused(
                Reason.ARGUMENT,
                f"The position {position} is in partition {number}; '{entity.name}' has "
                f"{counted(entity.description.partitions, 'partition')}.",
            )
        if number in found:
            raise Refused(Reason.ARGUMENT, f"There are two positions in partition {number}.")
        found[number] = position
    return found


async def find_positions(
    entity: Entity,
    subqueue: str,
    enqueued_from_ms: int | None = None,
    backlogs_from: Mapping[int, int] | None = None,
    *,
    undecided: bool = False,
) -> tuple[dict[int, Positions], dict[int, Refused]]:
    """The positions of each partition, and the refusals of those that are not available. `backlogs_from`:
    positions by partition; messages are counted from there on. `undecided`: as in `FindPositions`."""
    starts = backlogs_from or {}
    answers = await asyncio.gather(
        *(
            answer_of(
                handle, FindPositions(subqueue, enqueued_from_ms, starts.get(number), undecided=undecided)
            )
            for number, handle in enumerate(entity.router.handles)
        )
    )
    found: dict[int, Positions] = {}
    refusals: dict[int, Refused] = {}
    for number, answer in enumerate(answers):
        if isinstance(answer, Refused):
            refusals[number] = answer
        else:
            assert isinstance(answer, Positions), f"{answer} is not an answer to FindPositions"
            found[number] = answer
    return found, refusals
