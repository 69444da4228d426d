"""What an entity holds at a moment: the figures of lists and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
