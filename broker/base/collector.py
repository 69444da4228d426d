"""How often Python's garbage collector runs in the processes that hold messages."""

from __future__ import annotations

import gc

THRESHOLDS = (10_000, 0, 5_000)
"""A collection walks every object, and there are many waiting messages: with Python's default thresholds,
collections take a tenth of the time. One of the second generation walks up to twice the first number of
objects, and holds the event loop for as long: some 5 to 10 ms, where 100,000 objects took 50. If the first
number were lower, the messages that a single sender has under way would begin collections."""


def collect_rarely() -> None:
    """Set the thresholds of this process."""
    gc.set_threshold(*THRESHOLDS)
