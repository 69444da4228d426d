"""Cursors and completed messages follow what Spark has committed: all of it, and never more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_partibus.client.operations import Node
from pyspark_partibus.client.patience import Patience
from pyspark_partibus.endpoint import parse_endpoint
from tests.support.broker_process import BrokerProcess
from tests.support.spark_queries import ENDS_WITHIN_S, batch, bodies, run_to_the_end, send, stream, written

PATIENCE = Patience(10, 10)
TEXTS = {f"key-{key}": [f"{key}/{number}" for number in range(10)] for key in range(10)}
ALL = sorted(text for texts in TEXTS.values() for text in texts)


def node(broker: BrokerProcess, queue: str) -> Node:
    return Node(parse_endpoint(broker.addresses.connection_string()), queue, PATIENCE)


def test_a_run_that_ends_by_itself_leaves_its_cursor_at_the_end(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    send(broker, "orders", TEXTS)
    frame = stream(
        spark, broker, "orders", cursor="a", startingOffsets="earliest", maxMessagesPerTrigger=60
    ).load()
    run_to_the_end(frame, tmp_path)
    cursor = node(broker, "orders").cursor("a")
    assert cursor is not None
    assert cursor.positions == node(broker, "orders").heads().heads
    assert bodies(batch(spark, broker, "orders").load()) == ALL, "a cursor removes nothing"
    other = stream(spark, broker, "orders", cursor="a", startingOffsets="committed").load()
    with pytest.raises(
        StreamingQueryException, match="option 'cursor': 'a' of 'orders' belongs to another query"
    ):
        run_to_the_end(other, tmp_path / "other")
    send(broker, "orders", {"key-0": ["later"]})
    taken = stream(
        spark, broker, "orders", cursor="a", startingOffsets="committed", cursorTakeover="true"
    ).load()
    run_to_the_end(taken, tmp_path / "taken")
    assert bodies(written(spark, tmp_path / "taken")) == ["later"]


def test_a_stream_can_drain_its_queue(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    send(broker, "other", TEXTS)
    frame = stream(spark, broker, "other", settle="complete", startingOffsets="earliest").load()
    run_to_the_end(frame, tmp_path)
    assert bodies(written(spark, tmp_path)) == ALL
    assert sum(node(broker, "other").heads().messages.values()) == 0


def test_a_batch_that_fails_is_not_settled_and_is_read_again(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    frame = stream(spark, broker, "plain", cursor="c", startingOffsets="earliest", settle="complete").load()
    seen: list[list[str]] = []
    fails = {2}
    """Which of the calls fail."""

    def sink(rows: Any, number: int) -> None:
        seen.append(bodies(rows))
        if len(seen) in fails:
            raise RuntimeError("the sink fails")

    def run() -> None:
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
        assert writer.trigger(availableNow=True).start().awaitTermination(ENDS_WITHIN_S)

    send(broker, "plain", {"a": ["first"]})
    run()
    send(broker, "plain", {"a": ["second"]})
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        run()
    assert bodies(batch(spark, broker, "plain").load()) == ["second"]
    cursor = node(broker, "plain").cursor("c")
    assert cursor is not None
    assert cursor.positions == {0: 2}
    send(broker, "plain", {"a": ["third"]})
    run()
    assert seen == [["first"], ["second"], ["second"], ["third"]]
    assert node(broker, "plain").heads().messages == {0: 0}
