"""Limits on the work of one cycle, so that no client waits long for the event loop."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(slots=True, frozen=True)
class Bounds:
    """Limits for one cycle. Work left over is done in the next cycle (`has_more`)."""

    work_max: int = 2048
    """Messages that operations send, settle or look at. The operation that reaches the limit is the cycle's
    last."""
    matching_max: int = 1024
    """Work of matching messages with rules, and at most `work_max`: some ms. What takes longer is done in
    steps, of which only the first may be taken by several partitions in one turn of the event loop."""
    settled_max: int = 1024
    """Messages that one operation settles or renews locks for. A longer operation takes several cycles."""
    granted_bytes_max: int = 4 * MIB
    """Bytes of messages handed out from each subqueue. Also limits one answer to `LockExactly`, including
    changed properties."""
    granted_max: int = 2048
    """Messages looked at in each subqueue in order to hand them out, including those that cannot be."""
    granted_leases_max: int = 32
    """Clients that are given messages by the cycle's operations, and as many again for the sessions of each
    subqueue, and at its end. A client that is given one takes as long as another that is given some
    dozens: it has a lease of its own here, and an answer that goes out on a link of its own."""
    recalls_max: int = 256
    """Clients that messages are recalled from because others wait. Each of them answers."""
    ended_locks_max: int = 2048
    """Locks that end: they expire, a delay ends, or messages of a session come back from its holder, each of
    which counts as two (`giving_back.LOCKS_EACH`). The lease that reaches the limit is the last one to end in
    the cycle, and ends in part if it is of a session."""
    ended_leases_max: int = 256
    """Leases, and locks of sessions, that end. Many leases of one message each take much longer than one
    lease of as many messages."""
    looks_max: int = 4096
    """Messages that one `Peek` or `Watch` passes over, and sessions that one `ListSessions` looks at, before
    it continues in the next cycle."""
    peeked_bytes_max: int = MIB
    """Bytes of messages shown in one answer, which always shows at least one."""
    deleted_max: int = 4096
    """Messages that one `Delete` looks at, which takes about a millisecond."""
    expired_max: int = 4096
    """Messages whose time to live is enforced."""
    activated_max: int = 1024
    """Scheduled messages that become active."""
    message_ids_max: int = 5_000_000
    """Message-ids that the partition remembers to detect duplicates."""
    told_max: int = 64
    """Clients told of arrivals in one cycle. Each of them then does work in the event loop."""
    tick_ms: int = 20
    """Resolution of the timers. Locks and messages expire exactly on time regardless."""
