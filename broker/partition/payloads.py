"""Limits the message bodies kept in memory: one budget for the broker, with a share for each partition. Pure.

A body in memory need not be read from the log when its message is delivered. Within a partition the oldest
bodies stay, because they are delivered first; a full budget accepts no new ones. Between partitions the least
recently read one gives up its bodies: a partition that receivers read takes over space from one that was last
read at least COLD_MS earlier, or never. Partitions that nobody reads take nothing from each other, so a
backlog that only grows costs no more than one that fits. Each partition may always hold a small *reserve*, so
that one queue with a large backlog does not force the others to read every message back from the disk.

The budget also adds up the memory used by the state of all waiting messages, but does not limit it; quotas
and the memory mark do that. But while memory is scarce, so that no more messages are sent, it says how much
this may still grow, by properties that settlements change and by the states of sessions. The mark counts a
message that is sent to a topic once, because only the partition finds out how many subscriptions get it. So
the budget knows how far it is to the mark, and says whether there is room for the others.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable

RESERVE_BYTES = 64 * 1024
"""What each partition may always hold: some dozens of messages, enough to read ahead in a frame."""
COLD_MS = 1_000
"""A partition gives up bodies for another one that was read at least this much later."""
GROWTH_PARTS = 8
"""While memory is scarce, state may grow by this part of what it takes then …"""
GROWTH_BYTES_MIN = 16 * 1024 * 1024
"""… or by this much, if that is more."""


class PayloadBudget:
    """Counts the bytes of message bodies in memory, over all partitions. Owned by the event loop."""

    __slots__ = (
        "_holders",
        "bytes_max",
        "growth_bytes_min",
        "is_scarce",
        "partitions",
        "promised",
        "reserve_bytes",
        "room_bytes",
        "state_bytes",
        "state_bytes_max",
        "used",
    )

    def __init__(self, bytes_max: int, reserve_bytes: int = RESERVE_BYTES) -> None:
        self.bytes_max = bytes_max
        self.reserve_bytes = reserve_bytes
        self.used = 0
        self.state_bytes = 0
        """Memory used by the state of waiting messages besides their bodies, over all partitions."""
        self.partitions = 0
        """How many partitions are open."""
        self._holders: OrderedDict[PayloadShare, None] = OrderedDict()
        """Partitions that hold more than their reserve, roughly in the order in which they were last read;
        those never read come first."""
        self.is_scarce = False
        """The broker uses more memory than it should, so partitions keep no new bodies beyond their
        reserves."""
        self.growth_bytes_min = GROWTH_BYTES_MIN
        """How much state may grow at least while memory is scarce, and beyond the mark before it is."""
        self.room_bytes = sys.maxsize
        """How far the memory in use was from the mark at the last look."""
        self.promised = 0
        """Bytes that shares have taken with `take_room` and not counted as state yet."""
        self.state_bytes_max = 0
        """What changed properties and the states of sessions may make of `state_bytes` while memory is
        scarce."""

    def set_scarce(self, is_scarce: bool) -> None:
        """Memory has become scarce, or no longer is."""
        self.is_scarce = is_scarce
        self.state_bytes_max = self.state_bytes + max(self.growth_bytes_min, self.state_bytes // GROWTH_PARTS)

    def set_room(self, size: int) -> None:
        """The memory in use is this far from the mark."""
        self.room_bytes = size

    def has_room(self, size: int) -> bool:
        """Whether there is memory for `size` more bytes of state, apart from one reference for each new
        message.

        Before memory is scarce, they may exceed the mark by a little: no message waits for ever that needs
        more than what happens to be left."""
        size += self.promised
        if self.is_scarce:
            return self.state_bytes + size <= self.state_bytes_max
        return size <= self.room_bytes + self.growth_bytes_min

    def share(self, evict: Callable[[], None] | None = None) -> PayloadShare:
        """Open a share for another partition. Calling `evict` makes the partition release a bounded number of
        bodies; None if it cannot."""
        return PayloadShare(self, evict)

    def make_room(self, reader: PayloadShare) -> None:
        """Make the least recently read partition release bodies, if it was read at least COLD_MS before
        `reader`."""
        coldest = next(iter(self._holders), None)
        if coldest is None or reader.read_ms is None:
            return
        if coldest.read_ms is None or reader.read_ms - coldest.read_ms >= COLD_MS:
            coldest.evict()

    def sort_in(self, share: PayloadShare) -> None:
        """Update the place of a share that has grown, shrunk or been read."""
        if share.used <= self.reserve_bytes:
            self._holders.pop(share, None)
        else:
            self._holders[share] = None
            self._holders.move_to_end(share, last=share.read_ms is not None)


class PayloadShare:
    """One partition's share of the budget."""

    __slots__ = ("_budget", "_evict", "_is_open", "_promised", "_state_bytes", "read_ms", "used")

    def __init__(self, budget: PayloadBudget, evict: Callable[[], None] | None) -> None:
        self._budget = budget
        self._evict = evict
        self.used = 0
        self.read_ms: int | None = None
        """When messages were last delivered, in monotonic time; None if none were."""
        self._is_open = False
        self._state_bytes = 0
        self._promised = 0
        """What this partition has taken of the room up to the mark, until it counts its state again."""

    @property
    def is_scarce(self) -> bool:
        """Whether the broker uses more memory than it should."""
        return self._budget.is_scarce

    @property
    def state_bytes(self) -> int:
        """The memory used by the state of this partition's messages; 0 once the share is closed."""
        return self._state_bytes

    def take(self, size: int) -> bool:
        """Count `size` more bytes and return True if they may stay in memory; otherwise return False."""
        budget = self._budget
        used = self.used + size
        if budget.used + size > budget.bytes_max and used > budget.reserve_bytes and not budget.is_scarce:
            budget.make_room(self)
        if (budget.is_scarce or budget.used + size > budget.bytes_max) and used > budget.reserve_bytes:
            return False
        is_new_holder = self.used <= budget.reserve_bytes < used
        self.used = used
        budget.used += size
        if is_new_holder:
            budget.sort_in(self)
        return True

    def give(self, size: int) -> None:
        """Return `size` bytes that are no longer in memory."""
        budget = self._budget
        was_holder = self.used > budget.reserve_bytes
        self.used -= size
        budget.used -= size
        assert self.used >= 0, "more bytes were given back than taken"
        if was_holder and self.used <= budget.reserve_bytes:
            budget.sort_in(self)

    def read(self, now_ms: int) -> None:
        """Messages were delivered."""
        self.read_ms = now_ms
        if self.used > self._budget.reserve_bytes:
            self._budget.sort_in(self)

    def evict(self) -> None:
        """Release some bodies."""
        if self._evict is not None:
            self._evict()

    def count_state(self, size: int) -> None:
        """Set the memory used by the state of this partition's messages, in bytes."""
        budget = self._budget
        budget.state_bytes += size - self._state_bytes
        self._state_bytes = size
        if self._promised:
            budget.room_bytes -= self._promised  # until the next look, which sees what has become of them
            budget.promised -= self._promised
            self._promised = 0

    def opened_with(self, size: int) -> None:
        """Set the memory used by the state that this partition has read from its log: that is no growth."""
        self._count_open(True)
        self._budget.state_bytes_max += size - self._state_bytes
        self.count_state(size)

    def may_grow(self, size: int) -> bool:
        """Whether there is memory for `size` more bytes of state, apart from new messages."""
        return not self._budget.is_scarce or self._budget.has_room(size)

    def has_room(self, size: int) -> bool:
        """Whether the messages of a topic may get references of `size` bytes besides one each."""
        return size <= 0 or self._budget.has_room(size)

    def take_room(self, size: int) -> bool:
        """As `has_room`; if so, count them until `count_state` does."""
        if not self.has_room(size):
            return False
        self._promised += size
        self._budget.promised += size
        return True

    def close(self) -> None:
        """Release this partition's whole share."""
        self.give(self.used)
        self.opened_with(0)
        self._count_open(False)
        self._evict = None

    def _count_open(self, is_open: bool) -> None:
        self._budget.partitions += is_open - self._is_open
        self._is_open = is_open
