"""How many message bodies may stay in memory: one budget for the broker, a share for each partition. Pure.

A body that is in memory need not be read from the log when its message is handed out. Within a partition the
oldest bodies are kept, for they go out first, and nothing is added to a full budget. Between partitions, the
least recently used bodies make room: a partition that receivers read takes the room of one that was read
COLD_MS earlier, or never. Partitions that nobody reads take nothing from each other, so a backlog that only
grows costs no more than one that fits. Each partition may always hold a small *reserve*, so that a queue with
a large backlog does not make the others read every message back from the disk.

The budget also adds up what the state of all waiting messages takes. It does not bound that: quotas and the
memory mark do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

RESERVE_BYTES = 64 * 1024
"""What one partition may hold whatever the others do: some dozens of messages, enough to read ahead in a
frame."""
COLD_MS = 1_000
"""A partition was read so much longer ago than another one that it makes room for it."""


class PayloadBudget:
    """Bytes of message bodies in memory, over all partitions. Owned by the event loop."""

    __slots__ = ("_holders", "bytes_max", "is_scarce", "reserve_bytes", "state_bytes", "used")

    def __init__(self, bytes_max: int, reserve_bytes: int = RESERVE_BYTES) -> None:
        self.bytes_max = bytes_max
        self.reserve_bytes = reserve_bytes
        self.used = 0
        self.state_bytes = 0
        """What the state of waiting messages takes beside their bodies, over all partitions."""
        self._holders: OrderedDict[PayloadShare, None] = OrderedDict()
        """Partitions that hold more than their reserve. About in the order in which they were read: those
        that were not come first."""
        self.is_scarce = False
        """The broker uses more memory than it should: no body stays in memory beyond the reserves."""

    def set_scarce(self, is_scarce: bool) -> None:
        """Memory is scarce from now on, or is not any more."""
        self.is_scarce = is_scarce

    def share(self, evict: Callable[[], None] | None = None) -> PayloadShare:
        """The account of one more partition. `evict` has it give bodies back, a bounded number at a time;
        None if it cannot."""
        return PayloadShare(self, evict)

    def make_room(self, reader: PayloadShare) -> None:
        """Have the partition that was not read for longest give bodies back, if it was not read for long
        enough."""
        coldest = next(iter(self._holders), None)
        if coldest is None or reader.read_ms is None:
            return
        if coldest.read_ms is None or reader.read_ms - coldest.read_ms >= COLD_MS:
            coldest.evict()

    def sort_in(self, share: PayloadShare) -> None:
        """The share has grown or become smaller, or was read."""
        if share.used <= self.reserve_bytes:
            self._holders.pop(share, None)
        else:
            self._holders[share] = None
            self._holders.move_to_end(share, last=share.read_ms is not None)


class PayloadShare:
    """What one partition holds of the budget."""

    __slots__ = ("_budget", "_evict", "_state_bytes", "read_ms", "used")

    def __init__(self, budget: PayloadBudget, evict: Callable[[], None] | None) -> None:
        self._budget = budget
        self._evict = evict
        self.used = 0
        self.read_ms: int | None = None
        """When messages were handed out last, in monotonic time; None if none were."""
        self._state_bytes = 0

    @property
    def is_scarce(self) -> bool:
        """The broker uses more memory than it should."""
        return self._budget.is_scarce

    def take(self, size: int) -> bool:
        """Whether `size` more bytes may stay in memory; if so they are counted."""
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
        """`size` bytes have left the memory."""
        budget = self._budget
        was_holder = self.used > budget.reserve_bytes
        self.used -= size
        budget.used -= size
        assert self.used >= 0, "more bytes were given back than taken"
        if was_holder and self.used <= budget.reserve_bytes:
            budget.sort_in(self)

    def read(self, now_ms: int) -> None:
        """Messages were handed out."""
        self.read_ms = now_ms
        if self.used > self._budget.reserve_bytes:
            self._budget.sort_in(self)

    def evict(self) -> None:
        """Give some bodies back."""
        if self._evict is not None:
            self._evict()

    def count_state(self, size: int) -> None:
        """The state of this partition's messages takes `size` bytes now."""
        self._budget.state_bytes += size - self._state_bytes
        self._state_bytes = size

    def close(self) -> None:
        """Release this partition's whole share."""
        self.give(self.used)
        self.count_state(0)
        self._evict = None
