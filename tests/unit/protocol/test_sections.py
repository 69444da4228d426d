import time
from typing import Any

import proton
import pytest

from protocol._sections import data as native_data
from protocol._sections import find as native_find
from protocol.codec import DecodeError, Described, Symbol, ULong, encode
from protocol.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SECTIONS_MAX,
    SEQUENCE,
    VALUE,
    annotation,
    data_sections,
    entry,
    field,
    find_by_rules,
    find_sections,
    only_data,
    pairs,
)
from protocol.values import decode_bounded, skip
from tests.support.plain_sections import compare


def section(code: int, value: object) -> bytes:
    return encode(Described(ULong(code), value))


HEADER_BYTES = section(0x70, [True, None])
ANNOTATIONS_BYTES = section(0x72, {Symbol("x-opt-partition-key"): "k", Symbol("other"): 1})
PROPERTIES_BYTES = section(0x73, ["id", None, "to"])
APPLICATION_PROPERTIES_BYTES = section(0x74, {"a": 1, "b": "x" * 300})
DATA_BYTES = section(0x75, b"body")
FOOTER_BYTES = section(0x78, {Symbol("f"): 1})
WHOLE = (
    HEADER_BYTES
    + ANNOTATIONS_BYTES
    + PROPERTIES_BYTES
    + APPLICATION_PROPERTIES_BYTES
    + DATA_BYTES
    + FOOTER_BYTES
)


DESCRIPTORS = (
    "53 75", "80 0000000000000075", "a3 10 616d71703a646174613a62696e617279",
    "b3 00000010 616d71703a646174613a62696e617279",
    "50 75", "51 75", "52 75", "54 75", "55 75", "60 0075", "61 0075", "70 00000075", "71 00000075",
    "81 0000000000000075", "83 0000000000000075",
)  # fmt: skip
"""Everything that names a data section."""
BATCH_MS_MAX = 10.0
"""Processor time for the largest batch. It takes 1 to 2 ms; in Python, 24 ms and more."""


def extent(message: bytes, number: int) -> bytes:
    sections = find_sections(message)
    return message[sections.begins[number] : sections.ends[number]]


def test_each_section_is_found_where_it_is() -> None:
    assert extent(WHOLE, HEADER) == HEADER_BYTES
    assert extent(WHOLE, MESSAGE_ANNOTATIONS) == ANNOTATIONS_BYTES
    assert extent(WHOLE, PROPERTIES) == PROPERTIES_BYTES
    assert extent(WHOLE, APPLICATION_PROPERTIES) == APPLICATION_PROPERTIES_BYTES
    assert extent(WHOLE, DATA) == DATA_BYTES
    assert extent(WHOLE, FOOTER) == FOOTER_BYTES
    assert find_sections(WHOLE).in_order
    assert not find_sections(WHOLE).has(DELIVERY_ANNOTATIONS)
    assert not find_sections(b"").has(VALUE)


def test_delivery_annotations_may_come_last_as_the_python_client_sends_them() -> None:
    last = section(0x71, {Symbol("x"): 1})
    assert extent(WHOLE + last, DELIVERY_ANNOTATIONS) == last
    assert not find_sections(WHOLE + last).in_order


def test_data_and_sequence_sections_may_repeat() -> None:
    message = PROPERTIES_BYTES + DATA_BYTES * 3 + FOOTER_BYTES
    assert compare(message) is not None
    assert extent(message, DATA) == DATA_BYTES * 3
    assert data_sections(message, find_sections(message)) == [b"body"] * 3
    assert extent(section(0x76, [1]) * 2, SEQUENCE) == section(0x76, [1]) * 2


def test_large_data_sections_are_taken_out_whole() -> None:
    message = section(0x75, b"x" * 70_000) + section(0x75, b"") + DATA_BYTES
    assert compare(message) is not None
    assert data_sections(message, find_sections(message)) == [b"x" * 70_000, b"", b"body"]


@pytest.mark.parametrize(
    "value", [None, 5, "text", [1, [2]], {"a": {}}, Described(Symbol("x:y"), Described(ULong(9), [b""]))]
)
def test_a_value_section_holds_anything(value: object) -> None:
    assert extent(section(0x77, value) + FOOTER_BYTES, VALUE) == section(0x77, value)


