"""A partition's full disk: its log lines, and when the partition tries again what it does by itself.

*Lines* are written when sends are refused, when not even settlements find room, and when a send is stored
again. Clients can cause hundreds of refusals per second, even with a stored send after each, and the lines
may go to the same disk. So a refusal writes its line only if the last one of its kind is a minute old, and a
stored send only if it is the first one after such a line. Sends that are refused without a line are counted
in the next one.

*What has come due*, such as an expired message, is recorded with the next cycle. If not even that finds room,
the state is loaded again, and the same is due again. So the partition waits before the next attempt, and
leaves the time to upkeep, which may make room.
"""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from broker.base.clock import Clock
from storage.errors import DiskFull

LINE_MS = 60_000
PAUSE_MS = 1_000
"""Time until the second attempt to do what has come due."""
PAUSE_MS_MAX = 16_000
"""Each further pause is twice as long, up to this."""


class FullDisk:
    """The periods in which the disk is full, as seen by one partition. One lasts from the first refused send
    until a send is stored."""

    __slots__ = (
        "_clock",
        "_is_told",
        "_next_line_ms",
        "_next_starved_ms",
        "_output",
        "_pause_ms",
        "_refused",
        "_refused_in_all",
        "_retry_at_ms",
        "goes_on",
        "is_begun",
    )

    def __init__(self, clock: Clock, output: FilteringBoundLogger) -> None:
        self._clock, self._output = clock, output
        self._refused = self._refused_in_all = 0
        """How many sends were refused since the last `disk.full`, and since the last `disk.has_room`."""
        self._next_line_ms = self._next_starved_ms = 0
        """From when on `disk.full` and `disk.full_for_settlements` may be logged again."""
        self._is_told = False
        """Whether one of these two was logged since the last `disk.has_room`."""
        self._pause_ms, self._retry_at_ms = PAUSE_MS, 0
        self.goes_on = False
        """Whether a cycle that needed no room has left some of its work to the next one."""
        self.is_begun = False
        """Whether such a period has begun."""

    def refuse(self, sends: int, error: DiskFull) -> None:
        """Count refused sends. Logs at most once a minute."""
        self.is_begun = True
        self._refused += sends
        self._refused_in_all += sends
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_line_ms:
            self._next_line_ms, self._is_told = now_ms + LINE_MS, True
            advice = "Messages are refused until receivers have made room, or there is room on the disk."
            self._output.warning("disk.full", refused_sends=self._refused, error=str(error), advice=advice)
            self._refused = 0

    def refuse_all(self, error: DiskFull) -> None:
        """Not even a cycle without sends found room, and its operations were refused. Logs at most once a
        minute. What has come due waits."""
        self.is_begun = True
        now_ms = self._clock.monotonic_ms()
        self.goes_on = False
        if now_ms >= self._retry_at_ms:  # what clients ask for meanwhile does not put it off
            self._retry_at_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MS_MAX)
        if now_ms >= self._next_starved_ms:
            self._next_starved_ms, self._is_told = now_ms + LINE_MS, True
            advice = "Settlements are refused until upkeep has made room, or there is room on the disk."
            self._output.warning("disk.full_for_settlements", error=str(error), advice=advice)

    @property
    def waits(self) -> bool:
        """Whether what has come due waits before the next attempt."""
        return not self.goes_on and self._clock.monotonic_ms() < self._retry_at_ms

    def put_off(self, due_ms: int | None) -> int | None:
        """When what is due at `due_ms` (None: nothing is) is to be done, in monotonic time."""
        return due_ms if due_ms is None else max(due_ms, self._retry_at_ms)

    def found_room(self, *, for_sends: bool) -> None:
        """A cycle was stored, with sends or without. Logs that sends are stored again if a line said that the
        disk was full."""
        self._pause_ms, self._retry_at_ms = PAUSE_MS, 0
        if self.is_begun and for_sends:
            self.is_begun = False
            if self._is_told:
                self._is_told = False
                self._output.info("disk.has_room", refused_sends=self._refused_in_all)
                self._refused_in_all = 0
