"""A batch whose commit fails is written again. What its target knows decides what becomes of the rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.connector.faulty_sources import AFTER, BEFORE, CommitFails
from tests.support.broker_process import BrokerProcess
from tests.support.spark_queries import ENDS_WITHIN_S, batch, bodies, options

TEXTS = [f"row-{number % 30}" for number in range(40)]
"""Some of them twice."""


@pytest.mark.parametrize(
    ("queue", "copies"), [("unique", 1), ("other", 2)], ids=["detection on", "detection off"]
)
def test_a_batch_whose_commit_fails_is_sent_again_until_the_ledger_has_it(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, queue: str, copies: int
) -> None:
    """Before the ledger has the batch, only duplicate detection tells its rows from new ones; afterwards they
    are not even sent."""
    spark.dataSource.register(CommitFails)
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "first.txt").write_text("\n".join(TEXTS))

    def run(sink: str, **given: str) -> None:
        frame = spark.readStream.schema("body string").text(str(rows))
        writer = frame.writeStream.format(sink).options(**options(broker, queue), **given)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(ENDS_WITHIN_S)

    def found() -> Counter[str]:
        return Counter(bodies(batch(spark, broker, queue).schema("body binary").load()))

    once = Counter(TEXTS)
    sent_again = Counter({text: copies * count for text, count in once.items()})
    expected = {BEFORE: once, AFTER: sent_again}
    for moment in (BEFORE, AFTER):
        with pytest.raises(StreamingQueryException, match=f"the commit fails {moment} the ledger"):
            run(CommitFails.name(), commitFails=moment)
        assert found() == expected[moment]
    (rows / "second.txt").write_text("of the next batch")
    run("partibus")
    assert found() == sent_again + Counter(["of the next batch"])
