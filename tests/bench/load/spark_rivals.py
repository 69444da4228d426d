"""Partibus and Kafka as Spark sees them: the same rows into an entity, out of it, and from one to another.

An entity has 16 partitions. The rows have an `id` (text), a `key` and a `body` of 1 KiB.
"""

from __future__ import annotations

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.bench.load.kafka_broker import KafkaBroker, jars
from tests.support.broker_process import BrokerProcess, queue

PARTITIONS = 16
BODY_BYTES = 1024
KEYS = 1_000
ENTITIES = ("warm", "first", "second", "paced", "paced-copy", "shaken", "shaken-copy")
PACED_BATCH, PACED_EVERY_S = 50, 0.05
"""The paced producer sends so many messages at a time, so often: 1,000 in a second."""
PRODUCER_ENDS_WITHIN_S = 60.0
PRODUCER = Path(__file__).parents[1] / "kafka" / "PacedProducer.java"


def rows(spark: SparkSession, count: int, first: int = 0) -> DataFrame:
    """Rows with the numbers from `first` on."""
    number = f.col("id").cast("string")
    key = f.concat(f.lit("key-"), (f.col("id") % KEYS).cast("string"))
    body = f.rpad(number, BODY_BYTES, "x").cast("binary")
    return spark.range(first, first + count, 1, 4).select(
        number.alias("id"), key.alias("key"), body.alias("body")
    )


class Rival(ABC):
    """One broker and Spark's way to it."""

    name: str

    @abstractmethod
    def write(self, rows: DataFrame, entity: str) -> None:
        """Write rows to an entity."""

    @abstractmethod
    def bodies(self, spark: SparkSession, entity: str) -> DataFrame:
        """The bodies in an entity, and nothing else."""

    @abstractmethod
    def everything(self, spark: SparkSession, entity: str) -> DataFrame:
        """All columns that the source has."""

    @abstractmethod
    def times(self, spark: SparkSession, entity: str) -> DataFrame:
        """The column `id` of each message, and when the broker took it, as `at`."""

    @abstractmethod
    def copy(self, spark: SparkSession, source: str, target: str, checkpoint: Path) -> DataStreamWriter:
        """A stream from the beginning of one entity to another."""

    @abstractmethod
    def pace(self, entity: str, batches: int) -> None:
        """Send small batches of messages at a steady pace."""

    @abstractmethod
    def restart(self) -> None:
        """Kill the broker, and start it again."""


@dataclass(slots=True)
class Partibus(Rival):
    """With duplicate detection on every entity, and ids in every message."""

    broker: BrokerProcess
    name: str = "partibus"

    def _options(self, entity: str) -> dict[str, str]:
        return {"endpoint": self.broker.addresses.connection_string(), "entity": entity}

    def write(self, rows: DataFrame, entity: str) -> None:
        messages = rows.selectExpr("id as message_id", "key as partition_key", "body")
        messages.write.format("partibus").options(**self._options(entity)).mode("append").save()

    def _read(self, spark: SparkSession, entity: str, schema: str | None) -> DataFrame:
        reader = spark.read.format("partibus").options(**self._options(entity))
        return (reader if schema is None else reader.schema(schema)).load()

    def bodies(self, spark: SparkSession, entity: str) -> DataFrame:
        return self._read(spark, entity, "body binary")

    def everything(self, spark: SparkSession, entity: str) -> DataFrame:
        return self._read(spark, entity, None)

    def times(self, spark: SparkSession, entity: str) -> DataFrame:
        found = self._read(spark, entity, "message_id string, enqueued_time timestamp")
        return found.selectExpr("message_id as id", "enqueued_time as at")

    def copy(self, spark: SparkSession, source: str, target: str, checkpoint: Path) -> DataStreamWriter:
        reader = spark.readStream.format("partibus").options(**self._options(source), cursor="bench")
        messages = (
            reader.option("startingOffsets", "earliest")
            .schema("message_id string, partition_key string, body binary")
            .load()
        )
        writer = messages.writeStream.format("partibus").options(**self._options(target))
        return writer.option("checkpointLocation", str(checkpoint))

    def pace(self, entity: str, batches: int) -> None:
        began = time.monotonic()
        with (
            ServiceBusClient.from_connection_string(self.broker.addresses.connection_string()) as client,
            client.get_queue_sender(entity) as sender,
        ):
            for number in range(batches):
                ids = range(number * PACED_BATCH, (number + 1) * PACED_BATCH)
                sender.send_messages(
                    [
                        ServiceBusMessage(
                            b"x" * BODY_BYTES,
                            message_id=f"paced-{each}",
                            partition_key=f"key-{number % KEYS}",
                        )
                        for each in ids
                    ]
                )
                time.sleep(max(0.0, began + (number + 1) * PACED_EVERY_S - time.monotonic()))

    def restart(self) -> None:
        self.broker.restart()


@dataclass(slots=True)
class Kafka(Rival):
    """With Kafka's own defaults: acknowledged by the one replica, and written to the disk when the system
    likes."""

    broker: KafkaBroker
    name: str = "kafka"

    def _options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.broker.address}

    def write(self, rows: DataFrame, entity: str) -> None:
        messages = rows.selectExpr(
            "key", "body as value", "array(named_struct('key', 'id', 'value', cast(id as binary))) as headers"
        )
        messages.write.format("kafka").options(**self._options(), topic=entity).save()

    def everything(self, spark: SparkSession, entity: str) -> DataFrame:
        reader = spark.read.format("kafka").options(**self._options(), subscribe=entity)
        return reader.option("includeHeaders", "true").load()

    def bodies(self, spark: SparkSession, entity: str) -> DataFrame:
        return self.everything(spark, entity).select("value")

    def times(self, spark: SparkSession, entity: str) -> DataFrame:
        return self.everything(spark, entity).selectExpr(
            "cast(headers[0].value as string) as id", "timestamp as at"
        )

    def copy(self, spark: SparkSession, source: str, target: str, checkpoint: Path) -> DataStreamWriter:
        reader = spark.readStream.format("kafka").options(**self._options(), subscribe=source)
        messages = reader.options(startingOffsets="earliest", includeHeaders="true").load()
        writer = messages.select("key", "value", "headers").writeStream.format("kafka")
        return writer.options(**self._options(), topic=target, checkpointLocation=str(checkpoint))

    def pace(self, entity: str, batches: int) -> None:
        pace = [str(batches), str(PACED_BATCH), str(round(1000 * PACED_EVERY_S)), str(BODY_BYTES), str(KEYS)]
        command = ["java", "-cp", f"{jars()}/*", str(PRODUCER), self.broker.address, entity, *pace]
        subprocess.run(command, check=True, timeout=PRODUCER_ENDS_WITHIN_S + batches * PACED_EVERY_S)

    def restart(self) -> None:
        self.broker.restart()


@contextmanager
def running_partibus(folder: Path) -> Iterator[Partibus]:
    """A broker with all entities, until the end of the `with` statement."""
    unique = {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT2H"}
    with BrokerProcess(folder, [queue(name, **unique) for name in ENTITIES]) as broker:
        yield Partibus(broker)
