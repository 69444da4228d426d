"""Log lines about single clients, limited in number per second.

A client without credentials can be refused thousands of times a second. Logging each refusal would fill the
disk that holds the messages and slow down everyone else. For each event, the first LINES_MAX lines of a
second are written. The next line written after that gives the number of lines left out (`left_out`); if none
follows within a second or two, a separate line gives the number. Text from clients may be long, so no text in
a line is longer than TEXT_MAX.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

LINES_MAX = 10
"""Lines per event and second, over all clients."""
TEXT_MAX = 200
"""Characters of one text in a line."""
SECOND = 1.0


class SparingLog:
    """Counts the lines of each event. One per broker; used in the event loop. `elapsed_s` is a clock in
    seconds that is never set."""

    def __init__(self, elapsed_s: Callable[[], float], *, look_s: float = SECOND) -> None:
        """`look_s` is how often to check whether a flood has ended."""
        self._elapsed_s, self._look_s = elapsed_s, look_s
        self._events: dict[str, _Second] = {}

    def info(self, log: FilteringBoundLogger, event: str, **values: object) -> None:
        """Write a line to `log`, or count it as left out. Event names are fixed, so there are only a few."""
        now = self._elapsed_s()
        second = self._events.get(event)
        if second is None:
            second = self._events[event] = _Second(now)
        elif now >= second.began + SECOND:
            second.began, second.lines = now, 0
        if second.lines >= LINES_MAX:
            if not second.left_out:
                self._tell_later(log, event)
            second.left_out += 1
            return
        second.lines += 1
        if second.left_out:
            values["left_out"], second.left_out = second.left_out, 0
        log.info(event, **{name: _short(value) for name, value in values.items()})

    def _tell_later(self, log: FilteringBoundLogger, event: str) -> None:
        asyncio.get_running_loop().call_later(self._look_s, self._tell, log, event)

    def _tell(self, log: FilteringBoundLogger, event: str) -> None:
        """Once no more lines come, write how many were left out."""
        second = self._events[event]
        if second.left_out and self._elapsed_s() < second.began + SECOND:
            self._tell_later(log, event)
        elif second.left_out:
            left_out, second.left_out = second.left_out, 0
            log.info(event, left_out=left_out)


def _short(value: object) -> object:
    if not isinstance(value, str) or len(value) <= TEXT_MAX:
        return value
    return f"{value[:TEXT_MAX]}… ({len(value)} characters)"


class _Second:
    """The lines of one event since `began`."""

    __slots__ = ("began", "left_out", "lines")

    def __init__(self, began: float) -> None:
        self.began, self.lines, self.left_out = began, 0, 0
