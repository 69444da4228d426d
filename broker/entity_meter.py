"""One entity's counters, with their labels looked up once: the hot path adds to their hot sides, once per batch."""

from __future__ import annotations

from broker.errors import Reason
from broker.metrics import Metrics

_OUR_FAULT = frozenset({Reason.INTERNAL, Reason.DISK_FULL, Reason.PARTITION_UNAVAILABLE})


class EntityMeter:
    """The counters of one entity."""

    __slots__ = (
        "_commit_bytes",
        "_commit_records",
        "_commit_seconds",
        "_commits",
        "_entity",
        "_metrics",
        "abandoned_messages",
        "completed_messages",
        "dead_lettered_messages",
        "deferred_messages",
        "expired_locks",
        "expired_messages",
        "incoming_bytes",
        "incoming_messages",
        "outgoing_bytes",
        "outgoing_messages",
        "receive_cache_hits",
        "receive_cache_misses",
        "receive_cache_recalls",
        "receive_cache_returns",
        "send_seconds",
        "server_errors",
        "successful_requests",
        "user_errors",
    )

    def __init__(self, metrics: Metrics, entity: str) -> None:
        self.abandoned_messages = metrics.tally(metrics.abandoned_messages.labels(entity))
        self.completed_messages = metrics.tally(metrics.completed_messages.labels(entity))
        self.dead_lettered_messages = metrics.tally(metrics.dead_lettered_messages.labels(entity))
        self._metrics, self._entity = metrics, entity
        self._commits = metrics.tally(metrics.commits)
        self._commit_bytes = metrics.tally(metrics.commit_bytes)
        self._commit_records = metrics.tally(metrics.commit_records)
        self._commit_seconds = metrics.timing(metrics.commit_seconds)
        self.expired_locks = metrics.tally(metrics.expired_locks.labels(entity))
        self.expired_messages = metrics.tally(metrics.expired_messages.labels(entity))
        self.send_seconds = metrics.timing(metrics.send_seconds.labels(entity))
        self.deferred_messages = metrics.tally(metrics.deferred_messages.labels(entity))
        self.incoming_bytes = metrics.tally(metrics.incoming_bytes.labels(entity))
        self.incoming_messages = metrics.tally(metrics.incoming_messages.labels(entity))
        self.outgoing_bytes = metrics.tally(metrics.outgoing_bytes.labels(entity))
        self.outgoing_messages = metrics.tally(metrics.outgoing_messages.labels(entity))
        self.receive_cache_hits = metrics.tally(metrics.receive_cache_hits.labels(entity))
        self.receive_cache_misses = metrics.tally(metrics.receive_cache_misses.labels(entity))
        self.receive_cache_recalls = metrics.tally(metrics.receive_cache_recalls.labels(entity))
        self.receive_cache_returns = metrics.tally(metrics.receive_cache_returns.labels(entity))
        self.server_errors = metrics.tally(metrics.server_errors.labels(entity))
        self.successful_requests = metrics.tally(metrics.successful_requests.labels(entity))
        self.user_errors = metrics.tally(metrics.user_errors.labels(entity))

    def end(self) -> None:
        """The entity is gone, and its series with it. Links that still hold this meter may go on counting."""
        self._metrics.forget_entity(self._entity)

    def refused(self, reason: Reason, count: int) -> None:
        """Operations that were not carried out."""
        (self.server_errors if reason in _OUR_FAULT else self.user_errors).inc(count)

    # --- what a partition tells (`partition.task.PartitionMeter`) -----------------------------------------------------

    def committed(self, records: int, size: int, seconds: float) -> None:
        self._commits.inc()
        self._commit_records.inc(records)
        self._commit_bytes.inc(size)
        self._commit_seconds.observe(seconds)

    def commit_failed(self) -> None:
        self._metrics.commit_failures.inc()

    def restarted(self) -> None:
        self._metrics.partition_restarts.inc()

    def lapsed(self, dead_lettered: int, expired_messages: int, expired_locks: int) -> None:
        self.dead_lettered_messages.inc(dead_lettered)
        self.expired_messages.inc(expired_messages)
        self.expired_locks.inc(expired_locks)