@pytest.mark.parametrize("descriptor", DESCRIPTORS)
def test_long_and_symbolic_descriptors_are_understood(descriptor: str) -> None:
    message = b"\x00" + bytes.fromhex(descriptor) + encode(b"body")
    assert data_sections(message, find_sections(message)) == [b"body"]
    assert data_sections(message * 2, find_sections(message * 2)) == [b"body"] * 2
    assert native_find(message * 2, SECTIONS_MAX) is not None
    assert compare(message * 2) is not None


@pytest.mark.parametrize("descriptor", DESCRIPTORS)
def test_the_largest_batch_is_taken_apart_in_a_few_milliseconds(descriptor: str) -> None:
    """Symptom: one turn of the event loop took 40 ms for a batch of 15,000 tiny messages."""
    message = (b"\x00" + bytes.fromhex(descriptor) + encode(b"body")) * SECTIONS_MAX
    began_ns = time.thread_time_ns()
    found = data_sections(message, find_sections(message))
    assert time.thread_time_ns() - began_ns < BATCH_MS_MAX * 1e6
    assert found == [b"body"] * SECTIONS_MAX


@pytest.mark.parametrize("kind", [DATA_BYTES, section(0x76, [1])])
def test_a_message_has_a_limited_number_of_sections(kind: bytes) -> None:
    assert native_find(kind * SECTIONS_MAX, SECTIONS_MAX) is not None
    assert find_by_rules(kind * SECTIONS_MAX) == find_sections(kind * SECTIONS_MAX)
    for find in (find_sections, find_by_rules):
        with pytest.raises(DecodeError, match=f"more than {SECTIONS_MAX} sections"):
            find(kind * (SECTIONS_MAX + 1))


def test_too_many_sections_are_refused_without_a_second_look() -> None:
    """Symptom: Python looked at 16,384 messages of a batch again to refuse it, for 20 ms."""
    with pytest.raises(OverflowError, match="more than 3 sections"):
        native_find(DATA_BYTES * 4, 3)
    assert native_find(DATA_BYTES * 3, 3) is not None


def test_only_sections_that_are_there_are_taken_out() -> None:
    for first, last in ((-1, 4), (4, 3), (0, len(DATA_BYTES) + 1), (0, len(DATA_BYTES) - 1)):
        with pytest.raises(ValueError, match="sections"):
            native_data(DATA_BYTES, first, last)


@pytest.mark.parametrize(
    "message",
    [
        HEADER_BYTES * 2,
        PROPERTIES_BYTES + DATA_BYTES + PROPERTIES_BYTES,
        DATA_BYTES + FOOTER_BYTES + DATA_BYTES,
        section(0x77, 1) * 2,
        DATA_BYTES + section(0x77, 1),
        section(0x76, []) + section(0x77, 1),
        section(0x79, []),
        section(0x6F, []),
        section(0x70, {}),
        section(0x72, []),
        section(0x75, "text"),
        section(0x74, None),
        b"\x00\x53\x77\x01",
        b"\x00\x53\x77\x3f",
        b"\x01",
        b"plain text",
        encode(Described(Symbol("amqp:unknown:list"), [])),
        encode(Described(None, [])),
    ],
)
def test_what_is_no_message_is_a_decode_error(message: bytes) -> None:
    with pytest.raises(DecodeError):
        find_sections(message)
    assert native_find(message, SECTIONS_MAX) is None


def test_a_message_cut_anywhere_but_between_sections_is_a_decode_error() -> None:
    boundaries, rest = {0}, 0
    for part in (HEADER_BYTES, ANNOTATIONS_BYTES, PROPERTIES_BYTES, APPLICATION_PROPERTIES_BYTES, DATA_BYTES):
        boundaries.add(rest := rest + len(part))
    for cut in range(len(WHOLE)):
        compare(WHOLE[:cut])
        if cut in boundaries:
            find_sections(WHOLE[:cut])
        else:
            with pytest.raises(DecodeError):
                find_sections(WHOLE[:cut])


