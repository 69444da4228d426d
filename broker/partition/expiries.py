"""When messages expire, in wall time: their times to live and the entity's, counted from the enqueued time.
Pure. `time_to_live.py` has them expire.
"""

from __future__ import annotations

from collections.abc import Sequence


def expiries(
    times_to_live_ms: Sequence[int | None] | None, default: int | None, count: int, enqueued_ms: int
) -> list[int] | None:
    """When each of `count` messages expires, 0 for never; None if none expires. The entity's default caps a
    message's own time to live."""
    if times_to_live_ms is None:
        return None if default is None else [enqueued_ms + max(1, default)] * count
    shared: dict[int | None, int] = {}
    for own in set(times_to_live_ms):
        limits = [each for each in (own, default) if each is not None]
        shared[own] = enqueued_ms + max(1, min(limits)) if limits else 0
    return list(map(shared.__getitem__, times_to_live_ms)) if any(shared.values()) else None


def later_expiries(
    expiries: Sequence[int] | None, times_ms: Sequence[int], enqueued_ms: int
) -> list[int] | None:
    """The expiries of messages that were computed from `enqueued_ms`, for scheduled ones counted from their
    times."""
    if expiries is None:
        return None
    return [
        expires_ms + at_ms - enqueued_ms if at_ms and expires_ms else expires_ms
        for expires_ms, at_ms in zip(expiries, times_ms, strict=True)
    ]
