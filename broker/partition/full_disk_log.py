"""Writes log lines about a partition's full disk: at the first refused send, then once a minute while sends
are refused, and when a send is stored again. The same for settlements that find no room.

It writes no line for each refusal: clients can cause hundreds per second, and the lines may go to the same
disk.
"""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from broker.base.clock import Clock
from storage.errors import DiskFull

LINE_MS = 60_000


class FullDiskLog:
    """The periods in which the disk is full, as seen by one partition. One lasts from the first refused send
    until a send is stored."""

    __slots__ = (
        "_clock",
        "_next_line_ms",
        "_next_starved_ms",
        "_output",
        "_refused",
        "_refused_in_all",
        "is_begun",
    )

    def __init__(self, clock: Clock, output: FilteringBoundLogger) -> None:
        self._clock, self._output = clock, output
        self._refused = self._refused_in_all = 0
        self._next_line_ms = self._next_starved_ms = 0
        self.is_begun = False
        """Whether such a period has begun."""

    def _begin(self) -> None:
        if not self.is_begun:
            self.is_begun, self._refused = True, 0
            self._refused_in_all = 0
            self._next_line_ms = self._next_starved_ms = self._clock.monotonic_ms()

    def refuse(self, sends: int, error: DiskFull) -> None:
        """Count refused sends. Logs at most once a minute."""
        self._begin()
        self._refused += sends
        self._refused_in_all += sends
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_line_ms:
            self._next_line_ms = now_ms + LINE_MS
            advice = "Messages are refused until receivers have made room, or there is room on the disk."
            self._output.warning("disk.full", refused_sends=self._refused, error=str(error), advice=advice)
            self._refused = 0

    def refuse_all(self, error: DiskFull) -> None:
        """Not even a cycle without sends found room, and its operations were refused. Logs at most once a
        minute."""
        self._begin()
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_starved_ms:
            self._next_starved_ms = now_ms + LINE_MS
            advice = "Settlements are refused until upkeep has made room, or there is room on the disk."
            self._output.warning("disk.full_for_settlements", error=str(error), advice=advice)

    def end(self) -> None:
        """A send was stored. Logs it if others were refused before."""
        if not self.is_begun:
            return
        self.is_begun = False
        self._output.info("disk.has_room", refused_sends=self._refused_in_all)
