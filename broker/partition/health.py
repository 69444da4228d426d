"""The health of a partition."""

from __future__ import annotations

import enum


class Health(enum.StrEnum):
    """The health of a partition. `broker/partition/task.py` draws how one leads to another."""

    CLOSED = "closed"
    OPENING = "opening"
    HEALTHY = "healthy"
    RECOVERING = "recovering"
    FAILED = "failed"
    DAMAGED = "damaged"
    """As FAILED, because the log is damaged (`DAMAGED_ADVICE`)."""
    STOPPED = "stopped"


FOR_GOOD = (Health.FAILED, Health.DAMAGED, Health.STOPPED)
"""States that a partition never leaves while the broker runs."""
