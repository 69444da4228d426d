"""How many message bodies may stay in memory: one budget for the broker, a share for each partition. Pure.

The budget also adds up what the state of all waiting messages takes. It does not bound that: quotas and the memory mark do.

A body that is in memory need not be read from the log when its message is handed out. The oldest are kept, for they go out
first; when the budget is full nothing is added. Each partition may always hold a small *reserve*, so that a queue with a
large backlog does not make the others read every message back from the disk.
"""

from __future__ import annotations

RESERVE_BYTES = 64 * 1024
"""What one partition may hold whatever the others do: some dozens of messages, enough to read ahead in a frame."""


class PayloadBudget:
    """Bytes of message bodies in memory, over all partitions. Owned by the event loop."""

    __slots__ = ("bytes_max", "is_scarce", "reserve_bytes", "state_bytes", "used")

    def __init__(self, bytes_max: int, reserve_bytes: int = RESERVE_BYTES) -> None:
        self.bytes_max = bytes_max
        self.reserve_bytes = reserve_bytes
        self.used = 0
        self.state_bytes = 0
        """What the state of waiting messages takes beside their bodies, over all partitions."""
        self.is_scarce = False
        """The broker uses more memory than it should: no body stays in memory beyond the reserves."""

    def set_scarce(self, is_scarce: bool) -> None:
        """Memory is scarce from now on, or is not any more."""
        self.is_scarce = is_scarce

    def share(self) -> PayloadShare:
        """The account of one more partition."""
        return PayloadShare(self)


class PayloadShare:
    """What one partition holds of the budget."""

    __slots__ = ("_budget", "_state_bytes", "used")

    def __init__(self, budget: PayloadBudget) -> None:
        self._budget = budget
        self.used = 0
        self._state_bytes = 0

    @property
    def is_scarce(self) -> bool:
        """The broker uses more memory than it should."""
        return self._budget.is_scarce

    def take(self, size: int) -> bool:
        """Whether `size` more bytes may stay in memory; if so they are counted."""
        budget = self._budget
        if (budget.is_scarce or budget.used + size > budget.bytes_max) and self.used + size > budget.reserve_bytes:
            return False
        self.used += size
        budget.used += size
        return True

    def give(self, size: int) -> None:
        """`size` bytes have left the memory."""
        self.used -= size
        self._budget.used -= size
        assert self.used >= 0, "more bytes were given back than taken"

    def count_state(self, size: int) -> None:
        """The state of this partition's messages takes `size` bytes now."""
        self._budget.state_bytes += size - self._state_bytes
        self._state_bytes = size

    def close(self) -> None:
        """Release this partition's whole share."""
        self.give(self.used)
        self.count_state(0)
