"""How far wall time was ahead of monotonic time when the messages of a partition were enqueued. Pure.

A stored expiry is wall time. A recovery reads the expiries back within the process that stored them, and
monotonic time has gone on meanwhile, so the deadline that counted before the recovery can be computed again:
the expiry less the setting of the clock at which the message was enqueued. With the setting at the time of
the recovery, each step of the wall clock in between would move the deadline by that step. Only a restart of
the process has no other choice, because monotonic time is not comparable across it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

TOLERANCE_MS = 1_000
"""Settings that differ by less count as one; so much may a recovery move a deadline. While enqueued times
catch up with a clock that was set back, each batch has a setting of its own."""
SETTINGS_MAX = 4_096
"""With more, the older half is dropped: 64 KiB a partition. Steps are rare; this is an hour of catching
up."""


class ClockSettings:
    """Settings by sequence number, for one partition. Owned by its task, which keeps them across
    recoveries."""

    __slots__ = ("_ahead_ms", "_numbers")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        """The first sequence number of each setting, ascending."""
        self._ahead_ms: list[int] = []
        """How far wall time was ahead of monotonic time, for each setting."""

    def note(self, first: int, ahead_ms: int) -> None:
        """Messages from sequence number `first` on are enqueued with wall time so far ahead. After a failed
        commit numbers come again."""
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
        """The log was read. What an earlier process has enqueued counts from the first time on, with wall
        time so far ahead then."""
        if not self._numbers:
            self.note(0, ahead_ms)

    def spans(self, numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """For ascending sequence numbers: each setting with the places, from and to, of the numbers that were
        enqueued with it."""
        assert self._numbers, "the log was read"
        begin = 0
        for index in range(len(self._numbers)):
            last = index + 1 == len(self._numbers)
            end = len(numbers) if last else bisect_left(numbers, self._numbers[index + 1], begin)
            if end > begin:
                yield self._ahead_ms[index], begin, end
            begin = end
