"""Decides when an open partition is unused: it is at rest, and a while later it holds nothing, and no client
waits for anything in it. While memory is scarce, it may also hold what it held when it was opened, and is
closed at once."""

from __future__ import annotations

from broker.base.clock import Clock


class Unused:
    """Owned by the partition's task."""

    __slots__ = ("_after_ms", "_clock", "is_hastened", "look_at_ms")

    def __init__(self, clock: Clock, after_ms: int) -> None:
        """`after_ms`: how long the partition must be unused."""
        self._clock, self._after_ms = clock, after_ms
        self.is_hastened = False
        """Whether it can be closed as soon as it is at rest and not held."""
        self.look_at_ms: int | None = None
        """When to look next, in monotonic time; None while the partition is not at rest."""

    def hasten(self) -> None:
        """Let `look` find next that the partition can be closed as soon as it is at rest and not held."""
        self.is_hastened = True

    def look(self, *, is_at_rest: bool, is_held: bool) -> bool:
        """Whether the partition can be closed. `is_held`: it holds something, or has clients."""
        if not is_at_rest:
            self.look_at_ms = None
            return False
        now_ms = self._clock.monotonic_ms()
        is_hastened, self.is_hastened = self.is_hastened, False
        if is_hastened or (self.look_at_ms is not None and now_ms >= self.look_at_ms):
            if not is_held:
                return True
            self.look_at_ms = None
        if self.look_at_ms is None:
            self.look_at_ms = now_ms + self._after_ms
        return False
