"""How many message bodies may stay in memory: one budget for the broker, a share for each partition. Pure.

A body that is in memory need not be read from the log when its message is handed out. The oldest are kept, for they go out
first; when the budget is full nothing is added. Each partition may always hold a small *reserve*, so that a queue with a
large backlog does not make the others read every message back from the disk.
"""

from __future__ import annotations

RESERVE_BYTES = 64 * 1024
"""What one partition may hold whatever the others do: some dozens of messages, enough to read ahead in a frame."""


class PayloadBudget:
    """Bytes of message bodies in memory, over all partitions. Owned by the event loop."""

    __slots__ = ("bytes_max", "reserve_bytes", "used")

    def __init__(self, bytes_max: int, reserve_bytes: int = RESERVE_BYTES) -> None:
        self.bytes_max = bytes_max
        self.reserve_bytes = reserve_bytes
        self.used = 0

    def share(self) -> PayloadShare:
        """The account of one more partition."""
        return PayloadShare(self)


class PayloadShare:
    """What one partition holds of the budget."""

    __slots__ = ("_budget", "used")

    def __init__(self, budget: PayloadBudget) -> None:
        self._budget = budget
        self.used = 0

    def take(self, size: int) -> bool:
        """Whether `size` more bytes may stay in memory; if so they are counted."""
        budget = self._budget
        if budget.used + size > budget.bytes_max and self.used + size > budget.reserve_bytes:
            return False
        self.used += size
        budget.used += size
        return True

    def give(self, size: int) -> None:
        """`size` bytes have left the memory."""
        self.used -= size
        self._budget.used -= size
        assert self.used >= 0, "more bytes were given back than taken"

    def close(self) -> None:
        """Everything has."""
        self.give(self.used)
