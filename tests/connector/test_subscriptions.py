"""Spark reads the subscriptions of a topic and their dead-letter queues, and writes to topics."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.support.azure_client import admin_of, azure_client
from tests.support.broker_process import BrokerProcess
from tests.support.spark_queries import batch, bodies, options, run_to_the_end, stream, written

COUNT = 40
ALL = sorted(f"order {number}" for number in range(COUNT))


@pytest.fixture(scope="module", autouse=True)
def _written_topic(spark: SparkSession, broker: BrokerProcess) -> None:
    """A topic that Spark has written to, and its subscriptions."""
    with admin_of(broker) as admin:
        admin.create_topic("events", requires_duplicate_detection=True)
        for name in ("one", "two", "three"):
            admin.create_subscription("events", name)
    rows = spark.range(COUNT).selectExpr(
        "concat('order ', id) as body", "concat('key-', id % 5) as partition_key"
    )
    for _ in range(2):
        writer = rows.write.format("partibus").options(**options(broker, "events", writeId="events-1"))
        writer.mode("append").save()


def test_each_subscription_is_read_for_itself(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    assert bodies(batch(spark, broker, "events", subscription="one").load()) == ALL
    frame = stream(
        spark,
        broker,
        "events",
        subscription="one",
        cursor="mine",
        settle="complete",
        startingOffsets="earliest",
        maxMessagesPerTrigger=15,
    ).load()
    query = run_to_the_end(frame, tmp_path)
    assert [each["numInputRows"] for each in query.recentProgress] == [15, 15, 10]
    assert bodies(written(spark, tmp_path)) == ALL
    assert bodies(batch(spark, broker, "events", subscription="one").load()) == []
    assert bodies(batch(spark, broker, "events", subscription="two").load()) == ALL


def test_a_topic_itself_has_nothing_to_read(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(AnalysisException, match="receive from one of its subscriptions"):
        batch(spark, broker, "events").load().count()


def test_a_batch_query_reads_dead_letters_while_older_messages_are_still_in_the_queue(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    with (
        azure_client(broker.addresses.connection_string()) as client,
        client.get_queue_sender("plain") as sender,
        client.get_queue_receiver("plain") as receiver,
    ):
        sender.send_messages([ServiceBusMessage(f"{number}") for number in range(3)])
        first, *others = receiver.receive_messages(3, max_wait_time=10)
        for message in others:
            receiver.dead_letter_message(message)
        receiver.defer_message(first)
    dead = [str(message) for message in others]
    assert dead
    assert bodies(batch(spark, broker, "plain", subqueue="deadletter").load()) == dead
    assert batch(spark, broker, "plain", subqueue="deadletter", endingTimestamp="2100-01-01").load().count()


def test_the_dead_letter_queue_of_a_subscription_is_read_and_drained(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    dead = []
    with (
        azure_client(broker.addresses.connection_string()) as client,
        client.get_subscription_receiver("events", "three") as receiver,
    ):
        for message in receiver.receive_messages(COUNT // 4, max_wait_time=10):
            receiver.dead_letter_message(message, reason="unpaid")
            dead.append(str(message))
    assert dead
    source = {"subscription": "three", "subqueue": "deadletter"}
    rows = batch(spark, broker, "events", **source).load().collect()
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(dead)
    assert {row.properties["DeadLetterReason"] for row in rows} == {"unpaid"}
    alive = bodies(batch(spark, broker, "events", subscription="three").load())
    assert sorted(alive + dead) == ALL
    frame = stream(
        spark, broker, "events", **source, cursor="dead", settle="complete", startingOffsets="earliest"
    ).load()
    run_to_the_end(frame, tmp_path)
    assert bodies(written(spark, tmp_path)) == sorted(dead)
    assert bodies(batch(spark, broker, "events", **source).load()) == []
