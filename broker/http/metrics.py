"""`GET /metrics`: the counters of `broker/metrics.py`, and gauges per entity gathered when asked for (Prometheus text format).

Open to whoever reaches the port, as `/health` is. A partition that nobody has used since the start counts nothing yet:
scraping must not open ten thousand logs.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from broker.metrics import Metrics
from broker.namespace import Namespace

ENTITY_GAUGES = {
    "partibus_active_messages": "Messages ready for delivery, or locked.",
    "partibus_dead_letter_messages": "Messages in the dead-letter subqueue.",
    "partibus_scheduled_messages": "Messages not yet due.",
    "partibus_messages": "All messages, whatever their state.",
    "partibus_size_bytes": "Bytes stored.",
    "partibus_entity_available": "1 when every partition works, 0 when one is down.",
}
"""Gauges per entity, gathered at scrape time."""


class EntityCollector(Collector):
    """Reads the counts of every entity at the moment of the scrape."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The names alone, so that registering does not gather."""
        return [GaugeMetricFamily(name, text, labels=["entity"]) for name, text in ENTITY_GAUGES.items()]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families = {name: GaugeMetricFamily(name, text, labels=["entity"]) for name, text in ENTITY_GAUGES.items()}
        for queue in self._namespace.live_queues():
            runtime = self._namespace.runtime_now(queue)
            for name, value in (
                ("partibus_active_messages", runtime.active),
                ("partibus_dead_letter_messages", runtime.dead_letter),
                ("partibus_scheduled_messages", runtime.scheduled),
                ("partibus_messages", runtime.message_count),
                ("partibus_size_bytes", runtime.size_bytes),
                ("partibus_entity_available", int(runtime.availability == "Available")),
            ):
                families[name].add_metric([queue.name], value)
        return families.values()


class MetricsHandler:
    """Renders the registry, to which it adds the gauges."""

    def __init__(self, metrics: Metrics, namespace: Namespace) -> None:
        self._registry = metrics.registry
        self._registry.register(EntityCollector(namespace))

    async def handle(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
