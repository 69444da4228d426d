"""Ticks of 100 ns, in which .NET counts dates and time spans."""

from __future__ import annotations

from typing import Final

TICKS_PER_MS: Final = 10_000
EPOCH_TICKS: Final = 621_355_968_000_000_000
"""The Unix epoch, in ticks since the beginning of the year 1."""
