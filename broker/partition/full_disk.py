"""A partition's full disk: its log lines, and when the partition tries again what it does by itself.

*Lines* are written when the first send is refused, then once a minute while sends are refused, and when a
send is stored again. The same for settlements that find no room. There is no line for each refusal: clients
can cause hundreds per second, and the lines may go to the same disk. They can also store a small message
after each large one that is refused, so it is said once a minute at most that sends are stored again.

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
    until a send is stored, and at least until a minute after the end of the one before."""

    __slots__ = (
        "_clock",
        "_next_line_ms",
        "_next_room_ms",
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
        """How many sends were refused since the last `disk.full`, and in this period."""
        self._next_line_ms = self._next_starved_ms = self._next_room_ms = 0
        """From when on `disk.full`, `disk.full_for_settlements` and `disk.has_room` may be logged again."""
        self._pause_ms, self._retry_at_ms = PAUSE_MS, 0
        self.goes_on = False
        """Whether a cycle that needed no room has left some of its work to the next one."""
        self.is_begun = False
        """Whether a period is going on. Short cycles are left to the task meanwhile."""

    def _begin(self) -> None:
        if not self.is_begun:
            self.is_begun, self._refused = True, 0
            self._refused_in_all = 0
            self._next_line_ms = self._next_starved_ms = self._clock.monotonic_ms()

    def refuse(self, sends: int, error: DiskFull) -> None:
        """Count refused sends. Logs at most once a minute in each period."""
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
        minute in each period. What has come due waits."""
        self._begin()
        now_ms = self._clock.monotonic_ms()
        self.goes_on = False
        if now_ms >= self._retry_at_ms:  # what clients ask for meanwhile does not put it off
            self._retry_at_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MS_MAX)
        if now_ms >= self._next_starved_ms:
            self._next_starved_ms = now_ms + LINE_MS
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
        """A cycle was stored, with sends or without. Logs that sends are stored again if the period ends."""
        self._pause_ms, self._retry_at_ms = PAUSE_MS, 0
        if self.is_begun and for_sends:
            now_ms = self._clock.monotonic_ms()
            if now_ms >= self._next_room_ms:
                self._next_room_ms = now_ms + LINE_MS
                self.is_begun = False
                self._output.info("disk.has_room", refused_sends=self._refused_in_all)
