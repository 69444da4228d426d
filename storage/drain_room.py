"""The room on a disk that is kept for draining: what the logs on it still have to write before their space
comes free (durability rule 6). Pure.

What a log holds cannot be taken out without writing: each removal is recorded, both checkpoints must be there
before the log can be trimmed, and compaction writes a segment's live messages again before it frees the
segment. So a disk that takes messages up to its last byte can never be emptied. Each log's owner says what
that is for its log, the *need*, and messages are refused while the disk has no more room than all needs
together. Whatever was accepted can then be drained, by receivers alone.

A need has two parts. The *lasting* one is taken up in the course of draining, in all logs at the same time.
The *passing* one is only needed while room is being made, which one log at a time does (`Log.making_room`),
so only the largest counts.

The reserves (`full_disk.py`) come on top. They are for what no need foresees, such as the blocks of the file
system, and other programs on the disk.

The free space is measured whenever a segment begins, and whenever upkeep has written or removed a file. What
commits write is deducted from the moment on at which they begin, as long as it is not sure that a measurement
has seen it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from heapq import heapify, heappop, heappush
from itertools import count

UNKNOWN_BYTES = 1 << 62
"""The free space before it was measured: more than any disk has."""
SHORT_BYTES = 32 << 20
"""With less than this and a share of the needs left, needs are told with every commit, and no zeros are
written ahead of commits."""
NEEDS_PER_SHORT = 4
"""The share: all needs divided by this."""
LASTING_PER_UNFORESEEN = 2
"""Room is scarce when what no need foresees takes more than all lasting needs divided by this."""
OUTDATED_PER_NEED = 3
"""The heap of needs is made anew when it has more than this many entries for each log."""

_NONE = 0, 0
"""The needs of a log that has none."""


class DrainRoom:
    """The room of one disk. Lives in the event loop, apart from `measure`. All sizes are in bytes."""

    __slots__ = (
        "_begun",
        "_ended",
        "_free",
        "_largest",
        "_lasting",
        "_measured",
        "_needs",
        "_numbers",
        "_passing",
        "_taken",
        "is_short",
        "left",
    )

    def __init__(self) -> None:
        self._free = UNKNOWN_BYTES
        self._begun = self._ended = 0
        """How many bytes were written by all commits that have begun, and by those that have ended."""
        self._taken: dict[Hashable, int] = {}
        """The size of each commit under way."""
        self._measured: tuple[int, int] | None = None
        """The free space as a thread has found it, and `_ended` before; None once that is considered."""
        self._needs: dict[Hashable, tuple[int, int]] = {}
        """The lasting and the passing need of each log."""
        self._largest: list[tuple[int, int, Hashable]] = []
        """A heap of the passing needs, with the largest first: each negated, a number, and its log. Includes
        some that are out of date."""
        self._numbers = count()
        self._lasting = self._passing = 0
        """The sum of the lasting needs, and the largest of the passing ones."""
        self.left = UNKNOWN_BYTES
        """What the disk has room for besides all needs; negative if it has no room for these."""
        self.is_short = False
        """Whether so little is left that needs must be told with every commit of messages."""

    def measure(self, free: Callable[[], int]) -> int:
        """Measure the free space with this function, and return it; raises what it raises. May be called from
        any thread."""
        ended = self._ended
        found = free()
        self._measured = found, ended
        return found

    def keep(self, log: Hashable, lasting: int, passing: int) -> None:
        """Set the need of a log."""
        self.keep_all([(log, (lasting, passing))])

    def keep_all(self, needs: Iterable[tuple[Hashable, tuple[int, int]]]) -> None:
        """Set the needs of several logs, the lasting and the passing one of each. A start may set 160,000."""
        known, largest, numbers, lasting = self._needs, self._largest, self._numbers, self._lasting
        for log, need in needs:
            before = known.get(log, _NONE)
            known[log] = need
            lasting += need[0] - before[0]
            if need[1] != before[1]:
                heappush(largest, (-need[1], next(numbers), log))
        self._lasting = lasting
        self._drop_outdated()
        self.weigh()

    def _drop_outdated(self) -> None:
        """Find the largest passing need, after some have changed."""
        needs, largest = self._needs, self._largest
        while largest and needs.get(largest[0][2], _NONE)[1] != -largest[0][0]:
            heappop(largest)
        if len(largest) > OUTDATED_PER_NEED * len(needs):
            largest[:] = [(-each, next(self._numbers), of) for of, (_, each) in needs.items()]
            heapify(largest)
        self._passing = -largest[0][0] if largest else 0

    def forget(self, log: Hashable) -> None:
        """A log is gone."""
        if log in self._needs:
            self.keep(log, 0, 0)
            del self._needs[log]

    def fits(
        self, log: Hashable, size: int, need: Callable[[], tuple[int, int] | None], *, urgent: bool
    ) -> bool:
        """Whether there is room for a commit of this size besides all needs, with what its log needs then.
        Does not set that if the commit is not urgent, so that it is not written."""
        if self.is_short and (now := need()) is not None:
            before = self._needs.get(log, _NONE)
            self.keep(log, *now)
            if size > self.left and not urgent:
                self.keep(log, *before)
                return False
        return size <= self.left

    def take(self, log: Hashable, size: int) -> None:
        """The log begins to write a commit of this size."""
        self._taken[log] = size
        self._begun += size
        self._free -= size
        self.left -= size
        if self._measured is not None or self.left < SHORT_BYTES:
            self.weigh()

    def give_back(self, log: Hashable) -> None:
        """The log's commit will not be written after all, if `take` was called for one."""
        size = self._taken.pop(log, 0)
        self._begun -= size
        self._free += size
        self.left += size

    def end(self, log: Hashable) -> None:
        """The log's commit has ended, if `take` was called for one."""
        self._ended += self._taken.pop(log, 0)

    @property
    def free(self) -> int:
        """The free space as far as it is known, without what commits under way will take."""
        return self._free

    @property
    def is_scarce(self) -> bool:
        """Whether so much of the room for lasting needs is taken by what no need foresees, such as abandons,
        that garbage must be freed before more is written."""
        return self.left < -(self._lasting // LASTING_PER_UNFORESEEN)

    def weigh(self) -> None:
        """Bring everything up to date with the last measurement."""
        measured, self._measured = self._measured, None
        if measured is not None:
            free, ended = measured
            self._free = free - (self._begun - ended)
        needs = self._lasting + self._passing
        self.left = self._free - needs
        self.is_short = self.left < SHORT_BYTES + needs // NEEDS_PER_SHORT
