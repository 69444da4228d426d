"""How far wall time was ahead of monotonic time when a partition's messages were enqueued. Pure.

Stored expiries are in wall time. A recovery reads them back in the process that stored them, whose monotonic
time has continued. So it can restore the original deadline: the expiry minus the clock setting at which the
message was enqueued. Using the setting at the time of the recovery would move the deadline by every step of
the wall clock in between. Only a restart of the process must accept that, because monotonic times of two
processes cannot be compared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

TOLERANCE_MS = 1_000
"""Settings that differ by less than this count as one, so a recovery may move a deadline by this much. While
enqueued times catch up after the clock was set back, each cycle has its own setting."""
SETTINGS_MAX = 4_096
"""Beyond this, the older half is dropped. This many settings take 64 KiB per partition. Clock steps are rare;
this covers an hour of catching up."""


class ClockSettings:
    """Clock settings by sequence number, for one partition. Owned by its task, which keeps them across
    recoveries."""

    __slots__ = ("_ahead_ms", "_numbers")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        """The first sequence number of each setting, ascending."""
        self._ahead_ms: list[int] = []
        """For each setting, how far wall time was ahead of monotonic time."""

    def add(self, first: int, ahead_ms: int) -> None:
        """Add the setting for messages from sequence number `first` on. Sequence numbers repeat after a
        failed commit."""
        numbers, settings = self._numbers, self._ahead_ms
        while numbers and numbers[-1] >= first:
            numbers.pop()
            settings.pop()
        if settings and abs(settings[-1] - ahead_ms) < TOLERANCE_MS:
            return
        if len(numbers) == SETTINGS_MAX:
            del numbers[: SETTINGS_MAX // 2], settings[: SETTINGS_MAX // 2]
        numbers.append(first)
        settings.append(ahead_ms)

    def read_back(self, ahead_ms: int) -> None:
        """The log was read. Messages enqueued by an earlier process use the setting at the first such
        call."""
        if not self._numbers:
            self.add(0, ahead_ms)

    def spans(self, numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Give each setting with the range of places, from and to, in ascending `numbers` that were enqueued
        under it."""
        assert self._numbers, "the log was read"
        begin = 0
        for index in range(len(self._numbers)):
            last = index + 1 == len(self._numbers)
            end = len(numbers) if last else bisect_left(numbers, self._numbers[index + 1], begin)
            if end > begin:
                yield self._ahead_ms[index], begin, end
            begin = end
