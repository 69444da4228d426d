"""The bounds of a partition's task."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.partition.cycle_bounds import MIB, Bounds
from broker.partition.upkeep import UpkeepLimits


@dataclass(slots=True, frozen=True)
class TaskLimits:
    """The bounds of a partition's task, with their defaults."""

    cycle_operations_max: int = 1024
    cycle_bytes_max: int = 4 * MIB
    """Bytes of messages sent in one commit; a single operation may exceed it."""
    recovery_delay_ms: int = 100
    """Pause after the first failure to reopen the log. It doubles with each further failure."""
    recovery_delay_ms_max: int = 10_000
    """The longest pause between two attempts to reopen the log."""
    disk_timeout_ms: int = 5_000
    """A disk that has not answered for this long counts as failed."""
    rest_ms: int | None = 60_000
    """Time after the last change until the partition's contents are entered in the index; None to do so only
    when it is closed."""
    close_ms: int = 600_000
    """Time after the last change until a partition that is at rest, holds nothing and has no clients is
    closed."""
    bounds: Bounds = field(default_factory=Bounds)
    upkeep: UpkeepLimits = field(default_factory=UpkeepLimits)
