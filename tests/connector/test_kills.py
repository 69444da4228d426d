"""The broker, Spark's processes, executors and whole drivers are killed while streams read and write. In the
end each message is there once, and the cursor stands behind the last one.

`make test` has 8 rounds of each test and 2 drivers; PARTIBUS_SPARK_ROUNDS and PARTIBUS_SPARK_DRIVERS set
other numbers (`make simulate`), and MODEL_SEED another order of events.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_partibus.client.operations import Node
from pyspark_partibus.client.patience import Patience
from pyspark_partibus.endpoint import parse_endpoint
from tests.connector.copying import copied, copy_to_the_end
from tests.support.broker_process import REPOSITORY, BrokerProcess
from tests.support.spark_faults import EXECUTOR, IMPATIENT, Restarted, faults, newest, processes_of_group
from tests.support.spark_queries import ENDS_WITHIN_S, batch, bodies, options, send, stream, written
from tests.support.spark_session import CLUSTER, LOCAL

SEED = int(os.environ.get("MODEL_SEED", "1"))
ROUNDS = int(os.environ.get("PARTIBUS_SPARK_ROUNDS", "8"))
DRIVERS = int(os.environ.get("PARTIBUS_SPARK_DRIVERS", "2"))
KEYS, MESSAGES = 4, 10
"""In each round: keys, and messages of each."""
PER_BATCH = 30
"""Messages in a batch, at most, so that a round has more than one."""
LATEST_S = 0.6
"""A fault comes this long after its batch was planned, at the latest. The batch takes about as long."""
PLANS_WITHIN_S, LOOKS_EVERY_S = 120.0, 0.02


def send_round(broker: BrokerProcess, queue: str, number: int) -> list[str]:
    """Send the messages of one round; gives their texts."""
    texts = {f"key-{key}": [f"{number}/{key}/{n}" for n in range(MESSAGES)] for key in range(KEYS)}
    send(broker, queue, texts)
    return [text for each in texts.values() for text in each]


def run_through_faults(
    broker: BrokerProcess, queue: str, query: Restarted, order: random.Random
) -> list[str]:
    """In each round, send messages and let something end while Spark works on them. Gives all texts."""
    kinds = faults(broker, query, order)
    sent: list[str] = []
    try:
        for number in range(ROUNDS):
            planned = query.next_batch()
            sent += send_round(broker, queue, number)
            query.wait_for_plan(planned)
            time.sleep(order.uniform(0, LATEST_S))  # any moment will do
            kinds[number % len(kinds)]()
            query.wait_for_commit(planned)
        query.run_to_the_end()
    finally:
        query.stop()
    return sorted(sent)


def check_cursor(broker: BrokerProcess, queue: str, cursor: str) -> None:
    """The cursor stands behind everything that the queue has."""
    node = Node(parse_endpoint(broker.addresses.connection_string()), queue, Patience(10, 10))
    found = node.cursor(cursor)
    assert found is not None
    assert found.positions == node.heads().heads


def test_a_stream_reads_every_message_once_whatever_is_killed(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    frame = stream(
        spark,
        broker,
        "other",
        cursor="kills",
        startingOffsets="earliest",
        maxMessagesPerTrigger=PER_BATCH,
        **IMPATIENT,
    ).load()
    checkpoint = tmp_path / "checkpoint"

    def start() -> StreamingQuery:
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        return writer.start(str(tmp_path / "rows"))

    query = Restarted(start, checkpoint)
    sent = run_through_faults(broker, "other", query, random.Random(SEED))
    assert Counter(bodies(written(spark, tmp_path))) == Counter(sent), f"seed {SEED}"
    assert query.starts > ROUNDS // 3, "two of four faults end a query"


def test_a_stream_writes_every_message_once_whatever_is_killed(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    source, target = options(broker, "orders", **IMPATIENT), options(broker, "unique", **IMPATIENT)

    def start() -> StreamingQuery:
        return copied(spark, source, target, checkpoint, PER_BATCH).start()

    query = Restarted(start, checkpoint)
    sent = run_through_faults(broker, "orders", query, random.Random(SEED))
    assert Counter(bodies(batch(spark, broker, "unique").load())) == Counter(sent), f"seed {SEED}"
    copy_to_the_end(spark, source, target, checkpoint, PER_BATCH)
    check_cursor(broker, "orders", "copy")
    assert query.starts > ROUNDS // 3, "two of four faults end a query"


def copying(broker: BrokerProcess, source: str, target: str, folder: Path, master: str) -> dict[str, object]:
    """What the program that copies is told."""
    return {
        "source": options(broker, source, **IMPATIENT),
        "target": options(broker, target, **IMPATIENT),
        "checkpoint": str(folder / "checkpoint"),
        "scratch": str(folder),
        "limit": 20,
        "master": master,
    }


@contextmanager
def a_driver(arguments: dict[str, object], batches: int) -> Iterator[subprocess.Popen[bytes]]:
    """A copy in a process of its own, which has planned so many batches more than were committed before, or
    has ended. It is killed in the end."""
    checkpoint = Path(str(arguments["checkpoint"]))
    wanted = newest(checkpoint / "commits") + batches
    log = Path(str(arguments["scratch"])) / "driver.log"
    with log.open("wb") as output:
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.connector.copying", json.dumps(arguments)],
            cwd=REPOSITORY,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'connector'}"},
            start_new_session=True,
        )
    try:
        gives_up = time.monotonic() + PLANS_WITHIN_S
        while program.poll() is None and newest(checkpoint / "offsets") < wanted:
            assert time.monotonic() < gives_up, (
                f"no batch within {PLANS_WITHIN_S} s: {log.read_text(errors='replace')[-4000:]}"
            )
            time.sleep(LOOKS_EVERY_S)
        yield program
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def test_killed_drivers_lose_nothing_and_repeat_nothing(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    order = random.Random(SEED)
    sent = [text for number in range(5) for text in send_round(broker, "drivers", number)]
    arguments = copying(broker, "drivers", "again", tmp_path, LOCAL)
    for _ in range(DRIVERS):
        with a_driver(arguments, order.randint(1, 3)):
            time.sleep(order.uniform(0, LATEST_S))  # anywhere between planning and Spark's commit
    checkpoint = tmp_path / "checkpoint"
    copy_to_the_end(spark, options(broker, "drivers"), options(broker, "again"), checkpoint, limit=0)
    assert Counter(bodies(batch(spark, broker, "again").load())) == Counter(sent), f"seed {SEED}"
    check_cursor(broker, "drivers", "copy")


def test_a_killed_executor_of_a_cluster_loses_nothing_and_repeats_nothing(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    sent = [text for number in range(5) for text in send_round(broker, "executors", number)]
    with a_driver(copying(broker, "executors", "executed", tmp_path, CLUSTER), 1) as driver:
        executors = processes_of_group(driver.pid, EXECUTOR)
        assert len(executors) == 2
        os.kill(executors[0], signal.SIGKILL)
        ended = driver.wait(ENDS_WITHIN_S)
    assert ended == 0, (tmp_path / "driver.log").read_text()[-4000:]
    assert Counter(bodies(batch(spark, broker, "executed").load())) == Counter(sent)
    check_cursor(broker, "executors", "copy")
