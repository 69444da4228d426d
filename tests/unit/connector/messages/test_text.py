"""Values as text and JSON."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from pyspark_partibus.client.values import Decimal, Described, Symbol, Timestamp, decode, encode
from pyspark_partibus.errors import BadRow
from pyspark_partibus.messages.text import json_value, properties_from_json, text_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("a", "a"),
        (Symbol("s"), "s"),
        (True, "true"),
        (7, "7"),
        (0.25, "0.25"),
        (b"\x00\xff", "00ff"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Timestamp(1_700_000_000_123), "2023-11-14T22:13:20.123Z"),
        (Timestamp(2**62), str(2**62)),
        ([1, b"\x00"], '[1,{"$binary":"AA=="}]'),
        ({"k": Timestamp(5)}, '{"k":{"$timestamp":5}}'),
        (Described(1, "v"), '"v"'),
        (Decimal(b"\x00"), '{"$binary":"AA=="}'),
    ],
)
def test_values_as_text(value: object, text: str | None) -> None:
    assert text_of(value) == text


def test_properties_keep_their_types_in_json() -> None:
    properties = {
        "s": "a",
        "i": 1,
        "f": 0.5,
        "b": b"\x01",
        "t": Timestamp(5),
        "u": UUID(int=3),
        "n": None,
        "x": True,
    }
    again = properties_from_json(json.dumps(json_value(properties)))
    decoded = {name: decode(each)[0] for name, each in again.items()}
    assert decoded == properties
    assert [type(each) for each in decoded.values()] == [type(each) for each in properties.values()]
    assert again["i"] == encode(1)


@pytest.mark.parametrize(
    ("encoded", "text", "written"),
    [
        (b"\x50\x05", "5", 5),  # ubyte
        (b"\x60\x00\x05", "5", 5),  # ushort
        (b"\x70\x00\x00\x00\x05", "5", 5),  # uint
        (b"\x53\x05", "5", 5),  # ulong
        (b"\x51\x05", "5", 5),  # byte
        (b"\x61\x00\x05", "5", 5),  # short
        (b"\x71\x00\x00\x00\x05", "5", 5),  # int
        (b"\x72\x3f\xc0\x00\x00", "1.5", 1.5),  # float
        (b"\x73\x00\x00\x00A", '"A"', "A"),  # char
        (b"\xa3\x01A", '"A"', "A"),  # symbol
        (b"\x74\x01\x02\x03\x04", '{"$binary":"AQIDBA=="}', b"\x01\x02\x03\x04"),  # decimal32
        (b"\x00\xa3\x16com.microsoft:timespan\x55\x05", "5", 5),
    ],
)
def test_other_types_become_the_nearest_that_json_keeps(encoded: bytes, text: str, written: object) -> None:
    """As docs/spark.md lists them."""
    found = json.dumps(json_value({"p": decode(encoded)[0]}), separators=(",", ":"))
    assert found == f'{{"p":{text}}}'
    assert properties_from_json(found) == {"p": encode(written)}


@pytest.mark.parametrize(
    "text",
    [
        f'{{"a": {2**63}}}',
        "[]",
        "{",
        '{"a": []}',
        '{"a": {"b": 1}}',
        '{"a": {"$binary": "?"}}',
        '{"a": 1e400, "b": 99999999999999999999}',
    ],
)
def test_json_that_is_no_properties_names_its_column(text: str) -> None:
    with pytest.raises(BadRow, match="properties_json"):
        properties_from_json(text)
