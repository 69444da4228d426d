"""The schemas of source and sink, checked at planning."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_partibus.columns import COLUMNS, check_sink_schema, check_source_schema, full_schema
from pyspark_partibus.errors import SchemaError

BODY = StructType().add("body", BinaryType())


def test_the_full_schema_is_nullable_and_passes_its_own_check() -> None:
    schema = full_schema(properties_as_json=False, with_error=False)
    assert schema.names == list(COLUMNS)
    assert all(field.nullable for field in schema)
    check_source_schema(schema, properties_as_json=False)
    check_source_schema(full_schema(properties_as_json=True, with_error=True), properties_as_json=True)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (StructType().add("bdy", BinaryType()), "'bdy' is unknown"),
        (StructType().add("body", StringType()), "'body' is string in the schema, but must be binary"),
        (StructType().add("body", BinaryType(), nullable=False), "must be nullable"),
        (StructType().add("properties", StringType()), "'properties' is string"),
        (StructType(), "no columns"),
        (StructType().add("Body", BinaryType()), "'Body' must be called 'body'"),
        (StructType().add("body", BinaryType()).add("body", BinaryType()), "two columns 'body'"),
    ],
)
def test_a_schema_that_the_source_does_not_have_is_refused(schema: StructType, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        check_source_schema(schema, properties_as_json=False)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (
            StructType().add("value", StringType()),
            "no column 'body', which holds the message; there is value",
        ),
        (StructType().add("BODY", BinaryType()), "'BODY' must be called 'body'"),
        (StructType().add("body", BinaryType()).add("body", StringType()), "two columns 'body'"),
        (StructType().add("body", IntegerType()), "'body' is int, but must be binary or string"),
        (StructType().add("body", BinaryType()).add("amount", LongType()), "'amount' cannot be sent"),
        (
            StructType().add("body", BinaryType()).add("partition", IntegerType()),
            "'partition' cannot be sent",
        ),
        (StructType().add("body", BinaryType()).add("subject", LongType()), "'subject' is bigint"),
        (
            StructType().add("body", BinaryType()).add("scheduled_enqueue_time", LongType()),
            "scheduled_enqueue_time",
        ),
        (
            StructType().add("body", BinaryType()).add("properties", MapType(LongType(), StringType())),
            "properties",
        ),
        (
            StructType()
            .add("body", BinaryType())
            .add("properties", MapType(StringType(), StringType()))
            .add("properties_json", StringType()),
            "both",
        ),
    ],
)
def test_a_schema_that_cannot_be_sent_is_refused(schema: StructType, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        check_sink_schema(schema, has_target=True, unknown_columns="error")


def test_without_a_target_each_row_names_its_own() -> None:
    with pytest.raises(SchemaError, match="neither the option 'entity'"):
        check_sink_schema(BODY, has_target=False, unknown_columns="error")
    check_sink_schema(
        StructType([*BODY]).add("entity", StringType()), has_target=False, unknown_columns="error"
    )


def test_unknown_columns_can_be_ignored_or_become_properties() -> None:
    schema = StructType([*full_schema(properties_as_json=False, with_error=False)]).add(
        "amount", DoubleType()
    )
    assert check_sink_schema(schema, has_target=True, unknown_columns="ignore") == []
    assert check_sink_schema(schema, has_target=True, unknown_columns="property") == ["amount"]
    with pytest.raises(SchemaError, match="cannot be an application property"):
        check_sink_schema(
            StructType([*BODY]).add("list", ArrayType(LongType())),
            has_target=True,
            unknown_columns="property",
        )


def test_a_message_can_be_scheduled() -> None:
    schema = StructType([*BODY]).add("scheduled_enqueue_time", TimestampType())
    assert check_sink_schema(schema, has_target=True, unknown_columns="error") == []
