"""The columns of the source and the sink: names, types, and the checks of a user's schema, made before
anything is read or sent."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_partibus.errors import SchemaError

TEXT = (
    "message_id",
    "correlation_id",
    "session_id",
    "subject",
    "to",
    "reply_to",
    "reply_to_session_id",
    "content_type",
)
"""The columns that are properties of a message (§3.2.4)."""
PROPERTIES = "properties"
PROPERTIES_JSON = "properties_json"

_text = StringType()
COLUMNS: dict[str, DataType] = {
    "body": BinaryType(),
    "body_type": _text,
    "partition": IntegerType(),
    "sequence_number": LongType(),
    "enqueued_time": TimestampType(),
    **dict.fromkeys(TEXT, _text),
    "partition_key": _text,
    "delivery_count": IntegerType(),
    "time_to_live_ms": LongType(),
    "scheduled_enqueue_time": TimestampType(),
    PROPERTIES: MapType(_text, _text),
}
"""What the source reads unless the user gives a schema."""
MORE_COLUMNS: dict[str, DataType] = {
    "entity": _text,
    "annotations": MapType(_text, _text),
    "raw": BinaryType(),
    "error": _text,
}
"""What a user's schema may name besides."""
OF_SOURCE_ONLY = frozenset(
    (
        "body_type",
        "partition",
        "sequence_number",
        "enqueued_time",
        "delivery_count",
        "annotations",
        "raw",
        "error",
    )
)
"""Columns of the source that say nothing about a message that is to be sent."""
SENT = (
    "body",
    *TEXT,
    "partition_key",
    "entity",
    "time_to_live_ms",
    "scheduled_enqueue_time",
    PROPERTIES,
    PROPERTIES_JSON,
)
"""The columns of the sink."""
_SIMPLE = (
    StringType,
    LongType,
    IntegerType,
    ShortType,
    DoubleType,
    FloatType,
    BooleanType,
    BinaryType,
    TimestampType,
)
"""Types of values that can be application properties."""


def full_schema(*, properties_as_json: bool, with_error: bool) -> StructType:
    """What the source reads unless the user says otherwise."""
    schema = StructType()
    for name, kind in COLUMNS.items():
        schema.add(name, _text if name == PROPERTIES and properties_as_json else kind)
    if with_error:
        schema.add("raw", MORE_COLUMNS["raw"]).add("error", MORE_COLUMNS["error"])
    return schema


def check_source_schema(schema: StructType, *, properties_as_json: bool) -> None:
    """Raise SchemaError unless the source has every column of a user's schema, with this type."""
    known = {**COLUMNS, **MORE_COLUMNS}
    if properties_as_json:
        known[PROPERTIES] = _text
    _check_names(schema, known)
    for field in schema.fields:
        kind = known.get(field.name)
        if kind is None:
            raise SchemaError(f"column '{field.name}' is unknown; the source has {', '.join(known)}")
        if field.dataType.simpleString() != kind.simpleString():
            raise SchemaError(
                f"column '{field.name}' is {field.dataType.simpleString()} in the schema, but must be "
                f"{kind.simpleString()}"
            )
        if not field.nullable:
            raise SchemaError(f"column '{field.name}' must be nullable")
    if not schema.fields:
        raise SchemaError("the schema has no columns")


def check_sink_schema(
    schema: StructType, *, has_target: bool, unknown_columns: str, used_for_ids: Collection[str] = ()
) -> list[str]:
    """Raise SchemaError unless rows of this schema can become messages. Gives the names of the columns that
    become application properties."""
    as_properties = []
    _check_names(schema, SENT)
    kinds = {field.name: field.dataType for field in schema.fields}
    if "body" not in kinds:
        raise SchemaError(f"there is no column 'body', which holds the message; there is {', '.join(kinds)}")
    for name, kind in kinds.items():
        if (wanted := _sink_types(name)) is not None:
            if not isinstance(kind, wanted):
                names = " or ".join(each().simpleString() for each in wanted)
                raise SchemaError(f"column '{name}' is {kind.simpleString()}, but must be {names}")
        elif name == PROPERTIES:
            _check_properties(kind)
        elif name in used_for_ids:
            continue
        elif unknown_columns == "property" and name not in OF_SOURCE_ONLY:
            if not isinstance(kind, _SIMPLE):
                raise SchemaError(
                    f"column '{name}' is {kind.simpleString()}, which cannot be an application property"
                )
            as_properties.append(name)
        elif unknown_columns == "error":
            raise SchemaError(
                f"column '{name}' cannot be sent; drop it, or use option 'unknownColumns': 'ignore', or "
                "'property' to send it as an application property"
            )
    if not has_target and "entity" not in kinds:
        raise SchemaError("there is neither the option 'entity' nor a column 'entity'")
    if PROPERTIES in kinds and PROPERTIES_JSON in kinds:
        raise SchemaError(f"there are both '{PROPERTIES}' and '{PROPERTIES_JSON}'")
    return as_properties


def _check_names(schema: StructType, known: Collection[str]) -> None:
    """Raise SchemaError for two columns of one name, and for a known name in capitals."""
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise SchemaError(f"there are two columns '{name}'")
        if name not in known and name.lower() in known:
            raise SchemaError(f"column '{name}' must be called '{name.lower()}'")


def _sink_types(name: str) -> tuple[type[DataType], ...] | None:
    """The types that a column of the sink may have; None for columns that the sink does not know."""
    if name == "body":
        return (BinaryType, StringType)
    if name in TEXT or name in ("partition_key", "entity", PROPERTIES_JSON):
        return (StringType,)
    if name == "time_to_live_ms":
        return (LongType, IntegerType)
    return (TimestampType,) if name == "scheduled_enqueue_time" else None


def _check_properties(kind: DataType) -> None:
    if not (
        isinstance(kind, MapType)
        and isinstance(kind.keyType, StringType)
        and isinstance(kind.valueType, _SIMPLE)
    ):
        raise SchemaError(
            f"column '{PROPERTIES}' is {kind.simpleString()}, but must be a map of strings to simple values"
        )
