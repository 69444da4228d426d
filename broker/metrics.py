"""The broker's metrics: one object, one registry, every name (`GET /metrics`, Prometheus).

Names follow the service's metrics (HTTP contract 6.4) in Prometheus' spelling: totals are counters, `entity` is the
label, times are histograms in seconds. Each one is explained in `docs/configuration.md`; a test fails when one is missing
there. What can be counted when asked for (messages in an entity) is a gauge gathered at scrape time by
`http/metrics.py`, not kept here.

On the hot path take a `Tally` or `Timing` once per entity and add to it once per batch: adding to a counter itself takes a lock and
five calls. What they hold is moved into the counters when somebody looks.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, PlatformCollector, ProcessCollector
from prometheus_client.metrics import disable_created_metrics
from prometheus_client.registry import Collector

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series with the moment of its creation beside each one would double them for nothing

_COMMIT_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.5, 5.0)
_ENTITY = ("entity",)
_TIMES_MAX = 1024
"""Kept in a `Timing`, at most."""


class Tally:
    """A counter's hot side. Used in the event loop."""

    __slots__ = ("_count", "_counter")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._count = 0

    def inc(self, count: int = 1) -> None:
        """So many more."""
        self._count += count

    def settle(self) -> None:
        """Move what was added into the counter."""
        count, self._count = self._count, 0
        self._counter.inc(count)


class Timing:
    """A histogram's hot side. Used in the event loop."""

    __slots__ = ("_histogram", "_seconds")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._seconds: list[float] = []

    def observe(self, seconds: float) -> None:
        """One more of this length."""
        self._seconds.append(seconds)
        if len(self._seconds) >= _TIMES_MAX:
            self.settle()

    def settle(self) -> None:
        """Move what was added into the histogram."""
        seconds, self._seconds = self._seconds, []
        for each in seconds:
            self._histogram.observe(each)


class _Settler(Collector):
    """Has no metrics of its own: asked first, it settles what the others are about to show."""

    def __init__(self, hot: dict[Counter | Histogram, Tally | Timing]) -> None:
        self._hot = hot

    def collect(self) -> Iterable[Metric]:
        for each in self._hot.values():
            each.settle()
        return ()


class Metrics:
    """All counters and histograms. One per broker: tests run several brokers in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._hot: dict[Counter | Histogram, Tally | Timing] = {}
        self._of_entities: list[Counter | Histogram] = []
        """Those that have a series for each entity."""
        self.registry.register(_Settler(self._hot))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = _ENTITY) -> Counter:
            made = Counter(name, text, labels, namespace="partibus", registry=self.registry)
            if labels == _ENTITY:
                self._of_entities.append(made)
            return made

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(name, text, labels, namespace="partibus", registry=self.registry)

        def histogram(name: str, text: str, labels: tuple[str, ...] = ()) -> Histogram:
            made = Histogram(name, text, labels, namespace="partibus", registry=self.registry, buckets=_COMMIT_SECONDS)
            if labels == _ENTITY:
                self._of_entities.append(made)
            return made

        # messages
        self.incoming_messages = counter("incoming_messages", "Messages sent to the entity and acknowledged.")
        self.incoming_bytes = counter("incoming_bytes", "Their size.")
        self.outgoing_messages = counter("outgoing_messages", "Messages handed to receivers.")
        self.outgoing_bytes = counter("outgoing_bytes", "Their size.")
        self.completed_messages = counter("completed_messages", "Messages removed by their receiver.")
        self.abandoned_messages = counter("abandoned_messages", "Messages given back with a delivery counted.")
        self.deferred_messages = counter("deferred_messages", "Messages set aside by their receiver.")
        self.dead_lettered_messages = counter("dead_lettered_messages", "Messages moved to the dead-letter subqueue, for whatever reason.")
        self.expired_messages = counter("expired_messages", "Messages whose time to live ran out.")
        self.expired_locks = counter("expired_locks", "Locks that ran out before their message was settled.")
        self.send_seconds = histogram("send_seconds", "From a transfer's arrival to its acknowledgement.", _ENTITY)

        # requests, by outcome
        self.successful_requests = counter("successful_requests", "Operations carried out.")
        self.user_errors = counter("user_errors", "Operations refused because of what was asked: unknown entity, lost lock, no right.")
        self.server_errors = counter("server_errors", "Operations that failed because of the broker or its disk.")

        # connections and links
        self.active_connections = gauge("active_connections", "AMQP connections open now.")
        self.connections_opened = counter("connections_opened", "AMQP connections opened.", ())
        self.connections_closed = counter("connections_closed", "AMQP connections closed.", ())
        self.active_links = gauge("active_links", "AMQP links attached now.")
        self.inflight_bytes = gauge("inflight_bytes", "Bytes received and not yet acknowledged, unfinished messages and requests included.")
        self.unserved_bytes = gauge(
            "unserved_bytes", "Bytes read from sockets that wait for their connection's turn, over all connections."
        )
        self.http_requests = counter("http_requests", "HTTP requests answered, by status.", ("method", "status"))
        self.http_connections_refused = counter(
            "http_connections_refused", "HTTP connections that the broker ended, by reason.", ("reason",)
        )

        # the receive cache
        self.receive_cache_hits = counter("receive_cache_hits", "Messages that a receiver got from its connection's cache.")
        self.receive_cache_misses = counter("receive_cache_misses", "Messages that came from a partition on request.")
        self.receive_cache_recalls = counter(
            "receive_cache_recalls", "Messages that a partition took back from a cache for another receiver."
        )
        self.receive_cache_returns = counter("receive_cache_returns", "Messages given back unseen when a link or connection closed.")

        # the logs
        self.commits = counter("commits", "Commits to the logs.", ())
        self.commit_bytes = counter("commit_bytes", "Bytes written by commits.", ())
        self.commit_records = counter("commit_records", "Records written by commits.", ())
        self.commit_seconds = histogram("commit_seconds", "From a commit's handing over to its being durable.")
        self.commit_failures = counter("commit_failures", "Commits whose write or sync failed; each takes its partition down.", ())
        self.partition_restarts = counter("partition_restarts", "Partitions that came back after a failure.", ())

    def forget_entity(self, entity: str) -> None:
        """Show nothing of this entity any more, and keep nothing: names come and go, and each has some thirty series.

        Who still holds a `Tally` or `Timing` of it may go on adding: nobody looks at what it holds.
        """
        for each in self._of_entities:
            self._hot.pop(each.labels(entity), None)
            each.remove(entity)

    def tally(self, counter: Counter) -> Tally:
        """The hot side of a counter without labels, or of a labelled child; one for each."""
        tally = self._hot.setdefault(counter, Tally(counter))
        assert isinstance(tally, Tally)
        return tally

    def timing(self, histogram: Histogram) -> Timing:
        """The same of a histogram."""
        timing = self._hot.setdefault(histogram, Timing(histogram))
        assert isinstance(timing, Timing)
        return timing
