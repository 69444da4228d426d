"""A local Spark with two slots, small enough to run beside a broker, and the connector on its path."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

CONNECTOR = Path(__file__).resolve().parents[2] / "connector"
ATTEMPTS = 4
"""Of each task. Without a number Spark gives local tasks one attempt, and any failure ends the query."""
JAVA_ENDS_WITHIN_S = 30.0
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.stopTimeout": "30s",
}


LOCAL = f"local[2,{ATTEMPTS}]"
CLUSTER = "local-cluster[2,1,1024]"
"""Two executors of one slot each, which are processes of their own."""


@contextmanager
def local_spark(folder: Path, master: str = LOCAL) -> Iterator[SparkSession]:
    """A session whose files are in `folder`. The process has one session at a time."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join((str(CONNECTOR), str(CONNECTOR.parent)))
    os.environ["SPARK_WORKER_DIR"] = str(folder / "work")  # of a cluster; Spark has it in its own folder
    builder = SparkSession.builder.master(master).appName("partibus-tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    builder = builder.config("spark.local.dir", str(folder / "scratch"))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
        _end_java()


def _end_java() -> None:
    """Stop the process behind the session. PySpark would keep it, with its settings, until Python ends."""
    gateway: Any = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # the process ends with its input
    gateway.proc.wait(JAVA_ENDS_WITHIN_S)
    SparkContext._gateway = SparkContext._jvm = None
