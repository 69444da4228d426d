"""One entity's counters, and what its partitions report. The hot path adds to plain numbers, once per
cycle."""

from __future__ import annotations

from broker.base.counters import EntityCounters
from broker.base.errors import Reason
from broker.base.metrics import Metrics

_OUR_FAULT = frozenset(
    {
        Reason.INTERNAL,
        Reason.DISK_FULL,
        Reason.PARTITION_UNAVAILABLE,
        Reason.LOCK_ENDED,
        Reason.SESSION_LOCK_ENDED,
    }
)


class EntityMeter(EntityCounters):
    """The counters of one entity, exported while the entity exists."""

    __slots__ = ("_key", "_metrics")

    def __init__(self, metrics: Metrics, entity: str, namespace: str = "") -> None:
        super().__init__(entity, namespace)
        self._metrics = metrics
        self._key = f"{namespace}\n{entity}" if namespace else entity
        metrics.entities[self._key] = self

    def end(self) -> None:
        """Stop exporting the entity's series. Links that still hold this meter may keep counting; nothing
        reads it."""
        if self._metrics.entities.get(self._key) is self:
            del self._metrics.entities[self._key]

    def refused(self, reason: Reason, count: int) -> None:
        """Count operations that were refused."""
        if reason is Reason.THROTTLED:
            self.throttled_requests += count
        elif reason in _OUR_FAULT:
            self.server_errors += count
        else:
            self.user_errors += count

    def add(self, counter: str, count: int) -> None:
        """Add to a counter by its name (`broker.base.counters.COUNTERS`)."""
        setattr(self, counter, getattr(self, counter) + count)

    # --- what a partition reports (`partition.meter.PartitionMeter`) ----------------------------------------

    def committed(self, records: int, size: int, seconds: float) -> None:
        self._metrics.committed(records, size, seconds)

    def commit_failed(self) -> None:
        self._metrics.commit_failures.inc()

    def restarted(self) -> None:
        self._metrics.partition_restarts.inc()

    def lapsed(self, dead_lettered: int, expired_messages: int, expired_locks: int) -> None:
        self.dead_lettered_messages += dead_lettered
        self.expired_messages += expired_messages
        self.expired_locks += expired_locks
