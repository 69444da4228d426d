"""When scheduled messages are enqueued, of what senders ask for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, which is as far as clients can show a time. Later schedules count as this."""


def times_of(times_ms: Sequence[int | None] | None, wall_ms: int) -> list[int] | None:
    """When each message of a send is to be enqueued, 0 for now; None if all are enqueued now. A time that has
    passed means now."""
    if times_ms is None:
        return None
    times = [min(each, LATEST_MS) if each is not None and each > wall_ms else 0 for each in times_ms]
    return times if any(times) else None
