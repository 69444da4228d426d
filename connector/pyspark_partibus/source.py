"""The data source that Spark finds. Its methods check options and schemas and make readers and writers; none
of them connects."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from pyspark_partibus.batch_reader import PartibusBatchReader
from pyspark_partibus.columns import PROPERTIES, check_sink_schema, check_source_schema, full_schema
from pyspark_partibus.errors import OptionError, SchemaError
from pyspark_partibus.identity import SOURCE_ID_COLUMNS, choose_strategy
from pyspark_partibus.options import (
    SinkOptions,
    SourceOptions,
    check_batch_sink,
    check_batch_source,
    check_stream_source,
    sink_options,
    source_options,
)
from pyspark_partibus.query_writers import PartibusBatchWriter, PartibusStreamWriter
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
        options = self._source(schema)
        check_batch_source(self.options, options)
        return PartibusBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = self._source(schema)
        check_stream_source(self.options, options)
        return PartibusStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A batch query's sink."""
        options, strategy, as_properties = self._sink(schema, overwrite)
        check_batch_sink(self.options, options)
        return PartibusBatchWriter(options, strategy, as_properties)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """A streaming query's sink."""
        options, strategy, as_properties = self._sink(schema, overwrite)
        if options.write_id is not None:
            raise OptionError("writeId", "is for batch queries; a stream has 'sinkId'")
        return PartibusStreamWriter(options, strategy, as_properties)

    def _sink(self, schema: StructType, overwrite: bool) -> tuple[SinkOptions, str, list[str]]:
        if overwrite:
            raise SchemaError("messages cannot be overwritten: use the mode 'append'")
        options = sink_options(self.options)
        strategy = choose_strategy(options, schema.names)
        as_properties = check_sink_schema(
            schema,
            has_target=options.address is not None,
            unknown_columns=options.unknown_columns,
            used_for_ids=SOURCE_ID_COLUMNS if strategy == "source" else (),
        )
        return options, strategy, as_properties

    def _source(self, schema: StructType) -> SourceOptions:
        options = source_options(self.options)
        check_source_schema(schema, properties_as_json=options.properties_as_json)
        if options.properties_as_json and PROPERTIES not in schema.names:
            raise OptionError("propertiesFormat", f"does nothing: the schema has no column '{PROPERTIES}'")
        return options
