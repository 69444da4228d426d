"""Parses what clients send to the HTTP port in portions, so that no client's bytes hold up the others.

A chunk or a WebSocket frame of one byte costs as much to parse as a large one, and a single read can bring
256 KiB of them. So connections take turns: between two polls of the sockets, portions of PORTION_BYTES are
parsed for at most TURN_S. Used in the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from broker.base.clock import worked_s

PORTION_BYTES = 1024
"""Parsing this many bytes takes at most 1 ms, even in chunks or frames of one byte."""
TURN_S = 0.001


class Reader(Protocol):
    """A connection with bytes to parse."""

    def parse_portion(self) -> bool:
        """Parse the next bytes; return True if more of them wait. Does not raise."""


class Portions:
    """The order in which connections have their bytes parsed."""

    def __init__(self) -> None:
        self._waiting: deque[Reader] = deque()
        self._is_due = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and nothing was parsed since the sockets were last polled."""
        return not self._is_due

    def add(self, reader: Reader) -> None:
        """Let a connection take turns until it has nothing more to parse."""
        self._waiting.append(reader)
        self.end_turn()

    def end_turn(self) -> None:
        """End this turn: bytes were parsed, and all other connections' bytes wait for the next turn."""
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
