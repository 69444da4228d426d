"""What a user's first program does, run where only the connector's wheel and what it requires is installed:
writes rows to a queue and reads them back, in a batch and as a stream. Prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

ROWS = 100


def main(endpoint: str, folder: str) -> None:
    """The queue is `plain`, and `folder` is for what Spark keeps."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    settings = {"spark.driver.memory": "1g", "spark.sql.warehouse.dir": f"{folder}/warehouse"}
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    options = {"endpoint": endpoint, "entity": "plain"}
    rows = spark.range(ROWS).selectExpr("cast(id as string) as body")
    rows.write.format("partibus").options(**options).mode("append").save()
    read = spark.read.format("partibus").options(**options).load()
    writer = (
        spark.readStream.format("partibus")
        .options(**options, settle="complete")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
    )
    result = {"batch": sum(int(bytes(row.body)) for row in read.collect())}
    writer.trigger(availableNow=True).start(f"{folder}/rows").awaitTermination(120)
    streamed = spark.read.parquet(f"{folder}/rows")
    result |= {"stream": sum(int(bytes(row.body)) for row in streamed.collect()), "left": read.count()}
    result["broker"] = any(name.split(".")[0] in ("broker", "protocol", "storage") for name in sys.modules)
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
