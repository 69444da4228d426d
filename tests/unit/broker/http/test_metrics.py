"""`GET /metrics`: Prometheus text, with gauges gathered at the scrape."""

from __future__ import annotations

import re

import pytest

from broker.entities.descriptions import QueueSettings
from broker.entities.topics import SubscriptionSettings, TopicSettings
from broker.http.metrics import ENTITY_GAUGES
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


async def test_each_entity_and_subscription_has_its_own_values_among_many(stack: HttpStack) -> None:
    """Lines with equal values are written together, others one by one."""
    names = [f"queue-{number:03}" for number in range(36)]
    for name in names:
        await stack.namespace.create_entity(
            name, QueueSettings(max_size_mb=2048 if name < "queue-020" else 1024)
        )
    await stack.namespace.create_entity("events", TopicSettings())
    for number in range(8):
        await stack.namespace.subscriptions.create("events", f"s{number}", SubscriptionSettings(), [])
    held = {
        "queue-033": {"": SubqueueCounts(active=3, deferred=1, scheduled=2, bytes=70, message_ids=9)},
        "queue-009": {"$deadletterqueue": SubqueueCounts(active=4, bytes=9)},
        "events": {"subscriptions/s7": SubqueueCounts(active=5, bytes=50)},
    }
    for name, counts in held.items():
        stack.queue(name)._at_rest = counts
    text = (await stack.ask("GET", "/metrics", token=None))[1]
    values: dict[tuple[str, str], str] = {}
    for line in text.splitlines():
        if found := re.fullmatch(r'partibus_(\w+)\{entity="([^"]+)"\} (\S+)', line):
            assert (found[1], found[2]) not in values, "once"
            values[found[1], found[2]] = found[3]
    shown = [*names, "events", *(f"events/Subscriptions/s{number}" for number in range(8))]
    for gauge in ENTITY_GAUGES:
        name = gauge.removeprefix("partibus_")
        of_subscriptions = list(ENTITY_GAUGES).index(gauge) < 5
        assert [entity for each, entity in values if each == name] == shown[: 45 if of_subscriptions else 37]
    assert {key: value for key, value in values.items() if value != "0.0" and "_bytes_max" not in key[0]} == {
        ("active_messages", "queue-033"): "3.0",
        ("scheduled_messages", "queue-033"): "2.0",
        ("messages", "queue-033"): "6.0",
        ("size_bytes", "queue-033"): "70.0",
        ("message_ids", "queue-033"): "9.0",
        ("dead_letter_messages", "queue-009"): "4.0",
        ("messages", "queue-009"): "4.0",
        ("size_bytes", "queue-009"): "9.0",
        ("size_bytes", "events"): "50.0",
        ("active_messages", "events/Subscriptions/s7"): "5.0",
        ("messages", "events/Subscriptions/s7"): "5.0",
        ("size_bytes", "events/Subscriptions/s7"): "50.0",
        **{("entity_available", name): "1.0" for name in shown[:37]},
    }
    for name in names:
        assert values["size_bytes_max", name] == f"{stack.queue(name).size_bytes_max}.0"
