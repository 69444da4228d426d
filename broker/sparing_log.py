"""Log lines about single clients, of which only so many are written in a second.

A client without credentials can be refused thousands of times a second. A line for each would fill the disk that the messages are on, and
take the time of everybody else. For each event the first LINES_MAX lines of a second are written; the next line that is written has the
number of those that were left out before it (`left_out`).
"""

from __future__ import annotations

from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

LINES_MAX = 10
"""Lines of one event in one second, over all clients."""


class SparingLog:
    """Counts the lines of each event. One per broker; used in the event loop. `elapsed_s` is a clock in seconds that nobody sets."""

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self._events: dict[str, _Second] = {}

    def info(self, log: FilteringBoundLogger, event: str, **values: object) -> None:
        """Write a line to `log`, or count it as left out. Event names are fixed, so there are a few of them only."""
        now = self._elapsed_s()
        second = self._events.get(event)
        if second is None:
            second = self._events[event] = _Second(now)
        elif now >= second.began + 1.0:
            second.began, second.lines = now, 0
        if second.lines >= LINES_MAX:
            second.left_out += 1
            return
        second.lines += 1
        if second.left_out:
            values["left_out"], second.left_out = second.left_out, 0
        log.info(event, **values)


class _Second:
    """The lines of one event since `began`."""

    __slots__ = ("began", "left_out", "lines")

    def __init__(self, began: float) -> None:
        self.began, self.lines, self.left_out = began, 0, 0
