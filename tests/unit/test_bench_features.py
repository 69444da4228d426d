"""The benchmark's rows of features: their messages, entities and peers, and the order of transactions."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.settings.config_file import load_config_file
from broker.settings.settings import load_settings
from protocol.codec import Long, Timestamp
from tests.bench import shapes
from tests.bench.load import feature_rows, sessions, traffic
from tests.bench.load.comparison import OURS, Measure
from tests.bench.load.endpoint import Endpoint, LoadError
from tests.bench.load.fan_outs import TEN
from tests.bench.load.feature_rows import (
    ARTEMIS,
    RABBITMQ,
    ROWS,
    Duplicates,
    Feature,
    FeatureRow,
    Scheduled,
    Sessions,
    measured,
)
from tests.bench.load.report import DOCUMENT
from tests.bench.load.shapes import SHAPES
from tests.bench.load.topic_brokers import PEERS, Partibus, TopicBroker, entry
from tests.bench.load.traffic import Target
from tests.bench.load.transactions import Agenda
from tests.support.amqp_messages import ANNOTATIONS, APPLICATION, DATA, PROPERTIES, sections
from tests.support.bare_peers import endpoint_of, running_bare_peer
from tests.support.broker_process import configuration

ENDPOINT = Endpoint("127.0.0.1", 5672, "user", "password", "bench")
COUNT = 200


def at(name: str) -> Target:
    return Target(name, ENDPOINT, settles_first=False)


def brokers() -> list[TopicBroker]:
    return [Partibus(OURS, ENDPOINT), *(kind(name, ENDPOINT) for name, kind in PEERS.items())]


def test_sessions_have_ten_messages_each_of_1_kib() -> None:
    load = Sessions(at(OURS)).load(COUNT)
    found = [sections(message) for message in load.messages]
    assert len({each[PROPERTIES][10] for each in found}) == len(found) == COUNT // sessions.MESSAGES
    assert {len(each[DATA]) for each in found} == {1024}
    assert not any(APPLICATION in each for each in found)


def test_no_two_messages_have_the_same_id_where_duplicates_are_detected() -> None:
    feature = Duplicates(at(OURS))
    loads = [feature.load(COUNT), feature.load(COUNT)]
    ids = {sections(message)[PROPERTIES][0] for load in loads for message in load.messages}
    assert len(ids) == 2 * COUNT


@pytest.mark.parametrize(
    ("broker", "annotation", "kind"),
    [(OURS, "x-opt-scheduled-enqueue-time", Timestamp), (ARTEMIS, "x-opt-delivery-time", Long)],
)
def test_messages_are_scheduled_as_the_broker_reads_it(broker: str, annotation: str, kind: type) -> None:
    feature = Scheduled(at(broker))
    feature.due_s = 1_800_000_000.5
    (message,) = feature.load(COUNT).messages
    assert sections(message)[ANNOTATIONS] == {annotation: 1_800_000_000_500}
    assert type(sections(message)[ANNOTATIONS][annotation]) is kind


def test_messages_that_are_due_before_the_last_is_sent_void_the_measurement() -> None:
    with running_bare_peer() as peer:
        target = Target("peer", endpoint_of(peer), settles_first=False)
        assert traffic.send_scheduled(target, 10, traffic.PLAIN, time.time() + 1_000) > 0
        with pytest.raises(LoadError, match="due before the last was sent"):
            traffic.send_scheduled(target, 10, traffic.PLAIN, time.time())


def test_scheduled_messages_at_a_pace_may_not_be_due_before_the_last_is_sent_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running_bare_peer() as peer:
        feature = Scheduled(Target("peer", endpoint_of(peer), settles_first=False))
        assert len(feature.paced(10, 1_000.0)) == 10
        monkeypatch.setattr(feature_rows, "LEAD_S", -1.0)
        with pytest.raises(LoadError, match="due before the last was sent"):
            feature.paced(10, 1_000.0)


def test_our_entities_have_the_features(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    queues = [row.queue for row in ROWS if row.queue is not None]
    path.write_text(json.dumps(configuration(queues, [entry(TEN, 16)])), encoding="utf-8")
    config = load_config_file(path, load_settings())
    assert config.warnings == ()
    found = {queue.name: queue.settings for queue in config.first.queues}
    assert len(found) == len(queues) == len(ROWS) - 1
    assert found["sessions"].requires_session and found["duplicates"].requires_duplicate_detection
    assert not found["scheduled"].requires_session


def test_each_row_is_at_the_brokers_that_have_the_feature() -> None:
    assert {row.name: [broker.name for broker in brokers() if row.is_at(broker)] for row in ROWS} == {
        "sessions": [OURS, ARTEMIS],
        "duplicate detection": [OURS],
        "topic to 10 subscriptions": [OURS, RABBITMQ, ARTEMIS],
        "transactions of 10": [OURS, ARTEMIS],
        "scheduled": [OURS, ARTEMIS],
    }


def test_rows_send_whole_sessions_and_transactions() -> None:
    assert all(row.count(messages) % 10 == 0 for row in ROWS for messages in (1, 999, 50_000))
    assert {row.name: row.count(50_000) for row in ROWS}["sessions"] == 10_000


def test_transactions_with_a_rate_are_taken_when_they_are_due() -> None:
    agenda = Agenda(2, per_s=0.001)
    assert agenda.take() is None, "not begun"
    agenda.begin()
    assert agenda.take() == agenda.began_s
    assert agenda.take() is None, "due in 1,000 s"


def test_transactions_without_a_rate_are_due_at_once_until_all_are_taken() -> None:
    agenda = Agenda(2)
    agenda.begin()
    due_s = [agenda.take(), agenda.take()]
    assert None not in due_s and agenda.take() is None
    for each in due_s:
        assert not agenda.is_done and each is not None
        agenda.note_commit(each)
    assert agenda.is_done and min(agenda.latencies_s) >= 0


class Counted(Partibus):
    """A broker whose CPU time the test gives."""

    used_s = 0.0
    synced = False

    @property
    def cpu_s(self) -> float:
        return Counted.used_s


class Delayed(Feature):
    """Takes 1 s of CPU time for sending, 10 s until the messages are due, and 100 s for delivering them."""

    def send(self, count: int) -> float:
        Counted.used_s += 1
        return 1_000.0

    def paced(self, count: int, per_s: float) -> list[float]:
        assert Counted.synced, "what was written before delays no message"
        return [0.001] * count

    def wait(self) -> None:
        Counted.used_s += 10

    def receive(self, count: int) -> Mapping[Measure, float]:
        Counted.used_s += 100
        return {Measure.OUT: 1_000.0}


def test_what_a_broker_does_until_messages_are_due_counts_on_their_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sync", lambda: setattr(Counted, "synced", True))
    row = FeatureRow("delayed", lambda _: Delayed(), [], 1.0, "delayed")
    found = measured(row, Counted(OURS, ENDPOINT, pid=1), COUNT, paced_s=0)
    in_us, out_us = found.values[Measure.CPU_IN], found.values[Measure.CPU_OUT]
    assert in_us * COUNT / 1e6 == pytest.approx(1) and out_us * COUNT / 1e6 == pytest.approx(110)


def test_features_have_no_floors_and_every_shape_has_one() -> None:
    assert {name for name, _ in shapes.RULES}.isdisjoint(row.name for row in ROWS)
    assert all(
        (shape.name, measure) in shapes.RULES for shape in SHAPES for measure in (Measure.IN, Measure.OUT)
    )


def test_each_row_is_explained() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert all(f"\n| {row.name} | " in text for row in ROWS)
