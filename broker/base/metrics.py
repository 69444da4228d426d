"""The broker's metrics: one object, one registry, every name (`GET /metrics`, Prometheus).

Names follow the service's metrics (HTTP contract 6.4) in Prometheus' spelling: totals are counters, `entity`
is the label, times are histograms in seconds. `docs/configuration.md` explains each one; a test fails if one
is missing there. The registry holds the metrics of the whole process. The counters of entities are plain
numbers (`counters.py`). Anything that can be counted on request, such as the messages in an entity, is a
gauge gathered at scrape time. `http/metrics.py` puts all three together.

On the hot path, call `committed` once per cycle: adding to a counter of Prometheus takes a lock and five
calls. The added values become metrics when these are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Metric,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.metrics import disable_created_metrics
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector

from broker.base.counters import SECONDS, Durations, EntityCounters

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series with each one's creation time has no use


class _Commits(Collector):
    """The histogram of the commits' times. It is collected first, and flushes the values that the other
    metrics are about to show."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        self._metrics.flush()
        times = self._metrics.commit_seconds
        bounds = [*map(str, SECONDS), "+Inf"]
        buckets = [*zip(bounds, accumulate(times.buckets), strict=True)]
        yield HistogramMetricFamily(
            "partibus_commit_seconds",
            "Time from submitting a commit until it is durable.",
            buckets,
            times.seconds,
        )


class Metrics:
    """All counters and histograms. One per broker, because tests run several brokers in one process."""

    def __init__(self, *, has_namespaces: bool = False) -> None:
        """`has_namespaces`: there are several, and what is counted for one of them is labelled with it."""
        self.registry = CollectorRegistry()
        """The metrics of the whole process, independent of its entities."""
        self.entities: dict[str, EntityCounters] = {}
        """The counters of every entity, by name; by the names of its namespace and its own, with a line break
        between them, if there are several namespaces."""
        self.commit_seconds = Durations()
        """How long each commit took."""
        self._commits = self._commit_bytes = self._commit_records = 0
        self.registry.register(_Commits(self))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, namespace="partibus", registry=self.registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(name, text, labels, namespace="partibus", registry=self.registry)

        # connections and links
        self.active_connections = gauge("active_connections", "AMQP connections open now.")
        self.connections_opened = counter("connections_opened", "AMQP connections opened.")
        self.connections_closed = counter("connections_closed", "AMQP connections closed.")
        self.active_links = gauge("active_links", "AMQP links attached now.")
        self.inflight_bytes = gauge(
            "inflight_bytes",
            "Bytes received and not yet acknowledged, unfinished messages and requests included.",
        )
        self.unserved_bytes = gauge(
            "unserved_bytes",
            "Bytes read from sockets that wait for their connection's turn, over all connections.",
        )
        self.memory_used_bytes = gauge(
            "memory_used_bytes",
            "Memory in use: resident memory, without what was freed and is used again first.",
        )
        self.memory_mark_bytes = gauge(
            "memory_mark_bytes", "Memory above which messages are refused until receivers have made room."
        )
        self.memory_limited = gauge(
            "memory_limited", "1 while messages are refused for lack of memory, 0 otherwise."
        )
        self.memory_exceeded = gauge(
            "memory_exceeded",
            "1 while receivers hold few unsettled deliveries, for lack of memory, 0 otherwise.",
        )
        self.transactions_open = gauge(
            "transactions_open", "Transactions that are neither committed nor rolled back."
        )
        self.transactions_committed = counter("transactions_committed", "Transactions committed.")
        self.transactions_rolled_back = counter(
            "transactions_rolled_back", "Transactions rolled back by their client or by the broker."
        )
        self.credits_refused = counter(
            "credits_refused",
            "Credits that refused operations would have cost; 1 for a batch that is refused unread.",
            ("namespace",) if has_namespaces else (),
        )
        self.messaging_units = gauge("messaging_units", "Messaging units; 0 except in the premium tier.")
        self.namespace_cpu_usage = gauge(
            "namespace_cpu_usage", "CPU in use, in percent of what the messaging units stand for (premium)."
        )
        self.namespace_memory_usage = gauge(
            "namespace_memory_usage", "Memory in use, in percent of the memory mark (premium)."
        )
        self.pending_checkpoint_operation_count = gauge(
            "pending_checkpoint_operation_count",
            "Messages and requests that wait for their outcome, and so mostly for the disk (premium).",
        )
        self.throttled_by = gauge(
            "throttled_by", "1 while a resource is above its threshold, 0 otherwise (premium).", ("resource",)
        )
        self.data_folders = gauge("data_folders", "Data folders by their state.", ("state",))
        self.http_requests = counter(
            "http_requests", "HTTP requests answered, by status.", ("method", "status")
        )
        self.http_connections_refused = counter(
            "http_connections_refused", "HTTP connections that the broker ended, by reason.", ("reason",)
        )

        # the logs
        self.commits = counter("commits", "Commits to the logs.")
        self.commit_bytes = counter("commit_bytes", "Bytes written by commits.")
        self.commit_records = counter("commit_records", "Records written by commits.")
        self.commit_failures = counter(
            "commit_failures", "Commits whose write or sync failed; each takes its partition down."
        )
        self.partition_restarts = counter("partition_restarts", "Partitions that came back after a failure.")
        self.partitions_unknown = gauge(
            "partitions_unknown", "Partitions whose messages have not been counted again since a crash."
        )

    def committed(self, records: int, size: int, seconds: float) -> None:
        """Count a commit that is now durable: its records, its bytes, and how long it took."""
        self._commits += 1
        self._commit_records += records
        self._commit_bytes += size
        self.commit_seconds.observe(seconds)

    def flush(self) -> None:
        """Move the added values into the counters."""
        commits, self._commits = self._commits, 0
        size, self._commit_bytes = self._commit_bytes, 0
        records, self._commit_records = self._commit_records, 0
        self.commits.inc(commits)
        self.commit_bytes.inc(size)
        self.commit_records.inc(records)
