"""Streaming queries on a real Spark against a real broker."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.spark_queries import bodies, offset_of, positions, run_to_the_end, send, stream, written

LIMIT = 300


def test_a_stream_reads_what_is_there_in_limited_batches_and_goes_on_where_it_ended(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    texts = {f"key-{key}": [f"{key}/{number}" for number in range(50)] for key in range(20)}
    send(broker, "orders", texts)
    frame = stream(
        spark, broker, "orders", settle="none", startingOffsets="earliest", maxMessagesPerTrigger=LIMIT
    ).load()
    query = run_to_the_end(frame, tmp_path)
    progress = query.recentProgress
    assert [each["numInputRows"] for each in progress] == [300, 300, 300, 100]
    everything = sorted(text for each in texts.values() for text in each)
    assert bodies(written(spark, tmp_path)) == everything
    source = progress[-1]["sources"][0]
    assert positions(source["endOffset"]) == positions(source["latestOffset"])
    reported = [offset_of(each["sources"][0]["latestOffset"]) for each in progress]
    assert [each["backlog"] for each in reported] == [700, 400, 100, 0]
    send(broker, "orders", {"key-0": ["later"]})
    for _ in range(2):  # the second run finds nothing new
        run_to_the_end(frame, tmp_path)
        assert bodies(written(spark, tmp_path)) == sorted([*everything, "later"])


def test_a_stream_from_the_end_reads_only_what_comes(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    send(broker, "other", {"a": ["before"]})
    frame = stream(spark, broker, "other", settle="none").schema("body binary").load()
    writer = frame.writeStream.format("memory").queryName("fresh").option("checkpointLocation", str(tmp_path))
    query = writer.start()
    try:
        query.processAllAvailable()
        send(broker, "other", {"a": ["first"], "b": ["second"]})
        query.processAllAvailable()
        send(broker, "other", {"a": ["third"]})
        query.processAllAvailable()
    finally:
        query.stop()
    assert bodies(spark.table("fresh")) == ["first", "second", "third"]
