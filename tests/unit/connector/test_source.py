"""The data source as Spark finds and calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import BinaryType, StringType, StructType

import pyspark_partibus
from pyspark_partibus.errors import OptionError, SchemaError
from pyspark_partibus.source import PartibusDataSource

CONNECTOR = Path(pyspark_partibus.__file__).parents[1]
BASE = {"endpoint": "amqp://host", "entity": "orders"}


def source(**given: str) -> PartibusDataSource:
    return PartibusDataSource({**BASE, **given})


def test_spark_finds_it_without_registration() -> None:
    found = pyspark_partibus.DefaultSource
    assert issubclass(found, DataSource)
    assert found.name() == "partibus"


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(CONNECTOR)!r}); import pyspark_partibus; "
        "assert not {'pyspark', 'pyarrow', 'proton', 'cproton_ffi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-I", "-c", program], check=True, timeout=60)


def test_without_its_dependencies_other_data_sources_are_still_found() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(CONNECTOR)!r}); sys.modules['pyarrow'] = None; import "
        "pyspark_partibus; "
        "assert not hasattr(pyspark_partibus, 'DefaultSource')"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], check=True, timeout=60, capture_output=True, text=True
    )
    assert "the Partibus data source cannot be loaded" in done.stderr
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = pyspark_partibus.Other


def test_a_version_of_spark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark_partibus.source", None)
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    with pytest.raises(ImportError, match=r"needs pyspark 4\.2 or newer, not 4\.1\.4"):
        _ = pyspark_partibus.PartibusDataSource
    assert not hasattr(pyspark_partibus, "DefaultSource")


def test_options_and_schemas_are_checked_before_anything_connects() -> None:
    with pytest.raises(OptionError, match="option 'entity': is missing"):
        PartibusDataSource({"endpoint": "amqp://host"}).schema()
    with pytest.raises(SchemaError):
        source().reader(StructType().add("body", StringType()))
    schema = source().schema()
    assert source().reader(schema)
    assert "raw" in source(onBadMessage="null").schema().names


def test_a_format_of_properties_that_nobody_reads_is_refused() -> None:
    body = StructType().add("body", BinaryType())
    for make in (
        source(propertiesFormat="json").reader,
        source(propertiesFormat="json", cursor="c").streamReader,
    ):
        with pytest.raises(OptionError, match="option 'propertiesFormat': does nothing"):
            make(body)
    assert source(propertiesFormat="json").reader(source(propertiesFormat="json").schema())


def test_a_stream_needs_a_cursor_unless_it_settles_nothing_or_completes() -> None:
    schema = source().schema()
    with pytest.raises(OptionError, match="option 'cursor'"):
        source().streamReader(schema)
    for given in ({"cursor": "c"}, {"settle": "none"}, {"settle": "complete"}):
        assert source(**given).streamReader(schema)
    for option in ("endingOffsets", "endingTimestamp"):
        with pytest.raises(OptionError, match=f"option '{option}': is for batch queries only"):
            source(cursor="c", **{option: '{"0": 1}' if option == "endingOffsets" else "5"}).streamReader(
                schema
            )


@pytest.mark.parametrize(
    "given",
    [
        {"settle": "complete"},
        {"settle": "cursor"},
        {"cursor": "c"},
        {"cursorTakeover": "true"},
        {"maxMessagesPerTrigger": "5"},
        {"maxBytesPerTrigger": "5"},
        {"minMessagesPerTrigger": "5"},
        {"minMessagesPerTrigger": "5", "maxTriggerDelay": "1m"},
        {"headPollMs": "5"},
    ],
)
def test_a_batch_query_refuses_what_only_a_stream_can_do(given: dict[str, str]) -> None:
    schema = source().schema()
    with pytest.raises(OptionError, match=f"option '{next(iter(given))}': is for streams"):
        source(**given).reader(schema)
    assert source(settle="none", cursor="c", startingOffsets="committed").reader(schema)


def test_a_stream_refuses_options_that_would_do_nothing() -> None:
    schema = source().schema()
    for given in (
        {"cursorTakeover": "true", "settle": "complete"},
        {"cursorTakeover": "true", "settle": "none", "cursor": "c", "startingOffsets": "committed"},
        {"cursor": "c", "settle": "none"},
    ):
        with pytest.raises(OptionError, match=f"option '{next(iter(given))}'"):
            source(**given).streamReader(schema)
    assert source(settle="none", cursor="c", startingOffsets="committed").streamReader(schema)


def test_a_stream_that_completes_messages_steps_over_none_at_its_beginning() -> None:
    schema = source().schema()
    for start in ("latest", '{"0": 5}', '{"0": -1}'):
        with pytest.raises(OptionError, match="option 'startingOffsets': with settle=complete"):
            source(settle="complete", startingOffsets=start).streamReader(schema)
    with pytest.raises(OptionError, match="option 'startingTimestamp': with settle=complete"):
        source(settle="complete", startingTimestamp="5").streamReader(schema)
    for start in ("earliest", "committed"):
        assert source(settle="complete", cursor="c", startingOffsets=start).streamReader(schema)


def test_a_sink_is_checked_before_anything_is_sent() -> None:
    rows = StructType().add("body", StringType())
    assert source(writeId="w", requireExactlyOnce="true").writer(rows, False)
    assert source(sinkId="s", requireExactlyOnce="true").streamWriter(rows, False)
    for make in (source().writer, source().streamWriter):
        with pytest.raises(SchemaError, match="mode 'append'"):
            make(rows, True)
        with pytest.raises(SchemaError, match="no column 'body'"):
            make(StructType().add("subject", StringType()), False)
    with pytest.raises(OptionError, match="option 'requireExactlyOnce': needs option 'writeId'"):
        source(requireExactlyOnce="true").writer(rows, False)
    with pytest.raises(OptionError, match="option 'sinkId'"):
        source(sinkId="s").writer(rows, False)
    with pytest.raises(OptionError, match="option 'writeId'"):
        source(writeId="w").streamWriter(rows, False)
    with pytest.raises(OptionError, match="option 'cursor': is not an option of the sink"):
        source(cursor="c").streamWriter(rows, False)
