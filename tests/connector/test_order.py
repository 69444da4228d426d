"""Rows that come in another order, or in other tasks, when they are written again: which ids survive that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from pyspark_partibus.client.operations import Node
from pyspark_partibus.client.patience import Patience
from pyspark_partibus.endpoint import parse_endpoint
from tests.support.broker_process import BrokerProcess
from tests.support.spark_queries import batch, bodies, options
from tests.support.waiting import WAIT_S, until_seen

ROWS, DISTINCT = 1000, 300
ROW_BYTES = 1000
PER_REQUEST, FAILS_AFTER = 100, 300
ADAPTIVE = pytest.mark.parametrize("adaptive", ["true", "false"], ids=["adaptive", "not adaptive"])


@contextmanager
def configured(spark: SparkSession, **given: str) -> Iterator[None]:
    """Settings of Spark, until the end of the `with` statement. Names with a dot are given with `__`."""
    settings = {f"spark.sql.{name.replace('__', '.')}": value for name, value in given.items()}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def save(frame: DataFrame, broker: BrokerProcess, queue: str, **more: object) -> None:
    frame.write.format("partibus").options(**options(broker, queue, **more)).mode("append").save()


def shuffled(spark: SparkSession, prefix: str, distinct: int) -> DataFrame:
    """Rows after a shuffle whose tasks adaptive execution may merge. They fill Spark's buffers, so that the
    first ones are on their way before the last ones are made."""
    text = f"rpad(concat('{prefix}/', id % {distinct}), {ROW_BYTES}, ' ')"
    return spark.range(0, ROWS, 1, 2).selectExpr(f"{text} as body").repartition("body")


def texts(prefix: str, distinct: int) -> Counter[str]:
    """What such rows say."""
    return Counter(f"{prefix}/{number % distinct}" for number in range(ROWS))


def stored(spark: SparkSession, broker: BrokerProcess, queue: str, prefix: str) -> Counter[str]:
    """The messages of such rows."""
    found = (text.rstrip() for text in bodies(batch(spark, broker, queue).schema("body binary").load()))
    return Counter(text for text in found if text.startswith(f"{prefix}/"))


def save_with_failures(frame: DataFrame, broker: BrokerProcess, *, ids_by_position: bool) -> None:
    """Write rows of which the first attempt of each task fails when some are stored. The next attempt has the
    rows in another order."""
    endpoint = parse_endpoint(broker.addresses.connection_string())

    def count() -> int:
        with Node(endpoint, "unique", Patience(WAIT_S, WAIT_S)) as node:
            return sum(node.heads().messages.values())

    before = count()

    def rows_of_a_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        rows = [row for each in batches for row in each.to_pylist()]
        if task.attemptNumber():
            assert count() > before, "the first attempt stored something"
            rows.reverse()
        if ids_by_position:
            for place, row in enumerate(rows):
                row["message_id"] = f"{task.partitionId()}-{place}"
        for start in range(0, len(rows), PER_REQUEST):
            if start >= FAILS_AFTER and not task.attemptNumber():
                until_seen(lambda: count() > before)
                raise RuntimeError("the first attempt fails")
            yield pa.RecordBatch.from_pylist(rows[start : start + PER_REQUEST])

    schema = "body string, message_id string" if ids_by_position else "body string"
    with configured(frame.sparkSession, execution__arrow__maxRecordsPerBatch=str(PER_REQUEST)):
        save(frame.mapInArrow(rows_of_a_task, schema), broker, "unique")


@ADAPTIVE
def test_a_task_that_fails_halfway_and_runs_again_in_another_order_sends_every_row_once(
    spark: SparkSession, broker: BrokerProcess, adaptive: str
) -> None:
    prefix = f"adaptive={adaptive}"
    with configured(spark, adaptive__enabled=adaptive):
        save_with_failures(shuffled(spark, prefix, DISTINCT), broker, ids_by_position=False)
    assert stored(spark, broker, "unique", prefix) == texts(prefix, DISTINCT)


def test_ids_by_position_would_lose_rows_so_there_is_no_such_strategy(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    save_with_failures(shuffled(spark, "by-position", ROWS), broker, ids_by_position=True)
    found = stored(spark, broker, "unique", "by-position")
    assert found.total() == ROWS, "as many messages as rows, so nobody notices"
    lost = texts("by-position", ROWS) - found
    assert lost.total() >= PER_REQUEST, "an id that came to another row had that row dropped"
    with pytest.raises(AnalysisException, match="option 'idStrategy'"):
        save(spark.range(1).selectExpr("'a' as body"), broker, "unique", idStrategy="position")


@pytest.mark.parametrize(("strategy", "same_ids"), [("content-global", True), ("content", False)])
def test_rows_are_the_same_whether_execution_is_adaptive_and_so_are_ids_that_do_not_depend_on_the_task(
    spark: SparkSession, broker: BrokerProcess, strategy: str, same_ids: bool
) -> None:
    """Adaptive execution merges the two small tasks behind the shuffle into one."""
    prefix = f"ids={strategy}"
    ids: list[set[str]] = []
    for adaptive, queue in (("true", "again"), ("false", "executed")):
        with configured(spark, adaptive__enabled=adaptive):
            save(shuffled(spark, prefix, DISTINCT), broker, queue, idStrategy=strategy, writeId=strategy)
        assert stored(spark, broker, queue, prefix) == texts(prefix, DISTINCT)
        frame = batch(spark, broker, queue).schema("body binary, message_id string").load()
        of_rows = frame.where(f"cast(body as string) like '{prefix}/%'")
        ids.append({row.message_id for row in of_rows.select("message_id").collect()})
    assert [len(each) for each in ids] == [ROWS, ROWS]
    assert (ids[0] == ids[1]) is same_ids
