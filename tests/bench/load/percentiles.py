"""Percentiles of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least `share` of them (from 0 to 1) do not exceed: of 100 values and
    0.99, the second largest."""
    rank = math.ceil(round(len(values) * share, 6))  # 0.07 * 100 is a little more than 7
    return sorted(values)[max(rank, 1) - 1]
