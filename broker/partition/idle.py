"""When an open partition counts as at rest: nothing has changed in it for a while, so what it holds can be
entered in the index.

A crash then leaves it known, and the next start need not open it. Before the next change it is entered as
open again, durably. The first commit after a rest waits for that; all others cost one look at a flag.
"""

from __future__ import annotations

from typing import Protocol

from broker.base.clock import Clock
from broker.partition.state import Partition
from broker.partition.summary import Summary, summary_of


class Register(Protocol):
    """Where a partition is entered, so that a start need not open it to know what it holds
    (`broker/namespace/closed_partitions.py`)."""

    def summary(self) -> Summary | None:
        """What it held when it was closed in good order, or came to rest; None if that is not known."""

    async def opening(self) -> None:
        """It is about to be opened, or to change: what is entered does not count any more. Durable when it
        returns."""

    def closed(self, summary: Summary) -> None:
        """Its log was closed in good order, or all of it is durable and will not change before `opening`."""


class Rest:
    """Enters one open partition. Owned by its task."""

    __slots__ = ("_changed_ms", "_clock", "_register", "_rest_ms", "is_entered")

    def __init__(self, register: Register | None, clock: Clock, rest_ms: int | None) -> None:
        """`rest_ms`: how long nothing must have changed; None where a commit may be acknowledged before it is
        durable."""
        self._register, self._clock = register, clock
        self._rest_ms = rest_ms if register is not None else None
        self._changed_ms = 0
        self.is_entered = False
        """It counts as at rest: `end` comes before the next change."""

    async def end(self) -> None:
        """The partition is about to be opened, or to change."""
        self.is_entered = False
        if self._register is not None:
            await self._register.opening()

    def changed(self, now_ms: int) -> None:
        """It has changed, at a monotonic time."""
        self._changed_ms = now_ms

    @property
    def due_ms(self) -> int | None:
        """When `look` wants to be called if nothing changes until then, in monotonic time."""
        return None if self._rest_ms is None or self.is_entered else self._changed_ms + self._rest_ms

    def look(self, partition: Partition) -> None:
        """Between two batches: enter the partition if it has been quiet for long enough."""
        due_ms = self.due_ms
        if due_ms is not None and self._clock.monotonic_ms() >= due_ms and not partition.has_more:
            self.is_entered = True
            self.closed(summary_of(partition, self._clock))

    def closed(self, summary: Summary) -> None:
        """Enter what it holds."""
        if self._register is not None:
            self._register.closed(summary)
