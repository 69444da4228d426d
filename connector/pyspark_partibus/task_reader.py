"""What a task of the source does: read its ranges and make Arrow batches of them. The same for batches and
streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_partibus.client.ranges import RangeReader
from pyspark_partibus.data_loss import report_loss
from pyspark_partibus.errors import DataLoss
from pyspark_partibus.messages.decoding import Decoder
from pyspark_partibus.messages.envelope import Envelope, Report
from pyspark_partibus.offsets import Range
from pyspark_partibus.options import SourceOptions
from pyspark_partibus.sharing import ranges_of_tasks
from pyspark_partibus.worker_memory import tune_garbage_collector

_log = logging.getLogger("pyspark_partibus")


@dataclass
class Task(InputPartition):
    """The ranges that one task reads."""

    generation: str
    ranges: tuple[Range, ...]
    undecided: bool = False
    """The ranges may end beyond the head."""


def tasks(
    options: SourceOptions, generation: str, ranges: list[Range], *, undecided: bool = False
) -> list[Task]:
    """The tasks of a batch; none if there is nothing to read."""
    return [
        Task(generation, tuple(each), undecided)
        for each in ranges_of_tasks(ranges, options.read_tasks, options.split_rows)
    ]


def read_task(options: SourceOptions, schema: StructType, task: Any) -> Iterator[pa.RecordBatch]:
    """Read the ranges of a task. Spark gives None instead of a task where there is nothing to read."""
    if options.tune_gc:
        tune_garbage_collector()
    if not isinstance(task, Task):
        return
    reader = RangeReader(
        options.endpoint,
        options.address,
        options.patience,
        generation=task.generation,
        messages=options.fetch_messages,
        size=options.fetch_bytes,
        undecided=task.undecided,
    )
    decoder = Decoder(
        to_arrow_schema(schema, timezone="UTC"), options.address, options.properties_as_json, options.keep_bad
    )
    for whole in task.ranges:
        report = Report()
        for envelope in _envelopes(reader, whole, options):
            report += envelope.report
            if envelope.sequence_numbers:
                yield decoder.decode(envelope)
        _report_gaps(report, whole, options)


def _envelopes(reader: RangeReader, whole: Range, options: SourceOptions) -> Iterator[Envelope]:
    """A range, or as much of it as there still is if the user is content with that."""
    try:
        yield from reader.envelopes(whole)
    except DataLoss as loss:
        report_loss(options, str(loss))


def _report_gaps(report: Report, whole: Range, options: SourceOptions) -> None:
    """Say which numbers of a range had no message, or fail if the user wants that."""
    gone = report.expired + report.dead_lettered + report.missing
    if not gone:
        return
    text = (
        f"{gone} of the {len(whole)} numbers from {whole.start} up to {whole.end} in partition "
        f"{whole.partition} of '{options.address}' have no message: {report}"
    )
    if options.fail_on_missing:
        raise DataLoss(f"{text}. With option onMissing=report the query goes on.")
    _log.warning(text)
