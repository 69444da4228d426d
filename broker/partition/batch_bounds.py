"""What one batch of a partition may do at most, so that no other client of the broker waits long for the
event loop."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(slots=True, frozen=True)
class Bounds:
    """What one batch may do at most; what is left is done in the next one (`has_more`)."""

    work_max: int = 4096
    """Messages that operations send, settle or look at: the operation that reaches it is the batch's last."""
    settled_max: int = 2048
    """Messages that one operation settles, or whose locks it renews; with more, it takes several batches."""
    granted_bytes_max: int = 4 * MIB
    """Messages handed out, from each subqueue; also of one answer to `ReceiveDeferred`, with their changed
    properties."""
    granted_max: int = 4096
    """The same in number, with those that were looked at in vain."""
    ended_locks_max: int = 2048
    """Locks that run out; the lease that reaches it is the last one."""
    looks_max: int = 4096
    """Messages that one `Peek` or `Watch` looks at in vain before it goes on in the next batch."""
    peeked_bytes_max: int = MIB
    """Messages shown in one answer; at least one is."""
    deleted_max: int = 4096
    """Messages that one `Delete` looks at: about a millisecond."""
    expired_max: int = 4096
    """Messages whose time to live is enforced."""
    told_max: int = 64
    """Clients told of arrivals in one batch: what each of them does then takes the event loop's time."""
    tick_ms: int = 20
    """How exactly timers fire. That an expired lock or message is of no use any more does not depend on
    it."""
