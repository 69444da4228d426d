"""Arrow columns into messages that proton's own codec reads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import proton
import pyarrow as pa
import pytest

from pyspark_partibus.errors import BadRow
from pyspark_partibus.messages.encoding import Encoder, Outgoing

TIME = datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
STRINGS = pa.map_(pa.string(), pa.string())


def encoded(
    columns: dict[str, Any], *, as_properties: Sequence[str] = (), makes_ids: bool = True
) -> list[Outgoing]:
    batch = pa.RecordBatch.from_arrays(
        [each if isinstance(each, pa.Array) else pa.array(each) for each in columns.values()],
        names=list(columns),
    )
    encoder = Encoder(as_properties, makes_ids)
    return list(encoder.encode(batch, lambda row, content: f"id-{row}"))


def message(outgoing: Outgoing) -> proton.Message:
    made = proton.Message()
    made.decode(outgoing[2])
    made.body = owned(made.body)
    if made.properties is not None:
        made.properties = {name: owned(each) for name, each in made.properties.items()}
    return made


def owned(value: Any) -> Any:
    """proton gives binary values as views of memory of its own."""
    return bytes(value) if isinstance(value, memoryview) else value


def test_all_columns_become_a_message() -> None:
    (outgoing,) = encoded(
        {
            "body": [b"body"],
            "message_id": ["mine"],
            "correlation_id": ["correlation"],
            "session_id": ["session"],
            "partition_key": ["session"],
            "subject": ["ö" * 200],
            "to": ["to"],
            "reply_to": ["reply"],
            "reply_to_session_id": ["reply-session"],
            "content_type": ["text/plain"],
            "time_to_live_ms": [60_000],
            "scheduled_enqueue_time": pa.array([TIME], pa.timestamp("us", "UTC")),
            "properties": pa.array([[("k", "v"), ("none", None)]], STRINGS),
            "entity": ["orders"],
        },
        makes_ids=False,
    )
    made = message(outgoing)
    assert outgoing[:2] == ("orders", "session")
    assert (made.body, made.id, made.correlation_id, made.group_id) == (
        b"body",
        "mine",
        "correlation",
        "session",
    )
    assert (made.subject, made.address, made.reply_to) == ("ö" * 200, "to", "reply")
    assert (made.reply_to_group_id, made.content_type, made.ttl) == ("reply-session", "text/plain", 60)
    assert made.properties == {"k": "v", "none": None}
    assert made.annotations == {
        "x-opt-partition-key": "session",
        "x-opt-scheduled-enqueue-time": proton.timestamp(1_700_000_000_123),
    }


def test_nulls_are_left_out() -> None:
    (outgoing,) = encoded(
        {
            "body": ["text"],
            "subject": pa.array([None], pa.string()),
            "properties": pa.array([None], STRINGS),
            "time_to_live_ms": pa.array([None], pa.int64()),
            "partition_key": pa.array([None], pa.string()),
        }
    )
    made = message(outgoing)
    assert (made.body, made.id, made.subject, made.properties) == (b"text", "id-0", None, None)
    assert outgoing[:2] == (None, "id-0")


@pytest.mark.parametrize(
    ("kind", "value", "sent"),
    [
        (pa.int64(), 5, 5),
        (pa.int32(), -(2**31), -(2**31)),
        (pa.float64(), 0.5, 0.5),
        (pa.bool_(), True, True),
        (pa.binary(), b"\x00", b"\x00"),
        (pa.timestamp("us", "UTC"), TIME, proton.timestamp(1_700_000_000_123)),
    ],
)
def test_properties_of_all_types_in_a_map_and_in_columns_of_their_own(
    kind: pa.DataType, value: object, sent: object
) -> None:
    (outgoing,) = encoded(
        {
            "body": [b""],
            "properties": pa.array([[("k", value)]], pa.map_(pa.string(), kind)),
            "own": pa.array([value], kind),
        },
        as_properties=["own"],
    )
    properties = message(outgoing).properties
    assert properties is not None
    assert properties == {"k": sent, "own": sent}
    assert type(properties["k"]) is type(properties["own"])  # 1 == True


def test_properties_from_json_keep_their_types() -> None:
    (outgoing,) = encoded({"body": [b""], "properties_json": ['{"n": 1, "s": "1", "t": {"$timestamp": 5}}']})
    assert message(outgoing).properties == {"n": 1, "s": "1", "t": proton.timestamp(5)}


def test_large_bodies_and_many_rows_keep_their_order() -> None:
    bodies = [b"x" * size for size in (0, 255, 256, 70_000)]
    assert [message(each).body for each in encoded({"body": bodies})] == bodies


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"body": pa.array([None], pa.binary())}, "no body"),
        ({"body": ["b"], "session_id": ["a"], "partition_key": ["b"]}, "differ"),
        ({"body": ["b"], "session_id": ["a" * 129]}, "129 characters"),
        ({"body": ["b"], "time_to_live_ms": [0]}, "time_to_live_ms"),
        ({"body": ["b"], "content_type": ["ö"]}, "content_type"),
        ({"body": ["b"], "properties_json": ["[]"]}, "properties_json"),
    ],
)
def test_a_row_that_cannot_be_sent_says_why(columns: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadRow, match=problem):
        encoded(columns)


def test_an_id_column_must_have_ids() -> None:
    with pytest.raises(BadRow, match="message_id"):
        encoded({"body": ["b"], "message_id": pa.array([None], pa.string())}, makes_ids=False)


def test_the_content_for_an_id_is_everything_but_the_id() -> None:
    seen = []

    def make_id(row: int, content: Sequence[bytes]) -> str:
        seen.append(tuple(content))
        return str(row)

    rows = {
        "body": ["b", "b", "c", "b"],
        "subject": ["s", "s", "s", "t"],
        "message_id": ["1", "2", "3", "4"],
    }
    batch = pa.RecordBatch.from_pydict(rows)
    ids = [message(each).id for each in Encoder((), True).encode(batch, make_id)]
    assert ids == ["0", "1", "2", "3"]
    assert seen[0] == seen[1]
    assert len({*seen}) == 3