def test_single_fields_and_entries_are_found() -> None:
    sections = find_sections(WHOLE)
    assert field(WHOLE, sections, PROPERTIES, 0) == "id"
    assert field(WHOLE, sections, PROPERTIES, 1) is None
    assert field(WHOLE, sections, PROPERTIES, 2) == "to"
    assert field(WHOLE, sections, PROPERTIES, 10) is None
    assert field(WHOLE, sections, HEADER, 0) is True
    assert annotation(WHOLE, sections, b"x-opt-partition-key") == "k"
    assert annotation(WHOLE, sections, b"absent") is None
    assert entry(WHOLE, sections, APPLICATION_PROPERTIES, b"b") == "x" * 300
    assert entry(WHOLE, sections, FOOTER, b"f") == 1
    assert field(DATA_BYTES, find_sections(DATA_BYTES), PROPERTIES, 0) is None
    assert annotation(DATA_BYTES, find_sections(DATA_BYTES), b"x") is None


def test_of_equal_keys_the_last_counts_and_alone_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symptom: the envelope of one batch, with 32,768 partition-keys, held the event loop for 65 ms."""
    decoded: list[int] = []

    def noted(buffer: bytes, offset: int) -> tuple[Any, int]:
        decoded.append(offset)
        return decode_bounded(buffer, offset)

    monkeypatch.setattr("protocol.sections.decode_bounded", noted)
    pairs = b"".join(encode(Symbol("key")) + encode(number) for number in range(5))
    message = b"\x00\x53\x72\xc1" + bytes((1 + len(pairs), 10)) + pairs
    assert annotation(message, find_sections(message), b"key") == 4
    assert len(decoded) == 1


def test_a_message_of_protons_is_found_through() -> None:
    message = bytes(
        proton.Message(body={"a": [1, 2]}, id=proton.ulong(7), properties={"p": 1.5}, ttl=3).encode()
    )
    sections = find_sections(message)
    assert field(message, sections, PROPERTIES, 0) == 7
    assert field(message, sections, HEADER, 2) == 3000
    assert entry(message, sections, APPLICATION_PROPERTIES, b"p") == 1.5


@pytest.mark.parametrize(
    "properties", ["c0030340 40", "c0020240", "c0030140 40", "c00101", "c00f0e" + "40" * 14, "d0000000030000"]
)
def test_fields_that_do_not_add_up_are_a_decode_error(properties: str) -> None:
    message = b"\x00\x53\x73" + bytes.fromhex(properties)
    with pytest.raises(DecodeError):
        field(message, find_sections(message), PROPERTIES, 0)


def test_a_map_with_a_key_too_many_is_a_decode_error() -> None:
    with pytest.raises(DecodeError, match="lacks its value"):
        pairs(b"\xc1\x02\x01\x40", 0, 4)


def test_deeply_described_values_are_stepped_over_without_recursion() -> None:
    nested = b"\x00\x40" * 64 + b"\x41"
    assert skip(nested, 0) == len(nested)
    with pytest.raises(DecodeError, match="nested deeper"):
        skip(b"\x00\x40" * 1_000_000 + b"\x41", 0)


def test_descriptors_are_nested_as_deep_in_c_as_by_the_rules() -> None:
    """Symptom: C gave up at a fourth of the depth, so Python looked at such messages a second time."""
    deepest, too_deep = (b"\x00\x53\x77" + b"\x00\x40" * levels + b"\x41" for levels in (127, 128))
    assert compare(deepest) is not None
    assert native_find(deepest, SECTIONS_MAX) is not None
    assert compare(too_deep) is None


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (WHOLE, b"body"),
        (PROPERTIES_BYTES + section(0x75, b"x" * 300), b"x" * 300),
        (encode(Described(Symbol("amqp:data:binary"), b"spelled")) + FOOTER_BYTES, b"spelled"),
        (section(0x75, b""), b""),
        (DATA_BYTES + DATA_BYTES, None),
        (PROPERTIES_BYTES + section(0x77, "value"), None),
        (section(0x77, None), None),
        (section(0x76, [1]), None),
        (b"", None),
    ],
)
def test_the_content_of_the_only_data_section_is_found(message: bytes, body: bytes | None) -> None:
    found = only_data(b"front" + message, 5)
    assert body == (None if found is None else (b"front" + message)[found[0] : found[0] + found[1]])
