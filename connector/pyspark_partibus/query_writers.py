"""The sinks of batch and streaming queries: what runs in each task, and what the driver does when all tasks
are done.

Spark makes a new writer for each of these steps, so nothing is kept between them but what tasks hand to the
driver.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_partibus.client.operations import Node
from pyspark_partibus.identity import BATCH_PROPERTY, QUERY_PROPERTY, of_batch, of_stream
from pyspark_partibus.ids import random_id
from pyspark_partibus.options import SinkOptions
from pyspark_partibus.task_writer import TaskWriter, Written

_log = logging.getLogger("pyspark_partibus")
Messages = Sequence[WriterCommitMessage | None]


class PartibusBatchWriter(DataSourceArrowWriter):
    """Writes the rows of one batch query."""

    def __init__(self, options: SinkOptions, strategy: str, as_properties: Sequence[str]) -> None:
        self._options, self._strategy, self._as_properties = options, strategy, as_properties
        self._job = random_id()  # pickled with the writer, so all attempts of all tasks have the same

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send one task's rows."""
        identity = of_batch(self._options, self._strategy, _task().partitionId(), self._job)
        return TaskWriter(self._options, identity, self._as_properties).write(iterator)

    def commit(self, messages: Messages) -> None:
        """Note the write in the ledger, if it has a name."""
        commit_batch(self._options, messages, self._options.write_version)

    def abort(self, messages: Messages) -> None:
        """Say what was sent. Messages cannot be called back; a write with the same `writeId` does not repeat
        them."""
        _log_abort(messages)


class PartibusStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: SinkOptions, strategy: str, as_properties: Sequence[str]) -> None:
        self._options, self._strategy, self._as_properties = options, strategy, as_properties

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send one task's rows."""
        task = _task()
        properties = {name: task.getLocalProperty(name) for name in (BATCH_PROPERTY, QUERY_PROPERTY)}
        identity = of_stream(self._options, self._strategy, task.partitionId(), properties)
        return TaskWriter(self._options, identity, self._as_properties).write(iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """Note the batch in the ledger, so that it is not sent again."""
        commit_batch(self._options, messages, batchId)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """Say what was sent. The batch will be written again, with the same ids."""
        _log_abort(messages)


def commit_batch(options: SinkOptions, messages: Messages, batch: int) -> None:
    """Note a batch in the ledger of each target. Repeats the request while the broker is not available,
    because a failure would have Spark write the whole batch again; a batch that was noted before is no
    error."""
    done = [each for each in messages if isinstance(each, Written)]
    for sink, target in sorted(
        {(each.sink, target) for each in done if each.sink for target in each.targets}
    ):
        assert sink is not None
        with Node(options.endpoint, target, options.patience) as node:
            node.commit_batch(sink, batch)
    total = _sum(done)
    if total.duplicates or total.skipped:
        _log.warning("batch %d: %s", batch, _described(total))
    else:
        _log.info("batch %d: %s", batch, _described(total))


def _log_abort(messages: Messages) -> None:
    done = [each for each in messages if isinstance(each, Written)]
    _log.warning(
        "the write was given up after %d of %d tasks had finished: %s",
        len(done),
        len(messages),
        _described(_sum(done)),
    )


def _sum(done: Sequence[Written]) -> Written:
    return Written(
        None,
        (),
        sum(each.rows for each in done),
        sum(each.size for each in done),
        sum(each.duplicates for each in done),
        sum(each.skipped for each in done),
        max((each.seconds for each in done), default=0.0),
    )


def _described(total: Written) -> str:
    return (
        f"{total.rows} messages of {total.size} bytes sent in {total.seconds:.2f} s, {total.duplicates} of "
        f"them duplicates; {total.skipped} skipped, because their batch was committed before"
    )


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "rows are written in tasks only"
    return task
