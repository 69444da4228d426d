"""A stream that copies messages from queue to queue, for the tests that kill it; also as a program with a
Spark of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.support.spark_queries import ENDS_WITHIN_S
from tests.support.spark_session import local_spark


def copied(
    spark: SparkSession, source: dict[str, str], target: dict[str, str], checkpoint: Path, limit: int
) -> DataStreamWriter:
    """A stream that copies each message once, at most `limit` in a batch."""
    reader = spark.readStream.format("partibus").options(**source, cursor="copy", startingOffsets="earliest")
    frame = reader.option("maxMessagesPerTrigger", limit).load()
    narrow = frame.select("body", "partition_key", "partition", "sequence_number")
    writer = narrow.writeStream.format("partibus").options(
        **target, idStrategy="source", requireExactlyOnce="true"
    )
    return writer.option("checkpointLocation", str(checkpoint))


def copy_to_the_end(
    spark: SparkSession, source: dict[str, str], target: dict[str, str], checkpoint: Path, limit: int
) -> None:
    """Copy what is available. Raises StreamingQueryException."""
    query = copied(spark, source, target, checkpoint, limit).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(ENDS_WITHIN_S), f"the copy did not end within {ENDS_WITHIN_S} s"
    finally:
        query.stop()


def main() -> None:
    """Copy with a Spark of its own. The argument is a JSON object."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    with local_spark(Path(arguments["scratch"]), arguments["master"]) as spark:
        copy_to_the_end(
            spark, arguments["source"], arguments["target"], Path(arguments["checkpoint"]), arguments["limit"]
        )


if __name__ == "__main__":
    main()
