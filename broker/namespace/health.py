"""The states of a partition as entities and their clients see them."""

from __future__ import annotations

OPENING, HEALTHY = "opening", "healthy"
CLOSED, MISSING = "closed", "missing"
"""States of a partition that is not open: it is missing if its data folder cannot be used."""
DOWN = frozenset({"recovering", "failed", "damaged", MISSING})
"""States of a partition that clients cannot use."""
ENDED = frozenset({"failed", "damaged", "stopped", "gone"})
"""States that a partition never leaves while the broker runs."""
