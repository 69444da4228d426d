"""The memory for the messages of partitions that are being opened, in all data folders of a broker.

A closed partition takes no memory, however much it holds. So after a restart, more may be stored than fits
below the memory mark, and requests that look at thousands of partitions would bring it all back. Therefore a
partition is opened only if there is room for what it holds.

Beyond that, one at a time is opened, because receivers free memory, and then a pause follows, in which memory
is measured and unused partitions are closed. While the process is so large that the system might end it, only
receivers have partitions opened.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.base.clock import elapsed_s

PAUSE_S = 1.0
"""How long after a partition for which there was no room the next such one may be opened."""
UNKNOWN = 1 << 62
"""The room before memory was measured: more than any machine has."""


class OpeningRoom:
    """Owned by the event loop. All sizes are in bytes."""

    __slots__ = ("_exceeding", "_is_crowded", "_may_exceed_s", "_room", "_seconds", "_under_way")

    def __init__(self, seconds: Callable[[], float] = elapsed_s) -> None:
        """`seconds` is the clock."""
        self._seconds = seconds
        self._room = UNKNOWN
        self._under_way = 0
        """What the partitions that are being opened will take, in all."""
        self._exceeding: object = None
        """The partition that is being opened although there is no room for it."""
        self._may_exceed_s = float("-inf")
        """When the next one may be."""
        self._is_crowded = False

    def measured(self, to_mark: int, *, is_crowded: bool) -> None:
        """The memory in use is so far from the mark; negative if above it. `is_crowded`: the system might end
        the process."""
        self._room, self._is_crowded = to_mark - self._under_way, is_crowded

    def take(self, partition: object, size: int, *, for_receivers: bool) -> bool:
        """Whether a partition that holds messages of this size may be opened now; if so, `give_back` must be
        called in the end."""
        if size > max(self._room, 0):
            if (self._is_crowded and not for_receivers) or self._exceeding is not None:
                return False
            if self._seconds() < self._may_exceed_s:
                return False
            self._exceeding = partition
        self._room -= size
        self._under_way += size
        return True

    def give_back(self, partition: object, size: int) -> None:
        """The partition is open, and what it holds is measured from now on, or it could not be opened."""
        self._under_way -= size
        if self._exceeding is partition:
            self._exceeding, self._may_exceed_s = None, self._seconds() + PAUSE_S
