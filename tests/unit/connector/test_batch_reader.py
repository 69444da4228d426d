"""Planning a batch query."""

from __future__ import annotations

import pytest

from pyspark_partibus import batch_reader
from pyspark_partibus.batch_reader import PartibusBatchReader
from pyspark_partibus.columns import full_schema
from pyspark_partibus.offsets import Range
from pyspark_partibus.options import source_options
from tests.support.fake_node import FakeNode

SCHEMA = full_schema(properties_as_json=False, with_error=False)


def planned(node: FakeNode, monkeypatch: pytest.MonkeyPatch, **given: str) -> list[Range]:
    monkeypatch.setattr(batch_reader, "Node", lambda *_: node)
    options = source_options({"endpoint": "amqp://host", "entity": "orders", **given})
    tasks = PartibusBatchReader(options, SCHEMA).partitions()
    assert node.closed == 1
    assert all(task.generation == "gen" and task.undecided for task in tasks)
    return sorted((each for task in tasks for each in task.ranges), key=lambda each: each.partition)


def test_a_batch_query_reads_all_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    node = FakeNode({0: 10, 1: 4, 2: 7}, {0: 3, 1: 4, 2: 1})
    assert planned(node, monkeypatch) == [Range(0, 3, 10), Range(2, 1, 7)]
    assert node.asked == ["heads"]


def test_numbers_before_the_oldest_message_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    node = FakeNode({0: 10, 1: 10}, {0: 8, 1: 1})
    given = {"startingOffsets": '{"0": 1, "1": 9}', "endingOffsets": '{"1": 5}'}
    assert planned(node, monkeypatch, **given) == [Range(0, 8, 10)]
