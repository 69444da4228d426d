"""Many messages from Spark into a queue, by a stream into another queue, and back into Spark: what comes out
is what went in, by count, checksum and the set of ids, also if something is killed every few seconds.

`make test` has 100,000 messages and a kill every 3 s; PARTIBUS_SPARK_MESSAGES and
PARTIBUS_SPARK_KILLS_EVERY_S set other numbers (`make simulate`), and MODEL_SEED other kills.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.support.broker_process import BrokerProcess
from tests.support.spark_faults import IMPATIENT, PLANNER, WORKER, kill_one
from tests.support.spark_queries import batch, options, stream

SEED = int(os.environ.get("MODEL_SEED", "1"))
MESSAGES = int(os.environ.get("PARTIBUS_SPARK_MESSAGES", "100000"))
KILLS_EVERY_S = int(os.environ.get("PARTIBUS_SPARK_KILLS_EVERY_S", "3"))
BATCHES = 10
COPIED_WITHIN_S = 120 + MESSAGES / 1000


def numbered(spark: SparkSession) -> DataFrame:
    """The messages. A body is a hash of the message's id."""
    number = f.col("id").cast("string")
    return spark.range(0, MESSAGES, 1, 4).select(
        f.sha2(number, 256).alias("body"),
        f.concat(f.lit("message-"), number).alias("message_id"),
        f.concat(f.lit("key-"), f.col("id") % 1000).alias("partition_key"),
    )


def summary(messages: DataFrame) -> tuple[int, int, int, int]:
    """Count, checksum of the bodies and of the ids, and the number of different ids. The checksums are sums
    of 32-bit hashes that do not depend on the order."""
    row = messages.select(
        f.count("*"),
        f.sum(f.crc32("body")),
        f.sum(f.crc32(f.col("message_id").cast("binary"))),
        f.count_distinct("message_id"),
    ).first()
    assert row is not None
    return tuple(row)


@pytest.fixture(scope="module", autouse=True)
def _filled(spark: SparkSession, broker: BrokerProcess) -> None:
    """The queue `orders`, with all messages."""
    numbered(spark).write.format("partibus").options(**options(broker, "orders")).mode("append").save()


def copies(spark: SparkSession, broker: BrokerProcess, target: str, checkpoint: Path) -> DataStreamWriter:
    """A stream that copies the queue in several batches."""
    rows = stream(
        spark,
        broker,
        "orders",
        cursor=target,
        startingOffsets="earliest",
        maxMessagesPerTrigger=MESSAGES // BATCHES,
        **IMPATIENT,
    ).load()
    writer = rows.select("body", "message_id", "partition_key").writeStream.format("partibus")
    to_target = options(broker, target, requireExactlyOnce="true", **IMPATIENT)
    return writer.options(**to_target, checkpointLocation=str(checkpoint)).trigger(availableNow=True)


def run_to_the_end(writer: DataStreamWriter, fault: Callable[[], object]) -> int:
    """Run a stream until it has copied everything; meanwhile there is a fault every few seconds. Gives their
    number."""
    faults = 0
    gives_up = time.monotonic() + COPIED_WITHIN_S
    while time.monotonic() < gives_up:
        query = writer.start()
        try:
            while not query.awaitTermination(KILLS_EVERY_S) and time.monotonic() < gives_up:
                fault()
                faults += 1
            if not query.isActive:
                return faults
        except StreamingQueryException:
            continue  # the next run goes on from the checkpoint
        finally:
            query.stop()
    raise AssertionError(f"not everything was copied within {COPIED_WITHIN_S} s; seed {SEED}")


def check(spark: SparkSession, broker: BrokerProcess, target: str) -> None:
    schema = "body binary, message_id string"
    found = batch(spark, broker, target).schema(schema).load()
    assert summary(found) == summary(numbered(spark)), f"seed {SEED}"
    assert found.select("message_id").exceptAll(numbered(spark).select("message_id")).isEmpty()


def test_what_goes_in_comes_out(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    run_to_the_end(copies(spark, broker, "unique", tmp_path), fault=lambda: None)
    check(spark, broker, "unique")


def test_what_goes_in_comes_out_whatever_is_killed_meanwhile(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    order = random.Random(SEED)
    kinds: list[Callable[[], object]] = [
        broker.restart,
        lambda: kill_one(WORKER, order),
        lambda: kill_one(PLANNER, order),
    ]
    faults = run_to_the_end(copies(spark, broker, "again", tmp_path), lambda: order.choice(kinds)())
    assert faults, "nothing was killed"
    check(spark, broker, "again")
