"""Data frames written to a real broker, in batches and as streams."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.broker_process import BrokerProcess
from tests.support.spark_queries import ENDS_WITHIN_S, batch, bodies, options, send, stream

ROWS = 3000


def numbers(spark: SparkSession, count: int = ROWS) -> DataFrame:
    """Rows with a body, a key and a property, in four Spark partitions."""
    return spark.range(0, count, 1, 4).selectExpr(
        "concat('row-', id) as body", "concat('key-', id % 50) as partition_key", "map('n', id) as properties"
    )


def save(frame: DataFrame, broker: BrokerProcess, queue: str, **more: object) -> None:
    frame.write.format("partibus").options(**options(broker, queue, **more)).mode("append").save()


def test_a_batch_write_comes_back_as_it_was(spark: SparkSession, broker: BrokerProcess) -> None:
    save(numbers(spark), broker, "unique")
    rows = batch(spark, broker, "unique").load().collect()
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(f"row-{n}" for n in range(ROWS))
    assert all(bytes(row.body).decode() == f"row-{row.properties['n']}" for row in rows)
    assert all(row.partition_key == f"key-{int(row.properties['n']) % 50}" for row in rows)
    assert len({row.message_id for row in rows}) == ROWS


def test_a_write_with_a_name_happens_once(spark: SparkSession, broker: BrokerProcess) -> None:
    before = batch(spark, broker, "unique").load().count()
    for _ in range(2):
        save(numbers(spark, 100), broker, "unique", writeId="day-1", requireExactlyOnce="true")
    assert batch(spark, broker, "unique").load().count() == before + 100
    for version in (1, 2, 1, 2):  # without a version, it is 0
        save(numbers(spark, 100), broker, "unique", writeId="day-1", writeVersion=version)
    assert batch(spark, broker, "unique").load().count() == before + 300


def test_rows_may_name_their_targets_and_columns_become_properties(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    frame = spark.range(20).selectExpr(
        "cast(id as string) as body", "if(id < 5, 'plain', 'other') as entity", "id * 0.5D as amount"
    )
    given = options(broker, "none", unknownColumns="property")
    del given["entity"]
    frame.write.format("partibus").options(**given).mode("append").save()
    assert bodies(batch(spark, broker, "plain").load()) == sorted(str(n) for n in range(5))
    rows = batch(spark, broker, "other", propertiesFormat="json").load().collect()
    assert sorted(row.properties for row in rows) == sorted(f'{{"amount":{n / 2}}}' for n in range(5, 20))


@pytest.mark.parametrize(
    ("select", "queue", "given", "problem"),
    [
        ("1 as body", "other", {}, "column 'body' is int"),
        ("'a' as text", "other", {}, "there is no column 'body'"),
        ("'a' as body", "other", {"requireExactlyOnce": "true"}, "needs option 'writeId'"),
        ("'a' as body", "other", {"sinkId": "me"}, "'sinkId'"),
        (
            "'a' as body",
            "other",
            {"requireExactlyOnce": "true", "writeId": "w"},
            "cannot be kept, because 'other' does not detect",
        ),
        ("'a' as body", "nowhere", {}, "amqp:not-found"),
        ("cast(null as string) as body", "other", {}, "a row has no body"),
    ],
)
def test_what_cannot_be_written_is_refused_with_a_reason(
    spark: SparkSession,
    broker: BrokerProcess,
    select: str,
    queue: str,
    given: dict[str, object],
    problem: str,
) -> None:
    with pytest.raises(PySparkException, match=problem):
        save(spark.range(1).selectExpr(select), broker, queue, **given)


def test_messages_cannot_be_overwritten(spark: SparkSession, broker: BrokerProcess) -> None:
    writer = numbers(spark, 1).write.format("partibus").options(**options(broker, "other"))
    with pytest.raises(AnalysisException, match="use the mode 'append'"):
        writer.mode("overwrite").save()


def copy_to_the_end(
    frame: DataFrame, broker: BrokerProcess, queue: str, checkpoint: Path, **more: object
) -> StreamingQuery:
    """Write what is available to a queue, by a stream."""
    writer = frame.writeStream.format("partibus").options(**options(broker, queue, **more))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(ENDS_WITHIN_S)
    return query


def test_a_stream_from_queue_to_queue_copies_each_message_once_whatever_is_run_again(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    texts = {f"key-{key}": [f"copy-{key}/{number}" for number in range(30)] for key in range(10)}
    send(broker, "orders", texts)
    frame = stream(
        spark, broker, "orders", cursor="copy", startingOffsets="earliest", maxMessagesPerTrigger=100
    ).load()
    narrow = frame.select("body", "partition_key", "partition", "sequence_number")

    def run() -> StreamingQuery:
        return copy_to_the_end(
            narrow, broker, "unique", tmp_path, idStrategy="source", requireExactlyOnce="true"
        )

    def copies() -> list[str]:
        return [text for text in bodies(batch(spark, broker, "unique").load()) if text.startswith("copy-")]

    query = run()
    assert [each["numInputRows"] for each in query.recentProgress] == [100, 100, 100]
    expected = sorted(text for each in texts.values() for text in each)
    assert copies() == expected
    commits = sorted((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for newest in (commits[-1], tmp_path / "commits" / f".{commits[-1].name}.crc"):
        newest.unlink()  # as if Spark had been killed between the sink's commit and its own
    run()
    assert copies() == expected


def test_a_stream_to_a_queue_that_cannot_recognise_duplicates_is_refused_if_that_is_required(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    send(broker, "orders", {"a": ["x"]})
    frame = (
        stream(spark, broker, "orders", settle="none", startingOffsets="earliest")
        .schema("body binary")
        .load()
    )
    with pytest.raises(StreamingQueryException, match="does not detect duplicates"):
        copy_to_the_end(frame, broker, "other", tmp_path, requireExactlyOnce="true")


def test_a_stream_in_complete_mode_is_refused(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    with pytest.raises((StreamingQueryException, AnalysisException), match="use the mode 'append'"):
        counts = rows.groupBy("value").count().selectExpr("cast(value as string) as body")
        writer = (
            counts.writeStream.format("partibus").options(**options(broker, "other")).outputMode("complete")
        )
        writer.option("checkpointLocation", str(tmp_path)).trigger(
            availableNow=True
        ).start().awaitTermination(60)
