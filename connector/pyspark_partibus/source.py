"""The data source that Spark finds. Its methods check options and schemas and make readers and writers; none
of them connects."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_partibus.batch_reader import PartibusBatchReader
from pyspark_partibus.columns import check_source_schema, full_schema
from pyspark_partibus.errors import OptionError
from pyspark_partibus.options import SourceOptions, source_options
from pyspark_partibus.stream_reader import PartibusStreamReader


class PartibusDataSource(DataSource):
    """`format("partibus")`."""

    @classmethod
    def name(cls) -> str:
        return "partibus"

    def schema(self) -> StructType:
        """The columns of a query without a schema of its own."""
        options = source_options(self.options)
        return full_schema(properties_as_json=options.properties_as_json, with_error=options.keep_bad)

    def reader(self, schema: StructType) -> DataSourceReader:
        return PartibusBatchReader(self._source(schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = self._source(schema)
        if options.cursor is None and options.settle == "cursor":
            raise OptionError(
                "cursor",
                "is missing: the name under which the broker keeps the query's position (or settle=none)",
            )
        for option, value in (("endingOffsets", options.ending), ("endingTimestamp", options.ending_time_ms)):
            if value is not None:
                raise OptionError(option, "is for batch queries only")
        return PartibusStreamReader(options, schema)

    def _source(self, schema: StructType) -> SourceOptions:
        options = source_options(self.options)
        check_source_schema(schema, properties_as_json=options.properties_as_json)
        return options
