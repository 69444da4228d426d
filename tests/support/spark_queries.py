"""Messages for the connector's tests, sent with the official client, and queries with the options that all
of them need."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from tests.support.broker_process import BrokerProcess

ENDS_WITHIN_S = 120


def send(broker: BrokerProcess, queue: str, batches: Mapping[str, Sequence[str]]) -> None:
    """Send text messages, one batch for each key. The subject of a message is its text, too."""
    with (
        ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for key, texts in batches.items():
            sender.send_messages([ServiceBusMessage(text, partition_key=key, subject=text) for text in texts])


def options(broker: BrokerProcess, queue: str, **more: object) -> dict[str, str]:
    """Options with which a source or sink finds the queue. Names with a dot are given with `__`."""
    given = {name.replace("__", "."): str(value) for name, value in more.items()}
    return {"endpoint": broker.addresses.connection_string(), "entity": queue, **given}


def batch(spark: SparkSession, broker: BrokerProcess, queue: str, **more: object) -> DataFrameReader:
    """A batch query of a queue."""
    return spark.read.format("partibus").options(**options(broker, queue, **more))


def stream(spark: SparkSession, broker: BrokerProcess, queue: str, **more: object) -> DataStreamReader:
    """A streaming query of a queue."""
    return spark.readStream.format("partibus").options(**options(broker, queue, **more))


def run_to_the_end(frame: DataFrame, folder: Path) -> StreamingQuery:
    """Add what is available to the files in a folder, which has the query's checkpoint as well; gives the
    query, which has ended. `written` has the rows."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "rows"))
    assert query.awaitTermination(ENDS_WITHIN_S), f"the query did not end within {ENDS_WITHIN_S} s"
    return query


def written(spark: SparkSession, folder: Path) -> DataFrame:
    """All rows that `run_to_the_end` has written to a folder."""
    return spark.read.parquet(str(folder / "rows"))


def bodies(frame: DataFrame) -> list[str]:
    """The texts of all messages, sorted."""
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def offset_of(progress: dict[str, Any] | str) -> dict[str, Any]:
    """An offset of a query's progress, in which Spark has some as objects and some as text."""
    value: dict[str, Any] = json.loads(progress) if isinstance(progress, str) else progress
    return value


def positions(offset: dict[str, Any] | str) -> dict[int, int]:
    """The positions in an offset of a query's progress."""
    return {int(partition): counter for partition, counter in offset_of(offset)["p"].items()}
