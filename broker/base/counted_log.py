"""Log lines about what happens to messages, with the number of them instead of a line for each.

Messages of one entity may be dead-lettered for the same reason for hours. The first line of a kind is written
at once. What follows is counted, and is one more line every PERIOD_S, as long as there is anything to count.
"""

from __future__ import annotations

import asyncio

from structlog.typing import FilteringBoundLogger

PERIOD_S = 10.0
"""At most one line of a kind in this time, in seconds."""

_Kind = tuple[tuple[str, object], ...]


class CountedLog:
    """Warnings of one event. Owned by the event loop."""

    def __init__(self, log: FilteringBoundLogger, event: str, *, period_s: float = PERIOD_S) -> None:
        self._log, self._event, self._period_s = log, event, period_s
        self._counted: dict[_Kind, int] = {}
        """By kind: messages since the latest line. A kind is forgotten after a period without any."""
        self._timers: dict[_Kind, asyncio.TimerHandle] = {}

    def warning(self, messages: int, **values: object) -> None:
        """Something has happened to so many messages. Values that are equal make it the same kind."""
        kind = tuple(values.items())
        if kind in self._counted:
            self._counted[kind] += messages
        else:
            self._write(kind, messages)

    def close(self) -> None:
        """Write what has been counted, because nothing more will come."""
        for timer in self._timers.values():
            timer.cancel()
        counted, self._counted = self._counted, {}
        self._timers.clear()
        for kind, messages in counted.items():
            if messages:
                self._log.warning(self._event, messages=messages, **dict(kind))

    def _write(self, kind: _Kind, messages: int) -> None:
        self._log.warning(self._event, messages=messages, **dict(kind))
        self._counted[kind] = 0
        loop = asyncio.get_running_loop()
        self._timers[kind] = loop.call_later(self._period_s, self._period_ended, kind)

    def _period_ended(self, kind: _Kind) -> None:
        messages = self._counted.pop(kind)
        del self._timers[kind]
        if messages:
            self._write(kind, messages)
