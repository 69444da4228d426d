"""What the driver does when all tasks of a write are done."""

from __future__ import annotations

import pickle

import pytest

from pyspark_partibus import query_writers
from pyspark_partibus.options import sink_options
from pyspark_partibus.query_writers import PartibusBatchWriter, PartibusStreamWriter
from pyspark_partibus.task_writer import Written

OPTIONS = sink_options({"endpoint": "amqp://host", "entity": "orders"})
Ledger = dict[tuple[str, str], int]


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    entries: Ledger = {}

    class FakeNode:
        def __init__(self, _endpoint: object, address: str, _patience: object) -> None:
            self._address = address

        def __enter__(self) -> FakeNode:
            return self

        def __exit__(self, *_: object) -> None:
            """There is nothing to close."""

        def commit_batch(self, sink: str, batch: int) -> bool:
            entries[self._address, sink] = batch
            return True

    monkeypatch.setattr(query_writers, "Node", FakeNode)
    return entries


def test_a_batch_of_a_stream_is_noted_once_for_each_target(ledger: Ledger) -> None:
    tasks = [Written("query", ("a", "b"), 5, 50, 1), Written("query", ("b",), 7, 70), None]
    PartibusStreamWriter(OPTIONS, "content", ()).commit(pickle.loads(pickle.dumps(tasks)), 9)
    assert ledger == {("a", "query"): 9, ("b", "query"): 9}


def test_a_write_without_a_name_is_not_noted(ledger: Ledger) -> None:
    writer = PartibusBatchWriter(OPTIONS, "content", ())
    writer.commit([Written(None, ("a",), 5)])
    assert ledger == {}
    writer.commit([Written("write:day", ("a",), 5)])
    assert ledger == {("a", "write:day"): 0}


def test_the_totals_are_logged(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    writer = PartibusStreamWriter(OPTIONS, "content", ())
    writer.commit([Written("q", ("a",), 5, 50, 2), Written("q", ("a",), 7, 70, 0, 3)], 9)
    assert "12 messages of 120 bytes" in caplog.text
    assert "2 of them duplicates; 3 skipped" in caplog.text
    writer.abort([Written("q", ("a",), 5), None], 10)
    assert "1 of 2 tasks had finished" in caplog.text
