"""Planning the batches of a stream, in the order in which Spark calls."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from pyspark_partibus import stream_reader
from pyspark_partibus.client.operations import Node
from pyspark_partibus.columns import full_schema
from pyspark_partibus.errors import DataLoss, Unavailable
from pyspark_partibus.offsets import Range
from pyspark_partibus.options import source_options
from pyspark_partibus.stream_reader import PartibusStreamReader
from tests.support.fake_node import FakeNode

BASE = {"endpoint": "amqp://host", "entity": "orders", "cursor": "c", "headPollMs": "0", "retryTimeout": "0s"}
ALL = ReadAllAvailable()
SCHEMA = full_schema(properties_as_json=False, with_error=False)
Json = dict[str, Any]


def reader(node: FakeNode, **given: str) -> PartibusStreamReader:
    made = PartibusStreamReader(source_options(BASE | given), SCHEMA)
    made._node = cast(Node, node)
    return made


def ranges(stream: PartibusStreamReader, start: Json, end: Json) -> list[Range]:
    return sorted(
        (each for task in stream.partitions(start, end) for each in task.ranges),
        key=lambda each: each.partition,
    )


def test_a_new_stream_begins_at_the_end_and_reads_what_arrives() -> None:
    node = FakeNode({0: 5, 1: 9})
    stream = reader(node)
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) == start
    node.move({0: 7, 1: 9})
    end = stream.latestOffset(start, ALL)
    assert ranges(stream, start, end) == [Range(0, 5, 7)]
    assert stream.latestOffset(end, ALL) == end


def test_a_new_stream_that_completes_messages_begins_with_the_earliest() -> None:
    node = FakeNode({0: 5}, {0: 2})
    stream = reader(node, settle="complete")
    start = stream.initialOffset()
    assert ranges(stream, start, stream.latestOffset(start, ALL)) == [Range(0, 2, 5)]


def test_spark_asks_twice_where_to_begin_and_nothing_that_comes_between_is_lost() -> None:
    node = FakeNode({0: 5})
    stream = reader(node)
    first = stream.initialOffset()
    node.move({0: 8})
    assert stream.initialOffset() == first


def test_a_batch_0_that_is_run_again_in_a_new_process_begins_where_it_did() -> None:
    node = FakeNode({0: 5})
    stream = reader(node)
    start = stream.initialOffset()
    node.move({0: 8})
    end = json.loads(json.dumps(stream.latestOffset(start, ReadMaxRows(2))))
    node.move({0: 100})
    again = reader(node)
    assert ranges(again, again.initialOffset(), end) == [Range(0, 5, 7)]
    assert ranges(again, end, again.latestOffset(end, ReadMaxRows(10))) == [Range(0, 7, 17)]


def test_the_limit_is_shared_among_the_partitions() -> None:
    node = FakeNode({0: 901, 1: 101, 2: 1})
    stream = reader(node, startingOffsets="earliest")
    assert stream.getDefaultReadLimit() == ReadMaxRows(200_000)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(100))
    assert ranges(stream, start, end) == [Range(0, 1, 91), Range(1, 1, 11)]
    assert ranges(stream, start, stream.latestOffset(start, ALL)) == [Range(0, 1, 901), Range(1, 1, 101)]


def test_a_limit_of_bytes_counts_with_the_average_size() -> None:
    stream = reader(
        FakeNode({0: 1001}), maxMessagesPerTrigger="0", maxBytesPerTrigger="50000", startingOffsets="earliest"
    )
    assert stream.getDefaultReadLimit() == ReadMaxBytes(50_000)
    start = stream.initialOffset()
    assert ranges(stream, start, stream.latestOffset(start, ReadMaxBytes(50_000))) == [Range(0, 1, 51)]
    both = reader(FakeNode({0: 1001}), maxBytesPerTrigger="50000", startingOffsets="earliest")
    start = both.initialOffset()
    assert ranges(both, start, both.latestOffset(start, ReadMaxRows(100))) == [Range(0, 1, 51)]
    none = reader(FakeNode({0: 1001}), maxMessagesPerTrigger="0")
    assert none.getDefaultReadLimit() == ALL


def test_numbers_without_messages_do_not_use_up_the_limit() -> None:
    node = FakeNode({0: 1000, 1: 1000}, {0: 991, 1: 1})
    stream = reader(node, startingOffsets='{"0": 1, "1": 1}')
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(100))
    assert sum(len(each) for each in ranges(stream, start, end)) == 990 + 100


def test_a_run_that_ends_by_itself_leaves_later_messages_to_the_next_one() -> None:
    node = FakeNode({0: 11})
    stream = reader(node, startingOffsets="earliest")
    stream.prepareForTriggerAvailableNow()
    offset = stream.initialOffset()
    node.move({0: 500})
    read = []
    while (end := stream.latestOffset(offset, ReadMaxRows(4))) != offset:
        read += [len(each) for each in ranges(stream, offset, end)]
        offset = end
    assert read == [4, 4, 2]


def test_a_run_that_ends_by_itself_may_begin_after_messages_that_came_just_before() -> None:
    node = FakeNode({0: 11})
    stream = reader(node)
    stream.prepareForTriggerAvailableNow()
    node.move({0: 15})
    start = stream.initialOffset()
    node.move({0: 20})
    assert stream.latestOffset(start, ALL) == start
    next_run = reader(node)
    next_run.prepareForTriggerAvailableNow()
    assert ranges(next_run, start, next_run.latestOffset(start, ALL)) == [Range(0, 15, 20)]


def test_small_batches_wait_for_more_but_not_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(stream_reader, "_stopwatch", lambda: lambda started=now[0]: now[0] - started)
    node = FakeNode({0: 1})
    stream = reader(node, minMessagesPerTrigger="10", maxTriggerDelay="60s")
    start = stream.initialOffset()
    node.move({0: 4})
    assert stream.latestOffset(start, ReadMaxRows(100)) == start
    now[0] = 59.0
    assert stream.latestOffset(start, ReadMaxRows(100)) == start
    now[0] = 60.0
    end = stream.latestOffset(start, ReadMaxRows(100))
    assert ranges(stream, start, end) == [Range(0, 1, 4)]
    node.move({0: 14})
    assert ranges(stream, end, stream.latestOffset(end, ReadMaxRows(100))) == [Range(0, 4, 14)]


def test_both_calls_settle_what_spark_has_committed_and_never_more() -> None:
    node = FakeNode({0: 5})
    stream = reader(node)
    start = stream.initialOffset()
    node.move({0: 8})
    first = stream.latestOffset(start, ALL)
    assert node.cursors == {}
    node.move({0: 9})
    second = stream.latestOffset(first, ALL)
    assert node.cursors["c"].positions == {0: 8}
    stream.commit(first)
    assert node.cursors["c"].positions == {0: 8}
    stream.commit(second)
    assert (node.cursors["c"].owner, node.cursors["c"].positions) == (second["own"], {0: 9})
    assert ("set" in first, second["set"]) == (False, {"0": 8}), "what the broker had confirmed"


def test_heads_are_kept_for_a_while() -> None:
    node = FakeNode({0: 5})
    stream = reader(node, headPollMs="60000")
    start = stream.initialOffset()
    for _ in range(10):
        assert stream.latestOffset(start, ALL) == start
    assert node.asked.count("heads") == 2
    assert stream.reportLatestOffset() == {"gen": "gen", "p": {"0": 5}, "backlog": 0}


def test_heads_that_take_long_to_get_are_kept_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(stream_reader, "_stopwatch", lambda: lambda started=now[0]: now[0] - started)
    node = FakeNode({0: 5})
    stream = reader(node, headPollMs="100")
    start = stream.initialOffset()
    heads = node.heads

    def slow() -> Any:
        now[0] += 0.04
        return heads()

    monkeypatch.setattr(node, "heads", slow)
    stream.latestOffset(start, ALL)
    node.move({0: 6})
    now[0] += 0.39
    assert stream.latestOffset(start, ALL) == start
    now[0] += 0.02
    assert stream.latestOffset(start, ALL) != start


def test_a_stream_that_waits_looks_less_and_less_often_until_something_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(stream_reader, "_stopwatch", lambda: lambda started=now[0]: now[0] - started)
    node = FakeNode({0: 5})
    stream = reader(node, headPollMs="100")
    start = stream.initialOffset()

    def looks_in(seconds: int) -> int:
        before = node.asked.count("heads")
        for _ in range(seconds * 100):
            now[0] += 0.01
            stream.latestOffset(start, ALL)
        return node.asked.count("heads") - before

    assert looks_in(10) < 25
    assert looks_in(10) in (9, 10, 11)
    node.move({0: 6})
    looks_in(1)
    assert stream.latestOffset(start, ALL) != start
    assert looks_in(1) > 3


def test_an_entity_that_was_created_again_is_data_loss_or_read_from_its_beginning() -> None:
    node = FakeNode({0: 5})
    start = reader(node).initialOffset()
    node.answer = replace(FakeNode({0: 3}).answer, generation="new")
    with pytest.raises(DataLoss, match=r"created again.*failOnDataLoss"):
        reader(node).latestOffset(start, ALL)
    stream = reader(node, failOnDataLoss="false")
    end = stream.latestOffset(start, ALL)
    assert end["gen"] == "new"
    assert ranges(stream, start, end) == [Range(0, 1, 3)]


def test_messages_of_an_entity_that_was_created_again_are_not_settled_unread() -> None:
    node = FakeNode({0: 5})
    stream = reader(node, settle="complete", startingOffsets="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    node.answer = replace(FakeNode({0: 9}).answer, generation="new")
    for again in (stream, reader(node, settle="complete")):
        with pytest.raises(DataLoss, match="created again"):
            again.latestOffset(end, ALL)
        again.commit(end)
    lenient = reader(node, settle="complete", failOnDataLoss="false")
    new = lenient.latestOffset(end, ALL)
    assert (node.completed, node.cursors) == ({}, {})
    lenient.latestOffset(new, ALL)
    assert node.completed == {0: 9}


def test_positions_behind_which_an_entity_lost_messages_are_not_settled() -> None:
    node = FakeNode({0: 5, 1: 5})
    stream = reader(node, startingOffsets="earliest", failOnDataLoss="false")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    node.move({0: 3, 1: 7})
    stream.latestOffset(end, ALL)
    stream.commit(end)
    assert node.cursors == {}


def test_the_beginning_of_a_query_is_not_settled() -> None:
    node = FakeNode({0: 5})
    stream = reader(node)
    stream.commit(stream.initialOffset())
    assert node.cursors == {}


def test_a_partition_that_ends_before_the_query_is_data_loss_or_read_from_there() -> None:
    node = FakeNode({0: 5, 1: 5})
    start = reader(node).initialOffset()
    node.move({0: 3, 1: 7})
    with pytest.raises(DataLoss, match="ends before the query's position in partition 0"):
        reader(node).latestOffset(start, ALL)
    stream = reader(node, failOnDataLoss="false")
    end = stream.latestOffset(start, ALL)
    assert end["p"] == {"0": 3, "1": 7}
    node.move({0: 4, 1: 7})
    assert ranges(stream, end, stream.latestOffset(end, ALL)) == [Range(0, 3, 4)]


def test_a_partition_that_is_down_has_nothing_new_but_a_query_cannot_begin_without_it() -> None:
    node = FakeNode({0: 5, 1: 5})
    stream = reader(node)
    start = stream.initialOffset()
    node.move({0: 6}, starts={0: 1}, unavailable=(1,))
    end = stream.latestOffset(start, ALL)
    assert end["p"] == {"0": 6, "1": 5}
    with pytest.raises(Unavailable):
        reader(node).initialOffset()


def test_replays_have_the_same_tasks() -> None:
    node = FakeNode({each: 10 * each + 2 for each in range(16)})
    stream = reader(node, startingOffsets="earliest", readTasks="3")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    tasks = stream.partitions(start, end)
    assert len(tasks) == 3
    node.move(dict.fromkeys(range(16), 1000))
    assert reader(node, readTasks="3").partitions(start, end) == tasks
    assert stream.partitions(end, end) == []
