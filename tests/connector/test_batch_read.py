"""Batch queries on a real Spark against a real broker."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.spark_queries import batch, bodies, send

KEYS = 20
MESSAGES = 1000
TEXTS = {f"key-{key}": [f"{key}/{number}" for number in range(MESSAGES // KEYS)] for key in range(KEYS)}
ALL = sorted(text for texts in TEXTS.values() for text in texts)


@pytest.fixture(scope="module", autouse=True)
def _messages(broker: BrokerProcess) -> None:
    send(broker, "orders", TEXTS)


def test_a_batch_query_reads_every_message_once_with_all_columns(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    frame = batch(spark, broker, "orders").load()
    rows = frame.collect()
    assert sorted(bytes(row.body).decode() for row in rows) == ALL
    assert all(row.subject == bytes(row.body).decode() for row in rows)
    assert {row.partition_key for row in rows} == TEXTS.keys()
    assert len({row.sequence_number for row in rows}) == MESSAGES
    assert all(row.sequence_number >> 48 == row.partition for row in rows)
    assert all(timedelta(0) <= datetime.now() - row.enqueued_time < timedelta(hours=1) for row in rows)
    keys = {row.partition_key: row.partition for row in rows}
    for key, texts in TEXTS.items():  # in the order in which they were sent
        sent = [row for row in rows if row.partition_key == key]
        ordered = sorted(sent, key=lambda row: row.sequence_number)
        assert [bytes(row.body).decode() for row in ordered] == texts
        assert {row.partition for row in sent} == {keys[key]}


def test_reading_again_reads_the_same_because_nothing_is_settled(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    assert bodies(batch(spark, broker, "orders", readTasks=1).load()) == ALL
    assert bodies(batch(spark, broker, "orders", readTasks=16, splitRows=7, fetchMessages=5).load()) == ALL


def test_a_schema_of_ones_own_is_all_that_is_read(spark: SparkSession, broker: BrokerProcess) -> None:
    frame = batch(spark, broker, "orders").schema("partition int, body binary").load()
    assert frame.columns == ["partition", "body"]
    assert bodies(frame) == ALL


def test_positions_and_times_bound_what_is_read(spark: SparkSession, broker: BrokerProcess) -> None:
    frame = batch(spark, broker, "orders").schema("partition int, sequence_number bigint").load()
    counts = {row.partition: row["count"] for row in frame.groupBy("partition").count().collect()}
    partition, count = max(counts.items(), key=lambda each: each[1])
    only = dict.fromkeys(map(str, range(16)), -1) | {str(partition): 11}
    starting = str(only).replace("'", '"')
    rows = batch(spark, broker, "orders", startingOffsets=starting).load().collect()
    assert len(rows) == count - 10
    assert {row.partition for row in rows} == {partition}
    ending = f'{{"{partition}": 11}}'
    assert batch(spark, broker, "orders", endingOffsets=ending).load().count() == MESSAGES - count + 10
    assert batch(spark, broker, "orders", startingOffsets="latest").load().count() == 0
    assert batch(spark, broker, "orders", startingTimestamp="2001-01-01").load().count() == MESSAGES
    assert batch(spark, broker, "orders", endingTimestamp="2001-01-01").load().count() == 0


def test_an_empty_queue_is_an_empty_table(spark: SparkSession, broker: BrokerProcess) -> None:
    assert batch(spark, broker, "other").load().count() == 0
    assert batch(spark, broker, "orders", subqueue="deadletter").load().collect() == []


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"fetchSize": 1}, "option 'fetchsize': is unknown"),
        ({"endingOffsets": '{"0": 999999}'}, "option 'endingOffsets'"),
        ({"startingOffsets": '{"77": 1}'}, "option 'startingOffsets': names partition 77"),
        (
            {"sasl__username": "me", "sasl__password": "guess"},
            "option 'sasl.username': cannot be given",
        ),
    ],
)
def test_a_wrong_option_fails_at_planning_and_names_it(
    spark: SparkSession, broker: BrokerProcess, given: dict[str, object], problem: str
) -> None:
    with pytest.raises((AnalysisException, PythonException)) as raised:
        batch(spark, broker, "orders", **given).load().count()
    assert problem in str(raised.value)
    assert "SAS_KEY_VALUE" not in str(raised.value)
    assert "guess" not in str(raised.value)


def test_credentials_that_the_broker_refuses_are_in_no_error(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    address = f"amqp://me:guess@127.0.0.1:{broker.addresses.amqp_port}"
    with pytest.raises(
        (AnalysisException, PythonException), match="the broker refused the credentials"
    ) as raised:
        batch(spark, broker, "orders", endpoint=address).load().count()
    assert "guess" not in str(raised.value)


def test_a_wrong_schema_fails_at_planning(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(AnalysisException, match="column 'body' is string in the schema, but must be binary"):
        batch(spark, broker, "orders").schema("body string").load().count()


def test_no_secret_is_in_the_plan(spark: SparkSession, broker: BrokerProcess) -> None:
    frame = batch(spark, broker, "orders").load()
    assert "SAS_KEY_VALUE" not in frame._jdf.queryExecution().toString()
