"""What an entity holds at a moment: the figures of lists and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.entities.roles import CountedAs, SubqueueDescription
from broker.operations.message_states import SubqueueCounts


@dataclass(
    slots=True
)  # not frozen: creating one would take four times as long, and listing creates ten thousand
class EntityRuntime:
    """What an entity holds now, summed over all its partitions (HTTP contract 2.6)."""

    active: int
    dead_letter: int
    scheduled: int
    transfer: int
    transfer_dead_letter: int
    message_count: int
    size_bytes: int
    availability: str
    """"Available", or "Limited" while a partition is down."""
    accessed_at_ms: int | None
    counts: Mapping[str, SubqueueCounts] = field(default_factory=dict)
    """By subqueue."""


def sum_up(
    subqueues: Mapping[int, SubqueueDescription],
    forward_to: str | None,
    all_counts: Mapping[str, SubqueueCounts],
    is_available: bool,
    accessed_at_ms: int | None,
) -> EntityRuntime:
    """What some subqueues of an entity hold, given the counts of all. If there is a target, their messages
    are forwarded. A list calls it for each of ten thousand entities."""
    counts: dict[str, SubqueueCounts] = {}
    active = scheduled = dead = transfer = transfer_dead = messages = size = 0
    for subqueue in subqueues.values() if all_counts else ():
        name = subqueue.name
        if name not in all_counts:
            continue
        held = counts[name] = all_counts[name]
        of_active, of_scheduled, of_deferred = held.active, held.scheduled, held.deferred
        messages += of_active + of_deferred + of_scheduled
        size += held.bytes
        match subqueue.role.counted_as:
            case CountedAs.ACTIVE:
                active += of_active
                scheduled += of_scheduled
            case CountedAs.DEAD_LETTER:
                dead += of_active + of_deferred
            case CountedAs.TRANSFER:
                transfer += of_active
            case CountedAs.TRANSFER_DEAD_LETTER:
                transfer_dead += of_active + of_deferred
    if forward_to is not None:
        active, transfer = 0, transfer + active  # they wait to be forwarded, and not to be received
    return EntityRuntime(
        active,
        dead,
        scheduled,
        transfer,
        transfer_dead,
        messages,
        size,
        "Available" if is_available else "Limited",
        accessed_at_ms,
        counts,
    )
