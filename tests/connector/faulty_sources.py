"""Data sources to which something happens at one moment, for the tests in which Spark runs a batch again.
Spark's processes import them from here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceStreamReader, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_partibus.client.operations import Node
from pyspark_partibus.client.values import Described, ULong, encode
from pyspark_partibus.messages.sections import DATA
from pyspark_partibus.options import source_options
from pyspark_partibus.source import PartibusDataSource
from pyspark_partibus.stream_reader import PartibusStreamReader

BEFORE, AFTER = "before", "after"
AT_THE_START = 2
"""Messages."""


class CommitFails(PartibusDataSource):
    """A sink whose commit fails `before` or `after` the ledger has the batch, as the option `commitfails`
    says."""

    @classmethod
    def name(cls) -> str:
        return "partibus-commit-fails"

    def __init__(self, options: dict[str, str]) -> None:
        given = dict(options)
        self._moment = given.pop("commitfails")
        super().__init__(given)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return _FailingWriter(super().streamWriter(schema, overwrite), self._moment)


class _FailingWriter(DataSourceStreamArrowWriter):
    def __init__(self, writer: DataSourceStreamArrowWriter, moment: str) -> None:
        self._writer, self._moment = writer, moment

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._moment == AFTER:
            self._writer.commit(messages, batchId)
        raise RuntimeError(f"the commit fails {self._moment} the ledger is written")


class TrafficAtTheStart(PartibusDataSource):
    """A source that gets messages whenever Spark has asked where a query begins, before it asks for
    anything else."""

    @classmethod
    def name(cls) -> str:
        return "partibus-traffic-at-the-start"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _Reader(source_options(self.options), schema)


class _Reader(PartibusStreamReader):
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        offset = super().initialOffset()
        with Node(self._options.endpoint, self._options.address, self._options.patience) as node:
            node.send([encode(Described(ULong(DATA), b"at the start"))] * AT_THE_START)
        return offset
