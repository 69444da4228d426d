"""What a partition reports of its work for the metrics."""

from __future__ import annotations

import asyncio
from typing import Protocol

from broker.partition.cycle import Cycle


class PartitionMeter(Protocol):
    """Receives figures about a partition's work for the metrics, once per cycle."""

    def committed(self, records: int, size: int, seconds: float) -> None:
        """A commit became durable, with this many records and bytes, after this time."""

    def commit_failed(self) -> None:
        """A write or sync failed, and the partition went down."""

    def restarted(self) -> None:
        """The partition came back after a failure."""

    def lapsed(self, dead_lettered: int, expired_messages: int, expired_locks: int) -> None:
        """How many messages were dead-lettered (for whatever reason) or expired, and how many locks ran
        out."""


def count_cycle(meter: PartitionMeter | None, cycle: Cycle, began_s: float) -> None:
    """Count a cycle that has become durable. Its commit began then, by the event loop's clock."""
    if meter is None:
        return
    records = len(cycle.marks) + len(cycle.sent_with) + cycle.has_sent
    meter.committed(records, cycle.commit.bytes, asyncio.get_running_loop().time() - began_s)
    if cycle.dead_lettered or cycle.expired_messages or cycle.expired_locks:
        meter.lapsed(cycle.dead_lettered, cycle.expired_messages, cycle.expired_locks)
