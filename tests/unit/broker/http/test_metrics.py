"""`GET /metrics`: Prometheus text, with gauges gathered at the scrape."""

from __future__ import annotations

import pytest

from broker.entities.descriptions import QueueSettings
from broker.entities.topics import SubscriptionSettings, TopicSettings
from broker.operations.message_states import SubqueueCounts
from tests.support.http_stack import HttpStack, StillPartition


async def test_metrics_are_prometheus_text_with_gauges_gathered_at_the_scrape(stack: HttpStack) -> None:
    await stack.namespace.create_entity("orders", QueueSettings(), 2)
    stack.queue("orders").partition(0)
    stack.partition.held = {
        "": SubqueueCounts(active=5, bytes=700),
        "$deadletterqueue": SubqueueCounts(active=2, bytes=50),
    }
    stack.metrics.entities["orders"].incoming_messages += 7
    status, text, headers = await stack.ask("GET", "/metrics", token=None)
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    for line in (
        'partibus_incoming_messages_total{entity="orders"} 7.0',
        'partibus_active_messages{entity="orders"} 5.0',
        'partibus_dead_letter_messages{entity="orders"} 2.0',
        'partibus_size_bytes{entity="orders"} 750.0',
        f'partibus_size_bytes_max{{entity="orders"}} {2 << 30}.0',
        'partibus_entity_available{entity="orders"} 1.0',
    ):
        assert line in text.splitlines()
    assert (
        'partibus_http_requests_total{method="GET",status="200"} 1.0'
        in (await stack.ask("GET", "/metrics", token=None))[1]
    )


async def test_each_subscription_has_gauges_and_its_topic_the_size_of_all(stack: HttpStack) -> None:
    await stack.namespace.create_entity("events", TopicSettings(), 1)
    for name in ("One", "two"):
        await stack.namespace.subscriptions.create("events", name, SubscriptionSettings(), [])
    stack.queue("events").partition(0)
    stack.partition.held = {
        "": SubqueueCounts(scheduled=3, bytes=30),
        "subscriptions/one": SubqueueCounts(active=5, bytes=700),
        "subscriptions/one/$deadletterqueue": SubqueueCounts(active=2, bytes=50),
    }
    lines = (await stack.ask("GET", "/metrics", token=None))[1].splitlines()
    for line in (
        'partibus_active_messages{entity="events"} 0.0',
        'partibus_scheduled_messages{entity="events"} 3.0',
        'partibus_size_bytes{entity="events"} 780.0',
        'partibus_entity_available{entity="events"} 1.0',
        'partibus_active_messages{entity="events/Subscriptions/One"} 5.0',
        'partibus_dead_letter_messages{entity="events/Subscriptions/One"} 2.0',
        'partibus_size_bytes{entity="events/Subscriptions/One"} 750.0',
        'partibus_active_messages{entity="events/Subscriptions/two"} 0.0',
    ):
        assert line in lines


async def test_a_scrape_counts_each_partition_of_a_topic_once_and_in_a_step_of_its_own(
    stack: HttpStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: with 1,000 subscriptions that had messages in 16 partitions, a scrape counted them three times
    in one piece, and held the event loop for 215 ms."""
    await stack.namespace.create_entity("events", TopicSettings(), 3)
    await stack.namespace.subscriptions.create("events", "one", SubscriptionSettings(), [])
    topic = stack.queue("events")
    for number in range(3):
        topic.partition(number)
    asked: list[StillPartition] = []

    def counts(partition: StillPartition, only: str | None = None) -> dict[str, SubqueueCounts]:
        asked.append(partition)
        return {"subscriptions/one": SubqueueCounts(active=5)}

    monkeypatch.setattr(StillPartition, "counts", counts)
    lines = (await stack.ask("GET", "/metrics", token=None))[1].splitlines()
    assert 'partibus_active_messages{entity="events/Subscriptions/one"} 15.0' in lines
    assert len(asked) == 3
    for _ in topic.count_in_steps():
        assert len(asked) <= 4, "in the first step"
        break
    assert (await topic.counts_in_turns())["subscriptions/one"].active == 15
