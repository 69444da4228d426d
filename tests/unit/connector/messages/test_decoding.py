"""Messages into Arrow columns, against what proton's own codec encodes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import proton
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_partibus.columns import COLUMNS, MORE_COLUMNS, full_schema
from pyspark_partibus.errors import BadMessage
from pyspark_partibus.messages.decoding import Decoder
from pyspark_partibus.messages.envelope import read_envelope
from tests.support.spark_envelopes import envelope


def decoder(*names: str, json: bool = False, keep_bad: bool = False) -> Decoder:
    schema = full_schema(properties_as_json=json, with_error=keep_bad)
    if names:
        types = COLUMNS | MORE_COLUMNS | ({"properties": StringType()} if json else {})
        schema = StructType([StructField(name, types[name]) for name in names])
    return Decoder(to_arrow_schema(schema, timezone="UTC"), "orders", json, keep_bad)


def message(body: Any = b"body", *, inferred: bool = True, **fields: Any) -> bytes:
    made = proton.Message(body=body, inferred=inferred)
    for name, value in fields.items():
        setattr(made, name, value)
    return bytes(made.encode())


def decoded(*messages: bytes, by: Decoder | None = None, **changed: Any) -> list[dict[str, Any]]:
    batch = (by or decoder()).decode(read_envelope(envelope(messages, **changed)))
    assert batch.schema == (by or decoder()).schema
    rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    return rows


def test_all_columns_of_a_message() -> None:
    encoded = message(
        id="id",
        correlation_id=UUID(int=5),
        address="to",
        subject="subject",
        reply_to="reply",
        reply_to_group_id="reply-session",
        content_type="text/plain",
        group_id="session",
        ttl=60.0,
        properties={"k": "v", "n": 1, "none": None},
        annotations={
            proton.symbol("x-opt-partition-key"): "session",
            proton.symbol("x-opt-scheduled-enqueue-time"): proton.timestamp(1_700_000_000_000),
        },
    )
    (row,) = decoded(encoded, first=(2 << 48) + 5)
    assert row == {
        "body": b"body",
        "body_type": "data",
        "partition": 2,
        "sequence_number": (2 << 48) + 5,
        "enqueued_time": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "message_id": "id",
        "correlation_id": "00000000-0000-0000-0000-000000000005",
        "session_id": "session",
        "subject": "subject",
        "to": "to",
        "reply_to": "reply",
        "reply_to_session_id": "reply-session",
        "content_type": "text/plain",
        "partition_key": "session",
        "delivery_count": 0,
        "time_to_live_ms": 60_000,
        "scheduled_enqueue_time": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "properties": {"k": "v", "n": "1", "none": None},
    }


def test_a_message_with_nothing_but_a_body_has_nulls() -> None:
    (row,) = decoded(message())
    assert {name for name, value in row.items() if value is not None} == {
        "body",
        "body_type",
        "partition",
        "sequence_number",
        "enqueued_time",
        "delivery_count",
    }


@pytest.mark.parametrize(
    ("encoded", "body", "kind"),
    [
        (message("text", inferred=False), b"text", "string"),
        (message(b"\x00\x01", inferred=False), b"\x00\x01", "value"),
        (message(proton.ulong(5), inferred=False), b"\x53\x05", "value"),
        (message([1], inferred=True), b"\xd0\x00\x00\x00\x06\x00\x00\x00\x01\x55\x01", "sequence"),
        (b"\x00\x53\x75\xa0\x01a\x00\x53\x75\xb0\x00\x00\x00\x02bc", b"abc", "data"),
        (b"\x00\x53\x75\xa0\x00", b"", "data"),
        (b"\x00\x53\x73\x45", None, None),
    ],
)
def test_bodies_of_all_kinds(encoded: bytes, body: bytes | None, kind: str | None) -> None:
    (row,) = decoded(encoded, by=decoder("body_type", "body"))
    assert (row["body"], row["body_type"]) == (body, kind)


def test_a_narrow_schema_takes_bodies_by_their_place_and_looks_at_nothing_else() -> None:
    narrow = decoder("sequence_number", "body", "entity", "partition")
    rows = decoded(b"?abc?", b"?de", bodies=[(1, 3), (6, 2)], by=narrow)
    assert rows == [
        {"sequence_number": 1, "body": b"abc", "entity": "orders", "partition": 0},
        {"sequence_number": 2, "body": b"de", "entity": "orders", "partition": 0},
    ]


def test_a_body_that_is_not_one_section_is_found_by_a_walk() -> None:
    assert decoded(message("text", inferred=False), by=decoder("body")) == [{"body": b"text"}]


def test_properties_as_json_keep_their_types() -> None:
    (row,) = decoded(message(properties={"n": 1, "b": True, "s": "1"}), by=decoder("properties", json=True))
    assert row == {"properties": '{"n":1,"b":true,"s":"1"}'}


def test_annotations_and_raw_bytes() -> None:
    encoded = message(annotations={proton.symbol("x-mine"): 5})
    (row,) = decoded(encoded, by=decoder("annotations", "raw"))
    assert row == {"annotations": {"x-mine": "5"}, "raw": encoded}


def test_a_bad_message_fails_with_its_number() -> None:
    with pytest.raises(BadMessage, match="message 8 of partition 0 of 'orders'"):
        decoded(message(), message()[:-1], first=7)


def test_a_bad_message_can_be_kept_as_bytes_beside_the_others() -> None:
    good, bad, wrong = message(), message()[:-1], b"\x00\x53\x75\x40"
    rows = decoded(good, bad, wrong, by=decoder(keep_bad=True))
    assert [row["error"] is None for row in rows] == [True, False, False]
    assert [row["raw"] for row in rows] == [good, bad, wrong]
    assert [row["body"] for row in rows] == [b"body", None, None]
    assert [row["sequence_number"] for row in rows] == [1, 2, 3]


def test_values_that_no_column_can_hold_make_a_bad_message() -> None:
    """The broker stores such messages: the one has passed its scheduled time, the other has any property."""
    scheduled = {proton.symbol("x-opt-scheduled-enqueue-time"): proton.timestamp(-(1 << 63))}
    half_a_character = b"\x00\x53\x74\xc1\x09\x02\xa1\x01k\x73\x00\x00\xd8\x00" + message()
    rows = decoded(message(annotations=scheduled), half_a_character, message(), by=decoder(keep_bad=True))
    assert [row["body"] for row in rows] == [None, None, b"body"]
    assert "is -9223372036854775808 ms" in rows[0]["error"] and "55296 is no character" in rows[1]["error"]


def test_no_messages_are_an_empty_batch() -> None:
    assert decoded() == []
    assert pa.types.is_binary(decoder().schema.field("body").type)
