"""The benchmark's rows of features, at a running broker: what they send arrives, and nothing is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.load import feature_rows, traffic
from tests.bench.load.comparison import Measure
from tests.bench.load.fan_outs import TEN
from tests.bench.load.feature_rows import PACED_MIN, ROWS, FeatureRow
from tests.bench.load.topic_brokers import Partibus

MESSAGES = 300
SENT = {Measure.IN, Measure.CPU_IN}
RECEIVED = {Measure.OUT, Measure.CPU_OUT}
MEASURES = {
    "sessions": SENT | RECEIVED | {Measure.ACCEPT_P50, Measure.ACCEPT_P99},
    "duplicate detection": SENT | RECEIVED,
    TEN.name: SENT | RECEIVED,
    "transactions of 10": SENT,
    "scheduled": SENT | RECEIVED,
}


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Partibus]:
    with feature_rows.running(tmp_path_factory.mktemp("features")) as started:
        yield started


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_has_its_measures_and_leaves_nothing(
    subject: Partibus, row: FeatureRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_rows, "LEAD_S", 1.0)
    found = feature_rows.measured(row, subject, MESSAGES, paced_s=0)
    assert set(found.values) == MEASURES[row.name]
    assert found.values[Measure.IN] > 0 and found.values.get(Measure.OUT, 1.0) > 0
    messages = PACED_MIN // 10 if row.name == "transactions of 10" else PACED_MIN
    assert len(found.took_ms) == messages and min(found.took_ms) > 0
    if row.entity and not (row.properties or {}).get("RequiresSession"):
        assert traffic.drain(subject.target(row.entity)) == 0
    for number in range(0 if row.entity else TEN.matching):
        assert traffic.drain(subject.subscription(TEN, number)) == 0
