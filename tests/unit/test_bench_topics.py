"""The benchmark of topics: who gets its messages, its peers, and what it judges by."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
import typer

from broker.entities.rules import CorrelationFilter, Filter, SqlFilter
from broker.message.stored import store
from broker.rules.matching import Matcher
from broker.settings.config_file import TopicSpec, load_config_file
from broker.settings.settings import load_settings
from tests.bench.load import traffic
from tests.bench.load.comparison import OURS, Comparison, Measure
from tests.bench.load.fan_outs import FAN_OUTS, FIFTY, SINGLE, THOUSAND, FanOut
from tests.bench.load.figure import Verdict
from tests.bench.load.report import DOCUMENT
from tests.bench.load.topic_brokers import entry
from tests.bench.load.topic_disk import GARBAGE_COUNTRY, KEPT, MARK_BYTES, occurrences
from tests.bench.load.traffic import Target
from tests.bench.topics import RULES, peers_of
from tests.support.bare_peers import endpoint_of, running_bare_peer
from tests.support.broker_process import configuration
from tests.support.rule_messages import matched


def loaded(folder: Path, fan_out: FanOut) -> TopicSpec:
    """The topic as the broker reads it from its configuration file."""
    path = folder / "config.json"
    path.write_text(json.dumps(configuration([], [entry(fan_out, 16)])), encoding="utf-8")
    config = load_config_file(path, load_settings())
    assert config.warnings == ()
    (topic,) = config.first.topics
    return topic


def subscribers(topic: TopicSpec, message: bytes) -> tuple[int, ...]:
    """The subscriptions that get a message."""
    matcher = Matcher()
    for number, subscription in enumerate(topic.subscriptions):
        matcher.set_rules(number, subscription.rules)
    found = matched(matcher, store(message, lambda: "none").data)
    assert (found.copies, found.failures) == ((), ())
    return found.subscriptions


@pytest.mark.parametrize("fan_out", FAN_OUTS, ids=lambda fan_out: fan_out.name)
def test_each_message_goes_to_the_subscriptions_that_the_row_names(tmp_path: Path, fan_out: FanOut) -> None:
    topic = loaded(tmp_path, fan_out)
    assert [each.name for each in topic.subscriptions] == [
        fan_out.subscription(number) for number in range(fan_out.subscriptions)
    ]
    assert subscribers(topic, fan_out.messages()[-1]) == tuple(range(fan_out.matching))


def test_messages_are_different_and_the_same_for_each_broker() -> None:
    pool = FIFTY.messages()
    assert pool == FIFTY.messages() and len({message[-MARK_BYTES:] for message in pool}) == len(pool) > 8
    assert all(len(message) > FIFTY.body_bytes for message in pool)


def kind_of(filter: Filter) -> str:
    if isinstance(filter, CorrelationFilter):
        return "correlation"
    assert isinstance(filter, SqlFilter)
    words = filter.expression.split()
    return next((word for word in ("OR", "LIKE", "<=") if word in words), "equality")


def test_the_filters_of_the_thousand_subscriptions_are_mixed_as_promised(tmp_path: Path) -> None:
    rules = [rule for each in loaded(tmp_path, THOUSAND).subscriptions for rule in each.rules]
    assert len({rule.filter for rule in rules}) == 1_000
    assert Counter(kind_of(rule.filter) for rule in rules) == {
        "correlation": 700, "equality": 200, "OR": 34, "LIKE": 33, "<=": 33
    }  # fmt: skip


def test_what_is_compacted_away_goes_to_one_subscription_only(tmp_path: Path) -> None:
    topic = loaded(tmp_path, KEPT)
    assert subscribers(topic, KEPT.messages()[0]) == tuple(range(FIFTY.matching))
    assert subscribers(topic, KEPT.messages(GARBAGE_COUNTRY)[0]) == (KEPT.matching,)


def test_payloads_are_counted_in_all_files(tmp_path: Path) -> None:
    mark = KEPT.messages()[0][-MARK_BYTES:]
    (tmp_path / "logs").mkdir()
    (tmp_path / "one").write_bytes(b"x" + mark + mark[:-1])
    (tmp_path / "logs" / "two").write_bytes(mark + mark)
    assert occurrences(tmp_path, mark) == 3


def test_messages_are_received_from_several_subscriptions_at_once() -> None:
    with running_bare_peer() as first, running_bare_peer() as second:
        targets = [Target("peer", endpoint_of(peer), settles_first=False) for peer in (first, second)]
        for target in targets:
            traffic.send(target, 100)
        assert traffic.receive_from(targets, 100) > 0
        assert [(peer.queue.completed, peer.queue.waiting) for peer in (first, second)] == [(100, 0)] * 2


def test_peers_have_a_process_and_a_folder_if_they_are_given() -> None:
    url = "amqp://guest:guest@127.0.0.1:5673/any"
    rabbitmq, artemis = peers_of(
        [f"rabbitmq={url}", f"artemis={url}"], [f"artemis={os.getpid()}"], ["rabbitmq=/data/a=b"]
    )
    assert (rabbitmq.name, rabbitmq.pid, rabbitmq.data) == ("rabbitmq", None, Path("/data/a=b"))
    assert (artemis.name, artemis.pid, artemis.data) == ("artemis", os.getpid(), None)
    assert artemis.endpoint.port == 5673 and (rabbitmq.cpu_s, artemis.disk_bytes) == (0.0, 0)
    with pytest.raises(typer.BadParameter, match="kafka"):
        peers_of([f"kafka={url}"], [], [])
    with pytest.raises(typer.BadParameter, match="no --peer is named artemis"):
        peers_of([f"rabbitmq={url}"], [], ["artemis=/data"])


@pytest.mark.parametrize(
    ("rate", "verdict"), [(59.0, Verdict.MISSED), (60.0, Verdict.FLOOR), (80.0, Verdict.GOAL)]
)
def test_a_thousand_subscriptions_are_held_against_a_single_one(rate: float, verdict: Verdict) -> None:
    found = Comparison(RULES, SINGLE.name)
    found.note(SINGLE.name, Measure.IN, OURS, 100.0)
    found.note(THOUSAND.name, Measure.IN, OURS, rate)
    assert found.verdict(THOUSAND.name, Measure.IN) is verdict


def test_a_payload_is_on_the_disk_once() -> None:
    found = Comparison(RULES, SINGLE.name)
    for measure in (Measure.ON_DISK, Measure.COPIES):
        found.note(FIFTY.name, measure, OURS, 1.0)
        assert found.verdict(FIFTY.name, measure) is Verdict.GOAL
        found.note(FIFTY.name, measure, OURS, 1.2)
        assert found.verdict(FIFTY.name, measure) is Verdict.MISSED


def test_each_row_is_explained() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert all(f"\n| {fan_out.name} | " in text for fan_out in FAN_OUTS)
