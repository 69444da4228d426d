"""What being scheduled and becoming active means for references; used when records are applied. Pure.

While a message is scheduled, its enqueued time is the time at which it will be enqueued, and its expiry
counts from then. So no further field is needed, and both times are stored as those of any message.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.partition.records import Activated
from broker.partition.references import ACTIVE, SCHEDULED, Reference


def put_off(references: Sequence[Reference], scheduled_ms: Sequence[int]) -> list[Reference]:
    """Set the times of new messages that have a schedule (others have 0), and return these messages."""
    shared: dict[int, int] = {}
    waiting: list[Reference] = []
    for reference, at_ms in zip(references, scheduled_ms, strict=True):
        if at_ms:
            reference.enqueued_at_ms = shared.setdefault(at_ms, at_ms)
            waiting.append(reference)
    return waiting


def put_off_again(reference: Reference, at_ms: int) -> int:
    """Give a scheduled message another time; returns the time that it had."""
    assert reference.state is SCHEDULED, "only scheduled messages have a time"
    before_ms = reference.enqueued_at_ms
    if reference.expires_at_ms is not None:
        reference.expires_at_ms += at_ms - before_ms
    reference.enqueued_at_ms = at_ms
    return before_ms


def activate(
    references: Sequence[Reference], activated: Activated, now_ms: int | None
) -> dict[int, int | None]:
    """Give scheduled messages their new numbers, times and state. Their times to live begin at `now_ms`
    (monotonic time; None in a replay).

    Returns the monotonic deadlines by expiry, None for messages without one; empty if no message expires.
    """
    first, enqueued_ms, *_ = activated
    expiries: dict[int, int] = {}
    lives: dict[int, int | None] = {}
    for number, reference in enumerate(references, first):
        assert reference.state is SCHEDULED, "only scheduled messages become active"
        if reference.expires_at_ms is not None:
            expires_ms = reference.expires_at_ms + enqueued_ms - reference.enqueued_at_ms
            reference.expires_at_ms = expires_ms = expiries.setdefault(expires_ms, expires_ms)
            if now_ms is not None:
                reference.lives_until_ms = expires_ms - enqueued_ms + now_ms
                lives[expires_ms] = reference.lives_until_ms
        reference.sequence_number, reference.enqueued_at_ms, reference.state = number, enqueued_ms, ACTIVE
    if lives:
        lives[0] = None
    return lives
