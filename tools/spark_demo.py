"""Orders through the broker and Spark: generate, stream, aggregate, write back, show.

Starts a broker of its own on free ports, in a folder that is removed at the end, and a local Spark with two
slots. The last line counts what went in and what came out. `docs/spark.md` explains the options.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

REPOSITORY = Path(__file__).resolve().parents[1]
CONNECTION_STRING = (
    "Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
QUEUES = ("orders", "totals")
STOPS_WITHIN_S = 15


def main() -> int:
    """Run the demonstration. Returns 1 if something got lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--orders", type=int, default=20_000, help="how many (default: %(default)s)")
    count = parser.parse_args().orders
    with tempfile.TemporaryDirectory(prefix="spark-demo-") as name:
        folder = Path(name)
        with running_broker(folder) as endpoint, local_spark(folder) as spark:
            print(f"1. {count} orders of 100 customers go to the queue 'orders', with the customer as key.")
            generate(spark, endpoint, count)
            print("2. A stream reads them in batches and writes each customer's sums to 'totals'.")
            stream_totals(spark, endpoint, folder / "checkpoint")
            print("3. A batch query reads 'totals'. The customers with the largest sums:")
            counted = show(spark, endpoint)
    print(f"{count} orders in, {counted} orders in the totals that came out")
    return 0 if counted == count else 1


def generate(spark: SparkSession, endpoint: str, count: int) -> None:
    """Write orders. `writeId` makes the write happen once, even if it is repeated."""
    orders = spark.range(count).select(
        f.to_json(f.struct(f.col("id"), (f.col("id") % 17 + 1).alias("amount"))).alias("body"),
        f.concat(f.lit("customer-"), f.col("id") % 100).alias("partition_key"),
    )
    writer = orders.write.format("partibus").options(endpoint=endpoint, entity="orders", writeId="demo")
    writer.mode("append").save()


def stream_totals(spark: SparkSession, endpoint: str, checkpoint: Path) -> None:
    """Read all orders, at most 8,000 in a batch, and write the sums of each batch. A batch that is run again
    has the same `writeVersion`, so its sums are written once."""
    orders = (
        spark.readStream.format("partibus")
        .options(endpoint=endpoint, entity="orders", cursor="totals", settle="complete")
        .options(startingOffsets="earliest", maxMessagesPerTrigger=8000)
        .schema("body binary, partition_key string")
        .load()
    )

    def add_up(batch: DataFrame, number: int) -> None:
        order = f.from_json(f.col("body").cast("string"), "id long, amount long")
        sums = (f.count("*").alias("orders"), f.sum(order.amount).alias("amount"))
        totals = batch.groupBy("partition_key").agg(*sums)
        messages = totals.select("partition_key", f.to_json(f.struct("orders", "amount")).alias("body"))
        writer = messages.write.format("partibus").options(endpoint=endpoint, entity="totals")
        writer.options(writeId="totals", writeVersion=number).mode("append").save()
        print(f"   batch {number}: {batch.count()} orders")

    query = orders.writeStream.foreachBatch(add_up).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()


def show(spark: SparkSession, endpoint: str) -> int:
    """Print the largest totals; gives how many orders all totals have."""
    messages = spark.read.format("partibus").options(endpoint=endpoint, entity="totals")
    total = f.from_json(f.col("body").cast("string"), "orders long, amount long").alias("total")
    totals = messages.schema("body binary, partition_key string").load().select("partition_key", total)
    by_customer = totals.groupBy(f.col("partition_key").alias("customer")).agg(
        f.sum("total.orders").alias("orders"), f.sum("total.amount").alias("amount")
    )
    by_customer.orderBy(f.desc("amount"), "customer").show(5)
    row = by_customer.agg(f.sum("orders").alias("orders")).first()
    return int(row.orders or 0) if row is not None else 0


@contextmanager
def local_spark(folder: Path) -> Iterator[SparkSession]:
    """A session with two slots and four attempts for each task."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = str(REPOSITORY / "connector")
    settings = {
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
    }
    builder = SparkSession.builder.master("local[2,4]").appName("partibus-demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def running_broker(folder: Path) -> Iterator[str]:
    """A broker with the queues of the demonstration; gives its connection string."""
    config = folder / "config.json"
    config.write_text(json.dumps(configuration()))
    command = [sys.executable, "-m", "broker", "serve", "--config", str(config)]
    command += ["--data-dir", str(folder / "data"), "--host", "127.0.0.1", "--log-format", "json"]
    command += ["--amqp-port", "0", "--amqps-port", "0", "--http-port", "0"]
    broker = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with broker:
        assert broker.stdout is not None
        try:
            port = next((port_of(line) for line in broker.stdout if "server.ready" in line), None)
            if port is None:
                raise SystemExit("the broker did not start")
            # Somebody must read the log, or the broker would wait for a reader.
            threading.Thread(target=broker.stdout.read, daemon=True).start()
            yield CONNECTION_STRING.format(port=port)
        finally:
            broker.terminate()
            broker.wait(STOPS_WITHIN_S)


def configuration() -> dict[str, object]:
    """Queues that drop a message that is sent again."""
    properties = {
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": "PT2H",
        "MaxDeliveryCount": 10,
    }
    queues = [{"Name": name, "Properties": properties} for name in QUEUES]
    namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": []}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "Console"}}}


def port_of(line: str) -> str:
    """The AMQP port in the broker's line that says it is ready."""
    return str(json.loads(line)["amqp"]).rpartition(":")[2]


if __name__ == "__main__":
    sys.exit(main())
