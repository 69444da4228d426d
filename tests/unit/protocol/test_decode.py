"""Decoding: every encoding is understood, and malformed bytes are refused."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.codec import (
    Array,
    DecodeError,
    Described,
    Long,
    Symbol,
    UInt,
    ULong,
    decode,
    decode_all,
    encode_list,
)
from tests.support.amqp_values import same


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        ("5601", True),
        ("5600", False),
        ("7000000005", UInt(5)),
        ("8000000000000000 05", ULong(5)),
        ("7100000005", 5),
        ("810000000000000005", Long(5)),
        ("b1000000026162", "ab"),
        ("b0000000026162", b"ab"),
        ("b3000000026162", Symbol("ab")),
        ("d00000000400000000", []),
        ("d0000000050000000141", [True]),
        ("d1000000080000000254015402", {1: 2}),
        ("f00000000d00000001810000000000000001", Array(0x81, [Long(1)])),
        ("e0050200532445", Array(0x45, [[], []], ULong(0x24))),
        ("e0020040", Array(0x40, [])),
        ("e00100", Array(0x40, [])),
        ("00a303613a6241", Described(Symbol("a:b"), True)),
    ],
)
def test_every_encoding_of_a_type_is_understood(encoded: str, value: Any) -> None:
    assert same(decode_all(bytes.fromhex(encoded)), value)


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "01",
        "3f",
        "5602",
        "70000000",
        "a10561",
        "b1ffffffff61",
        "a102c328",
        "a301ff",
        "73 0000d800",
        "73 00110000",
        "98 00112233",
        "c000",
        "c00101",
        "c0040141",
        "c0ff0141",
        "c1020140",
        "c105024545 45",
        "c1050245 4540",
        "d0fffffffffffffff0",
        "d000000004ffffffff",
        "e0024140",
        "e003 ff 40",
        "f0 00000005 7fffffff 40",
        "e0060100445344 43",
        "0053",
        "00" * 300,
    ],
)
def test_malformed_bytes_are_a_decode_error(encoded: str) -> None:
    with pytest.raises(DecodeError):
        decode_all(bytes.fromhex(encoded))


def test_nesting_beyond_the_bound_is_refused_when_it_comes_in() -> None:
    encoded = b"\x40"
    for _ in range(65):
        encoded = encode_list([encoded])
    with pytest.raises(DecodeError, match="nested deeper"):
        decode(encoded)


def test_a_value_is_found_at_an_offset_and_tells_where_it_ends() -> None:
    assert decode(b"\xff\x54\x05\xff", 1) == (5, 3)
    assert decode(memoryview(b"\xff\xa1\x01x\xff"), 1) == ("x", 4)


def test_bytes_behind_the_value_are_refused_where_one_value_is_wanted() -> None:
    with pytest.raises(DecodeError, match="1 bytes after"):
        decode_all(b"\x40\x40")


def test_a_decoded_list_is_nobody_elses() -> None:
    first, _ = decode(b"\x45")
    first.append(1)
    assert decode(b"\x45") == ([], 1)
