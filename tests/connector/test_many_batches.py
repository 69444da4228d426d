"""A stream of many small batches: neither the broker nor Spark's Python processes keep anything of them.

`make test` has a few batches; PARTIBUS_SPARK_BATCHES sets another number (`make simulate`).
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from tests.connector.copying import copied
from tests.support.broker_process import BrokerProcess
from tests.support.memory_use import resident_kib
from tests.support.scrapes import metrics
from tests.support.spark_faults import PLANNER, WORKER, newest, spark_processes
from tests.support.spark_queries import options, send

BATCHES = int(os.environ.get("PARTIBUS_SPARK_BATCHES", "16"))
PER_BATCH = 8
BATCH_WITHIN_S, LOOKS_EVERY_S, SCRAPE_WITHIN_S = 30.0, 0.05, 10.0
GROWS_KIB_MAX = 32 * 1024


@dataclass(slots=True, frozen=True)
class Kept:
    """What is open between two batches."""

    connections: int
    opened: int
    """Connections since the broker's start."""
    broker_files: int
    python_files: int
    """The most that one of Spark's Python processes has open."""
    broker_kib: int


def kept(broker: BrokerProcess) -> Kept:
    text = metrics(broker.addresses, SCRAPE_WITHIN_S)
    opened, closed = (
        int(float(re.findall(rf"^partibus_connections_{name}_total ([\d.]+)$", text, re.M)[0]))
        for name in ("opened", "closed")
    )
    pythons = [*spark_processes(WORKER), *spark_processes(PLANNER)]
    return Kept(
        opened - closed,
        opened,
        files_of(broker.pid),
        max(map(files_of, pythons), default=0),
        resident_kib(broker.pid),
    )


def files_of(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except FileNotFoundError:  # a worker that Spark has ended
        return 0


def wait_for(checkpoint: Path, batch: int) -> None:
    gives_up = time.monotonic() + BATCH_WITHIN_S * BATCHES
    while newest(checkpoint / "commits") < batch:
        assert time.monotonic() < gives_up, f"batch {batch} was not committed"
        time.sleep(LOOKS_EVERY_S)


def test_many_batches_leave_nothing_open(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    for start in range(0, BATCHES * PER_BATCH, 4 * PER_BATCH):
        send(broker, "orders", {"key": [str(start + number) for number in range(4 * PER_BATCH)]})
    query = copied(spark, options(broker, "orders"), options(broker, "unique"), tmp_path, PER_BATCH).start()
    try:
        wait_for(tmp_path, BATCHES // 2)
        before = kept(broker)
        wait_for(tmp_path, BATCHES - 1)
        after = kept(broker)
    finally:
        query.stop()
    # Spark ends workers that have been idle for a minute, and starts others.
    assert after.connections <= before.connections + 2
    assert after.opened - before.opened <= 4 + BATCHES // 20
    assert after.broker_files <= before.broker_files + 8
    assert after.python_files <= before.python_files + 2
    assert after.broker_kib - before.broker_kib < GROWS_KIB_MAX
