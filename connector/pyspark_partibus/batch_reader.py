"""The source of batch queries: everything between two positions of each partition. Settles nothing.

A batch query reads what there is. It does not go on later, so it need not wait, as a stream must, until no
older message can follow into a dead-letter queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from pyspark_partibus.client.operations import Node
from pyspark_partibus.offsets import Range
from pyspark_partibus.option_values import EARLIEST
from pyspark_partibus.options import SourceOptions
from pyspark_partibus.starting import ending_positions, starting_positions
from pyspark_partibus.task_reader import Task, read_task, tasks


class PartibusBatchReader(DataSourceReader):
    """Plans and reads one batch query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> list[Task]:
        """The tasks. The positions are looked up once, here, so that every attempt reads the same."""
        options = self._options
        with Node(options.endpoint, options.address, options.patience) as node:
            heads, starts = starting_positions(node, options, EARLIEST, undecided=True)
            ends = ending_positions(node, heads, options)
        # Numbers before the oldest message have no message; leaving them out gives tasks an even share.
        ranges = [
            Range(partition, max(starts[partition], heads.starts[partition]), end)
            for partition, end in sorted(ends.items())
        ]
        return tasks(options, heads.generation, [each for each in ranges if len(each)], undecided=True)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read one task's messages."""
        return read_task(self._options, self._schema, partition)
