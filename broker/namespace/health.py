"""The states of a partition as entities and their clients see them."""

from __future__ import annotations

OPENING, HEALTHY, RECOVERING = "opening", "healthy", "recovering"
CLOSED, MISSING = "closed", "missing"
"""Two states of a partition whose log is not open: nobody has used it, or its data folder cannot be used."""
NOT_OPEN = frozenset({CLOSED, OPENING, RECOVERING})
"""States of a partition whose log is not open. It is missing instead while its data folder cannot be used."""
DOWN = frozenset({RECOVERING, "failed", "damaged", MISSING})
"""States of a partition that clients cannot use."""
ENDED = frozenset({"failed", "damaged", "stopped", "gone"})
"""States that a partition never leaves while the broker runs."""
