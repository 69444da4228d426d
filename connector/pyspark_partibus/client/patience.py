"""How long to wait for the broker: within one request, and over several attempts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from pyspark_partibus.errors import Unavailable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
Result = TypeVar("Result")
_log = logging.getLogger("pyspark_partibus")


@dataclass(frozen=True, slots=True)
class Patience:
    """request_s: the longest wait for one answer. retry_s: for how long something is tried again after it
    first failed; 0 means once."""

    request_s: float
    retry_s: float


def pauses() -> Iterator[float]:
    """Ever longer pauses between attempts."""
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_S)


class Attempts:
    """The failures of one undertaking in a row. Progress starts the count anew."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self.progressed()

    def progressed(self) -> None:
        """Something succeeded."""
        self._pauses = pauses()
        self._gives_up: float | None = None

    def failed(self, error: Unavailable) -> None:
        """Wait before the next attempt. Raises the error when patience is at its end."""
        now = time.monotonic()
        if self._gives_up is None:
            self._gives_up = now + self._patience.retry_s
        pause = next(self._pauses)
        if now + pause > self._gives_up:
            raise error
        _log.info("trying again in %.1f s: %s", pause, error)
        time.sleep(pause)


def patiently(action: Callable[[], Result], patience: Patience) -> Result:
    """Do something that can be repeated without harm, again and again while the broker is not available."""
    attempts = Attempts(patience)
    while True:
        try:
            return action()
        except Unavailable as error:
            attempts.failed(error)
