"""An entity's counters, written exactly as Prometheus's own client would write them, but in little memory."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from broker.base.counters import (
    COUNTERS,
    ENTITY_SERIES,
    SECONDS,
    SEND_SECONDS,
    SEND_SECONDS_TEXT,
    EntityCounters,
    exposition,
    label_of,
)
from tests.bench.load import figures
from tests.bench.load.many_queues import counters_kib

NAMES = ["orders", "a/b/c", 'quo"ted', "back\\slash", "two\nlines", "grüße"]


def busy(name: str, chance: random.Random) -> EntityCounters:
    """An entity with a value in every counter."""
    entity = EntityCounters(name)
    for counter in COUNTERS:
        setattr(entity, counter, chance.randrange(1, 100_000))
    for _ in range(50):
        entity.send_seconds.observe(chance.choice([*SECONDS, 0.0, 7.5, chance.random()]))
    return entity


def by_the_library(entities: list[EntityCounters], times: dict[str, list[float]]) -> str:
    """The same numbers, written by prometheus_client."""
    registry = CollectorRegistry()
    for name, text in COUNTERS.items():
        counter = Counter(name, text, ("entity",), namespace="partibus", registry=registry)
        for each in entities:
            counter.labels(each.entity).inc(getattr(each, name))
    histogram = Histogram(
        SEND_SECONDS, SEND_SECONDS_TEXT, ("entity",), namespace="partibus", registry=registry, buckets=SECONDS
    )
    for each in entities:
        for seconds in times[each.entity]:
            histogram.labels(each.entity).observe(seconds)
    return generate_latest(registry).decode()


def test_the_text_is_what_prometheus_client_writes() -> None:
    chance = random.Random(1)
    entities = [EntityCounters(name) for name in NAMES]
    times: dict[str, list[float]] = {}
    for each in entities:
        for counter in COUNTERS:
            setattr(each, counter, chance.randrange(100_000))
        times[each.entity] = [chance.choice([*SECONDS, 0.0, 7.5, chance.random()]) for _ in range(50)]
        for seconds in times[each.entity]:
            each.send_seconds.observe(seconds)
    assert "".join(exposition(entities)) == by_the_library(entities, times)


def test_every_line_can_be_parsed_and_numbers_of_any_size_come_back() -> None:
    entities = [busy(name, random.Random(2)) for name in NAMES]
    entities[0].incoming_bytes = 12_345_678_901_234
    families = {
        family.name: family for family in text_string_to_metric_families("".join(exposition(entities)))
    }
    assert {
        name + ("_total" if family.type == "counter" else "") for name, family in families.items()
    } == ENTITY_SERIES
    shown = {sample.labels["entity"]: sample.value for sample in families["partibus_incoming_bytes"].samples}
    assert shown == {each.entity: each.incoming_bytes for each in entities}
    assert {
        sample.value for sample in families["partibus_send_seconds"].samples if sample.name.endswith("_count")
    } == {50}


def test_an_entity_that_nobody_uses_has_no_series() -> None:
    entities = [EntityCounters("idle"), busy("busy", random.Random(3))]
    text = "".join(exposition(entities))
    assert 'entity="busy"' in text and 'entity="idle"' not in text
    assert "".join(exposition([])).count("# TYPE") == len(ENTITY_SERIES), (
        "the families are there nevertheless"
    )


def test_the_counters_of_an_entity_take_at_most_4_kib() -> None:
    assert figures.MANY_COUNTERS.floor == 4
    assert counters_kib(500) <= figures.MANY_COUNTERS.floor


def test_the_text_of_ten_thousand_entities_comes_in_small_steps() -> None:
    entities = [EntityCounters(f"queue-{number}") for number in range(10_000)]
    for each in entities:
        each.incoming_messages = 1
    assert max(step.count("\n") for step in exposition(entities)) <= 2_000


def test_series_name_their_namespace_if_there_are_several() -> None:
    assert label_of('a"b') == 'entity="a\\"b"'
    assert label_of("orders", "bills") == 'namespace="bills",entity="orders"'
    entity = EntityCounters("orders", "bills")
    entity.incoming_messages = 3
    assert 'partibus_incoming_messages_total{namespace="bills",entity="orders"} 3.0' in "".join(
        exposition([entity])
    )
