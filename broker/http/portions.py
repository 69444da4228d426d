"""What clients send to the HTTP port, parsed in portions, so that no client's bytes hold up everybody else.

A chunk or a WebSocket frame of a single byte costs as much to parse as a large one, and one read brings 256
KiB of them. Connections take turns: between two looks at the sockets, portions of PORTION_BYTES are parsed
for TURN_S at most. Used in the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from broker.base.clock import worked_s

PORTION_BYTES = 1024
"""Parsing so much takes 1 ms at most, in chunks or frames of one byte."""
TURN_S = 0.001


class Reader(Protocol):
    """A connection, as far as it matters here."""

    def parse_portion(self) -> bool:
        """Parse the next bytes; True if more of them wait. Does not raise."""


class Portions:
    """Whose bytes are parsed next."""

    def __init__(self) -> None:
        self._waiting: deque[Reader] = deque()
        self._is_due = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and nothing was parsed since the sockets were last looked at."""
        return not self._is_due

    def add(self, reader: Reader) -> None:
        """Let a connection take part until it has nothing more to parse."""
        self._waiting.append(reader)
        self.end_turn()

    def end_turn(self) -> None:
        """Somebody's bytes were parsed: those of all others wait for the next turn."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        ends, waiting = worked_s() + TURN_S, self._waiting
        while waiting:
            reader = waiting.popleft()
            if reader.parse_portion():
                waiting.append(reader)
            if worked_s() >= ends:
                break
        if waiting:
            self.end_turn()
