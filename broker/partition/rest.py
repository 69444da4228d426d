"""Decides when an open partition is at rest: nothing has changed for a while, so the index can record what it
holds.

After a crash, the next start then need not open the partition. Before the next change, the index is durably
told that the partition is open again. The first commit after a rest waits for that; all others only check a
flag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.base.clock import Clock
from broker.base.slices import Slices
from broker.partition.drain_need import Need
from broker.partition.state import Partition
from broker.partition.summary import Summary, summary_in_turns

HASTENED_REST_MS = 1_000
"""How long a partition must be unchanged to come to rest while memory is scarce. Who uses it now and then, as
a client that receives in a loop, does not open it each time."""


class Register(Protocol):
    """Where a partition enters what it holds, so that a start need not open it to find out
    (`broker/namespace/resting.py`)."""

    def summary(self) -> Summary | None:
        """What the partition held when it was closed cleanly or came to rest; None if unknown."""

    def expected_bytes(self) -> int:
        """What the messages of the closed partition are expected to take in memory, in bytes."""

    async def opening(self) -> None:
        """Void the entry: the partition is about to be opened or to change. Durable on return."""

    def closed(self, summary: Summary) -> None:
        """Enter what the partition holds: its log was closed cleanly, or everything is durable and will not
        change before `opening`."""


class Rest:
    """Enters one open partition in the index while it is at rest. Owned by the partition's task."""

    __slots__ = (
        "_changed_ms",
        "_clock",
        "_is_hastened",
        "_register",
        "_rest_ms",
        "has_changed",
        "is_entered",
    )

    def __init__(self, register: Register | None, clock: Clock, rest_ms: int | None) -> None:
        """`rest_ms`: how long the partition must be unchanged; None if commits may be acknowledged before
        they are durable."""
        self._register, self._clock = register, clock
        self._rest_ms = rest_ms if register is not None else None
        self._changed_ms = 0
        self._is_hastened = False
        self.has_changed = False
        """The partition has changed since it was opened."""
        self.is_entered = False
        """The partition is entered as at rest. Call `end` before the next change."""

    @property
    def expected_bytes(self) -> int:
        """What the messages of the closed partition are expected to take in memory, in bytes."""
        return 0 if self._register is None else self._register.expected_bytes()

    async def end(self) -> None:
        """End the rest, before the partition is opened or changed."""
        self.is_entered = False
        if self._register is not None:
            await self._register.opening()

    def opened(self, now_ms: int) -> None:
        """The partition is opened, at this monotonic time."""
        self._changed_ms, self.has_changed = now_ms, False

    def changed(self, now_ms: int) -> None:
        """The partition changed, at this monotonic time."""
        self._changed_ms, self.has_changed = now_ms, True

    def hasten(self) -> None:
        """Let the partition come to rest next after HASTENED_REST_MS, if that is sooner."""
        self._is_hastened = True

    @property
    def due_ms(self) -> int | None:
        """When to call `look` if nothing changes until then, in monotonic time."""
        if self._rest_ms is None or self.is_entered:
            return None
        rest_ms = min(self._rest_ms, HASTENED_REST_MS) if self._is_hastened else self._rest_ms
        return self._changed_ms + rest_ms

    async def look(
        self, partition: Partition, slices: Slices, need: Callable[[], Need | None] = lambda: None
    ) -> None:
        """Enter the partition if it has been unchanged for long enough, with the room that it needs. Call
        this between two cycles, and begin none before it returns."""
        due_ms = self.due_ms
        if due_ms is not None and self._clock.monotonic_ms() >= due_ms and not partition.has_more:
            summary = await summary_in_turns(partition, self._clock, slices, need=need())
            self.is_entered, self._is_hastened = True, False
            self.closed(summary)

    def closed(self, summary: Summary) -> None:
        """Enter what the partition holds."""
        if self._register is not None:
            self._register.closed(summary)
