import uuid
from typing import Any

import pytest

from protocol.codec import (
    Array,
    Char,
    DecodeError,
    Described,
    EncodeError,
    Int,
    Long,
    Symbol,
    Timestamp,
    TypeCode,
    UByte,
    UInt,
    ULong,
    decode,
    decode_all,
    encode,
    encode_list,
    encode_map,
)
from tests.support.amqp_values import same

TOKEN = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, "40"),
        (True, "41"),
        (False, "42"),
        (5, "5405"),
        (-300, "71fffffed4"),
        (Long(2**31), "810000000080000000"),
        (1.5, "823ff8000000000000"),
        ("ab", "a1026162"),
        (b"ab", "a0026162"),
        (TOKEN, "9800112233445566778899aabbccddeeff"),
        ([], "45"),
        ([None], "c0020140"),
        ({}, "c10100"),
        (UInt(0), "43"),
        (UInt(255), "52ff"),
        (UInt(256), "7000000100"),
        (ULong(0), "44"),
        (ULong(0x70), "5370"),
        (Long(5), "5505"),
        (UByte(4), "5004"),
        (Timestamp(1), "830000000000000001"),
        (Char("é"), "73000000e9"),
        (Symbol("ab"), "a3026162"),
        (Described(ULong(0x24), []), "00532445"),
        (Array(TypeCode.LONG, [Long(1)]), "e00a01810000000000000001"),
    ],
)
def test_a_value_has_its_shortest_encoding_and_comes_back_with_its_type(value: Any, encoded: str) -> None:
    assert encode(value).hex() == encoded
    assert same(decode_all(bytes.fromhex(encoded)), value)


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


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"k": v}, lambda v: Described(ULong(1), v)])
def test_nesting_is_bounded_both_ways(wrap: Any) -> None:
    value: Any = None
    for _ in range(64):
        value = wrap(value)
    assert same(decode_all(encode(value)), value)
    with pytest.raises(EncodeError):
        encode(wrap(value))


def test_a_whole_number_beyond_32_bits_is_a_long() -> None:
    assert encode(2**31) == encode(Long(2**31))
    assert encode(-(2**31)) == encode(Int(-(2**31)))


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


@pytest.mark.parametrize(
    "value",
    [
        UByte(256),
        UInt(-1),
        Long(2**63),
        Int(2**31),
        2**64,
        Symbol("é"),
        object(),
        Array(0x99, []),
        Array(0x98, [1]),
        Char("ab"),
    ],
)
def test_what_amqp_cannot_carry_is_an_encode_error(value: Any) -> None:
    with pytest.raises(EncodeError):
        encode(value)


def test_parts_that_are_encoded_already_are_put_together() -> None:
    assert encode_list([encode("a"), encode(None)]) == encode(["a", None])
    assert encode_map([encode("a"), encode(1)]) == encode({"a": 1})
    assert encode_list([encode(b"x" * 400)]) == encode([b"x" * 400])


def test_a_decoded_list_is_nobody_elses() -> None:
    first, _ = decode(b"\x45")
    first.append(1)
    assert decode(b"\x45") == ([], 1)
