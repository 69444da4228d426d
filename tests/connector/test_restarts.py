"""Queries that are started again when something has changed, and frames that are read more than once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.connector.faulty_sources import AT_THE_START, TrafficAtTheStart
from tests.support.azure_client import admin_of, azure_client
from tests.support.broker_process import BrokerProcess
from tests.support.spark_queries import (
    ENDS_WITHIN_S,
    batch,
    bodies,
    options,
    run_to_the_end,
    send,
    stream,
    written,
)


def created(broker: BrokerProcess, name: str, **given: Any) -> None:
    """Create a queue; one of this name is deleted before."""
    with admin_of(broker) as admin:
        if any(each.name == name for each in admin.list_queues()):
            admin.delete_queue(name)
        admin.create_queue(name, enable_partitioning=True, **given)


def numbers(frame: DataFrame) -> list[int]:
    """The sequence numbers of all messages, sorted."""
    return sorted(row.sequence_number for row in frame.select("sequence_number").collect())


def test_a_queue_that_was_created_again_is_data_loss_unless_the_user_goes_on(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    created(broker, "reborn")
    send(broker, "reborn", {"a": ["1", "2", "3"]})

    def read(**given: str) -> DataFrame:
        settings = {"cursor": "c", "settle": "complete", "startingOffsets": "earliest", **given}
        return stream(spark, broker, "reborn", **settings).load()

    run_to_the_end(read(), tmp_path)
    created(broker, "reborn")
    send(broker, "reborn", {"a": ["4"], "b": ["5"]})
    with pytest.raises(StreamingQueryException, match="'reborn' was deleted and created again"):
        run_to_the_end(read(), tmp_path)
    assert bodies(batch(spark, broker, "reborn").load()) == ["4", "5"], "nothing was completed unread"
    run_to_the_end(read(failOnDataLoss="false"), tmp_path)
    send(broker, "reborn", {"a": ["6"]})
    run_to_the_end(read(), tmp_path)
    assert bodies(written(spark, tmp_path)) == ["1", "2", "3", "4", "5", "6"]
    assert bodies(batch(spark, broker, "reborn").load()) == []


def test_a_target_that_is_created_again_under_a_stream_gets_what_comes_from_then_on(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    created(broker, "target", requires_duplicate_detection=True)
    rows = stream(spark, broker, "other", settle="none", startingOffsets="latest").load().select("body")
    writer = rows.writeStream.format("partibus").options(**options(broker, "target"))
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        send(broker, "other", {"a": ["before"]})
        query.processAllAvailable()
        assert bodies(batch(spark, broker, "target").load()) == ["before"]
        created(broker, "target", requires_duplicate_detection=True)
        send(broker, "other", {"a": ["after"]})
        query.processAllAvailable()
    finally:
        query.stop()
    assert bodies(batch(spark, broker, "target").load()) == ["after"]


def test_a_stream_from_the_end_whose_first_batch_fails_reads_what_came_until_it_was_started_again(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Spark does not keep where batch 0 began, and `latest` is somewhere else at the next start."""
    seen: list[list[str]] = []

    def sink(rows: DataFrame, number: int) -> None:
        seen.append(bodies(rows))
        if len(seen) == 1:
            raise RuntimeError("the sink fails")

    rows = stream(spark, broker, "drivers", settle="none", startingOffsets="latest").load()
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        writer.start().awaitTermination(ENDS_WITHIN_S)
    send(broker, "drivers", {"a": ["1"], "b": ["2"]})
    assert writer.trigger(availableNow=True).start().awaitTermination(ENDS_WITHIN_S)
    assert seen == [[], [], ["1", "2"]]


def test_a_first_batch_that_is_run_again_has_the_messages_that_it_had_at_first(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """The messages came after Spark had asked where to begin. At the next start, `latest` is behind them."""
    spark.dataSource.register(TrafficAtTheStart)
    before = numbers(batch(spark, broker, "again").load())
    seen: list[list[int]] = []

    def sink(rows: DataFrame, number: int) -> None:
        seen.append(numbers(rows))
        if len(seen) == 1:
            raise RuntimeError("the sink fails")

    reader = spark.readStream.format(TrafficAtTheStart.name())
    rows = reader.options(**options(broker, "again", settle="none", startingOffsets="latest")).load()
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        writer.start().awaitTermination(ENDS_WITHIN_S)
    assert len(seen[0]) >= AT_THE_START
    send(broker, "again", {"a": ["while the query is down"]})
    there = numbers(batch(spark, broker, "again").load())
    assert writer.trigger(availableNow=True).start().awaitTermination(ENDS_WITHIN_S)
    first, again, rest = seen
    assert again == first
    assert sorted(before + again + rest) == there


def test_a_stream_may_have_two_sinks_and_a_batch_two_actions(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    send(broker, "executors", {"a": ["1", "2"], "b": ["3"]})
    found: list[tuple[int, list[str]]] = []

    def sink(rows: DataFrame, number: int) -> None:
        found.append((rows.count(), bodies(rows)))

    frames = [
        stream(spark, broker, "executors", cursor=name, startingOffsets="earliest").load()
        for name in ("one", "two")
    ]
    queries = [
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / str(number)))
        .trigger(availableNow=True)
        .start()
        for number, frame in enumerate(frames)
    ]
    for query in queries:
        assert query.awaitTermination(ENDS_WITHIN_S)
    assert found == [(3, ["1", "2", "3"])] * 2
    with pytest.raises(StreamingQueryException, match="option 'cursor': 'one' of 'executors' belongs"):
        run_to_the_end(frames[0], tmp_path / "third")


def test_a_message_that_somebody_took_is_reported_or_fails_the_query(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    send(broker, "plain", {"a": ["1", "2", "3"]})
    with (
        azure_client(broker.addresses.connection_string()) as client,
        client.get_queue_receiver("plain") as receiver,
    ):
        _, second, *_ = receiver.receive_messages(3, max_wait_time=10)
        receiver.complete_message(second)
    assert bodies(batch(spark, broker, "plain").load()) == ["1", "3"]
    with pytest.raises(PythonException, match=r"1 of the 3 numbers .* have no message: .* 1 missing"):
        batch(spark, broker, "plain", onMissing="fail").load().collect()
