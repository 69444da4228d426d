"""The metrics of the process: what is added up on the hot path is there when somebody reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from broker.base.counters import SECONDS
from broker.base.metrics import Metrics


def value(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(f"partibus_{name}")


def test_commits_are_added_up_and_shown_at_the_next_reading() -> None:
    metrics = Metrics()
    for seconds in (0.001, 0.002):
        metrics.committed(3, 100, seconds)
    text = generate_latest(metrics.registry).decode()
    assert "partibus_commits_total 2.0\n" in text and "partibus_commit_seconds_count 2.0\n" in text
    counted = [value(metrics, f"commit{name}_total") for name in ("s", "_records", "_bytes")]
    assert counted == [2, 6, 200]
    generate_latest(metrics.registry)
    assert value(metrics, "commits_total") == 2, "none is counted twice"


def test_the_times_of_commits_are_counted_as_those_of_any_histogram() -> None:
    metrics, registry = Metrics(), CollectorRegistry()
    like = Histogram(
        "commit_seconds",
        "Time from submitting a commit until it is durable.",
        namespace="partibus",
        registry=registry,
        buckets=SECONDS,
    )
    for seconds in (0.0001, 0.0005, 0.3, 0.3, 99.0):
        metrics.committed(1, 1, seconds)
        like.observe(seconds)
    expected = generate_latest(registry).decode()
    assert expected in generate_latest(metrics.registry).decode()


def test_brokers_in_one_process_count_for_themselves() -> None:
    one, other = Metrics(), Metrics()
    one.connections_opened.inc()
    assert (value(one, "connections_opened_total"), value(other, "connections_opened_total")) == (1, 0)
