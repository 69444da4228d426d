"""What the benchmark of Spark measures, the same for each rival: rates, latency and recovery."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.bench.load.figure import Figure
from tests.bench.load.spark_rivals import PACED_BATCH, PACED_EVERY_S, Rival, rows
from tests.support.spark_faults import Restarted, newest

WARM_UP = 2_000
ENDS_WITHIN_S = 300
PER_S = "messages/s"
WRITE = Figure(
    "spark write",
    PER_S,
    "a batch query writes rows with ids and keys; with Partibus, duplicates are detected",
    "about 25,000: one request of 1,000 messages costs 30 ms of both processes",
    15_000,
    30_000,
    more_is_better=True,
)
READ_BODIES = Figure(
    "spark read, bodies",
    PER_S,
    "a batch query reads the bodies only",
    "well above 60,000: bodies are found without decoding",
    60_000,
    150_000,
    more_is_better=True,
)
READ_ALL = Figure(
    "spark read, all columns",
    PER_S,
    "a batch query reads all columns",
    "about 40,000: each message is decoded in Python",
    25_000,
    50_000,
    more_is_better=True,
)
COPY = Figure(
    "spark source to sink",
    PER_S,
    "a stream copies from entity to entity, by the time that Spark's triggers took",
    "about 15,000: reading and writing share two cores",
    12_000,
    25_000,
    more_is_better=True,
)
LATENCY_P50 = Figure(
    "spark latency p50",
    "ms",
    "from one entity's enqueued time to the other's, by a stream at 1,000 messages/s",
    "about 600: half a micro-batch of waiting, and one of work",
    1_000,
    500,
)
LATENCY_P99 = Figure(
    "spark latency p99", "ms", "the same, 99 of 100 messages", "about twice the median", None, None
)
RECOVERY = Figure(
    "spark recovery",
    "s",
    "from `kill -9` of the broker, which is started again at once, to the next batch that Spark commits",
    "a few seconds, most of them the broker's start",
    None,
    None,
)
SPARK_FIGURES = (WRITE, READ_BODIES, READ_ALL, COPY, LATENCY_P50, LATENCY_P99, RECOVERY)


def warm_up(spark: SparkSession, rival: Rival, folder: Path) -> None:
    """Have Spark load and start everything that a measurement needs."""
    rival.write(rows(spark, WARM_UP), "warm")
    for frame in (rival.bodies(spark, "warm"), rival.everything(spark, "warm")):
        _consume(frame)
    _rate_of(rival.copy(spark, "warm", "paced", folder / "warm"))


def batches(spark: SparkSession, rival: Rival, count: int) -> dict[Figure, float]:
    """Write rows and read them, by batch queries."""
    written = _seconds(lambda: rival.write(rows(spark, count), "first"))
    bodies = _seconds(lambda: _consume(rival.bodies(spark, "first")))
    everything = _seconds(lambda: _consume(rival.everything(spark, "first")))
    return {WRITE: count / written, READ_BODIES: count / bodies, READ_ALL: count / everything}


def stream(spark: SparkSession, rival: Rival, folder: Path) -> dict[Figure, float]:
    """Copy the rows that `batches` wrote."""
    return {COPY: _rate_of(rival.copy(spark, "first", "second", folder / "copy"))}


def latency(spark: SparkSession, rival: Rival, folder: Path, seconds: float) -> dict[Figure, float]:
    """Copy messages as they come."""
    count = round(seconds / PACED_EVERY_S)
    rival.write(rows(spark, 1), "paced")
    query = rival.copy(spark, "paced", "paced-copy", folder / "paced").start()
    try:
        query.processAllAvailable()
        rival.pace("paced", count)
        query.processAllAvailable()
    finally:
        query.stop()
    sent, arrived = rival.times(spark, "paced"), rival.times(spark, "paced-copy")
    both = sent.withColumnRenamed("at", "sent").join(arrived, "id").where("id like 'paced-%'")
    row = both.selectExpr(
        "count(*) as count",
        "percentile(1000 * (cast(at as double) - cast(sent as double)), array(0.5, 0.99)) as ms",
    ).first()
    assert row is not None and row["count"] == count * PACED_BATCH, "not every message was copied once"
    return {LATENCY_P50: row.ms[0], LATENCY_P99: row.ms[1]}


def recovery(spark: SparkSession, rival: Rival, folder: Path) -> dict[Figure, float]:
    """Kill the broker under a stream, and wait for the stream's next batch."""
    checkpoint = folder / "shaken"
    rival.write(rows(spark, 1_000), "shaken")
    query = Restarted(lambda: rival.copy(spark, "shaken", "shaken-copy", checkpoint).start(), checkpoint)
    try:
        query.wait_for_commit(0)
        killed = time.monotonic()
        rival.restart()
        began = newest(checkpoint / "commits")
        rival.write(rows(spark, 1_000, first=1_000), "shaken")  # others, or they would be duplicates
        query.wait_for_commit(began + 1)
        return {RECOVERY: time.monotonic() - killed}
    finally:
        query.stop()


def _consume(frame: DataFrame) -> None:
    """Read all rows, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def _seconds(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def _rate_of(writer: DataStreamWriter) -> float:
    """Run a stream to the end. Gives its rows for each second of its triggers."""
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(ENDS_WITHIN_S), f"no end within {ENDS_WITHIN_S} s"
        busy = [each for each in query.recentProgress if each["numInputRows"]]
    finally:
        query.stop()
    took_ms: int = sum(each["durationMs"]["triggerExecution"] for each in busy)
    copied: int = sum(each["numInputRows"] for each in busy)
    return 1000 * copied / took_ms
