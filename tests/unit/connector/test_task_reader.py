"""What a task reads, over a stand-in for the broker's envelopes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from pyspark_partibus import task_reader
from pyspark_partibus.columns import full_schema
from pyspark_partibus.errors import DataLoss
from pyspark_partibus.messages.envelope import Envelope, Report, read_envelope
from pyspark_partibus.offsets import Range
from pyspark_partibus.options import source_options
from pyspark_partibus.task_reader import Task, read_task, tasks
from tests.support.spark_envelopes import envelope, section

OPTIONS = {"endpoint": "amqp://host", "entity": "orders", "tuneWorkerGc": "false"}
SCHEMA = full_schema(properties_as_json=False, with_error=False)
REPORT = Report(missing=2)


class FakeRanges:
    """Stands in for `RangeReader`: two messages, and an envelope without any."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def envelopes(self, whole: Range) -> Iterator[Envelope]:
        yield read_envelope(envelope([section(0x75, b"a"), section(0x75, b"b")], first=whole.first))
        yield read_envelope(envelope([], first=whole.first + 2, missing=REPORT.missing))


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_reader, "RangeReader", FakeRanges)


def test_a_task_makes_one_arrow_batch_of_each_envelope_with_messages() -> None:
    (task,) = tasks(source_options({**OPTIONS, "readTasks": "1"}), "gen", [Range(0, 1, 5), Range(1, 1, 5)])
    batches = list(read_task(source_options(OPTIONS), SCHEMA, pickle.loads(pickle.dumps(task))))
    assert [each.num_rows for each in batches] == [2, 2]
    assert [each.column("partition").to_pylist() for each in batches] == [[0, 0], [1, 1]]


def test_spark_may_give_no_task() -> None:
    assert list(read_task(source_options(OPTIONS), SCHEMA, None)) == []
    assert tasks(source_options(OPTIONS), "gen", []) == []


def test_missing_numbers_fail_the_query_if_the_user_wants_that() -> None:
    task = Task("gen", (Range(0, 1, 5),))
    with pytest.raises(
        DataLoss, match=r"2 of the 4 numbers from 1 up to 5 in partition 0 of 'orders'.*2 missing"
    ):
        list(read_task(source_options({**OPTIONS, "onMissing": "fail"}), SCHEMA, task))


def test_missing_numbers_are_in_the_task_s_log(caplog: pytest.LogCaptureFixture) -> None:
    """Python shows warnings where nobody has set up its logging, as in Spark's workers."""
    caplog.set_level("WARNING")
    list(read_task(source_options(OPTIONS), SCHEMA, Task("gen", (Range(0, 1, 5),))))
    assert "2 of the 4 numbers from 1 up to 5 in partition 0 of 'orders' have no message" in caplog.text


def test_a_task_goes_on_after_a_data_loss_if_the_user_wants_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: object, whole: Range) -> Iterator[Envelope]:
        if whole.partition == 0:
            raise DataLoss("created again")
        yield read_envelope(envelope([section(0x75, b"a")], first=whole.first))

    monkeypatch.setattr(FakeRanges, "envelopes", lost)
    task = Task("gen", (Range(0, 1, 5), Range(1, 1, 2)))
    with pytest.raises(DataLoss, match=r"created again\. With option failOnDataLoss=false"):
        list(read_task(source_options(OPTIONS), SCHEMA, task))
    batches = list(read_task(source_options({**OPTIONS, "failOnDataLoss": "false"}), SCHEMA, task))
    assert [each.column("partition").to_pylist() for each in batches] == [[1]]
