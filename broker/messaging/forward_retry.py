"""When to try again what could not be forwarded: after a pause, which doubles with each failure. Pure."""

from __future__ import annotations

from broker.base.errors import Reason

RETRY_S, RETRY_S_MAX = 0.1, 10.0
"""The pause after the first failure, and the longest one."""


class Retry:
    """The pauses of a lane, or of one of its outlets. Times are those of the event loop."""

    __slots__ = ("_delay_s", "at", "reason")

    def __init__(self) -> None:
        self.at: float | None = None
        """When to try again; None if nothing waits for that."""
        self.reason: Reason | None = None
        """Why it failed the last time; None once it has succeeded."""
        self._delay_s = RETRY_S

    def failed(self, reason: Reason, now: float) -> bool:
        """Try again after a pause. Returns whether it had not failed for this reason before."""
        is_new = self.reason is not reason
        self.reason = reason
        self.later(now)
        return is_new

    def later(self, now: float) -> None:
        """Try again after a pause, unless a time is set."""
        if self.at is None:
            self.at = now + self._delay_s
            self._delay_s = min(2 * self._delay_s, RETRY_S_MAX)

    def hurry(self, now: float) -> None:
        """Try again now, if it is to be tried again."""
        if self.at is not None:
            self.at = now

    def take_due(self, now: float) -> bool:
        """Whether it is time to try again. If so, no time is set any more."""
        if self.at is None or self.at > now:
            return False
        self.at = None
        return True

    def succeeded(self) -> bool:
        """Nothing waits any more: the next pause is short. Returns whether it had failed before."""
        had_failed = self.reason is not None
        self.at, self.reason, self._delay_s = None, None, RETRY_S
        return had_failed
