import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.base.errors import Reason, Refused
from broker.message import _changes
from broker.message.changes import (
    count_of,
    encode_changes,
    encoded_in_python,
    entries_in_python,
    entries_of,
    laid_over_in_python,
    merge_changes,
    with_changes,
)
from broker.message.property_sizes import METADATA_BYTES_MAX, PROPERTY_BYTES_MAX
from protocol.codec import DEPTH_MAX, Described, Symbol, ULong, decode_all, encode, encode_map
from protocol.sections import APPLICATION_PROPERTIES, find_sections
from tests.support.amqp_messages import APPLICATION, DATA, PROPERTIES, message, section, sections


def test_symbol_and_string_keys_are_the_same_property() -> None:
    assert encode_changes({Symbol("a"): 1}) == encode_changes({"a": 1})


def test_nothing_to_change_is_none() -> None:
    assert encode_changes({}) is None
    assert encode_changes({"DeadLetterReason": None}, drop_nulls=True) is None


def test_nulls_of_a_dead_letter_are_dropped_and_those_of_an_abandon_kept() -> None:
    sent = {"DeadLetterReason": None, "own": 1}
    assert decode_all(encode_changes(sent, drop_nulls=True) or b"") == {"own": 1}
    assert decode_all(encode_changes(sent) or b"") == sent


def test_reason_and_description_of_a_dead_letter_are_strings_whatever_was_sent() -> None:
    changes = encode_changes({"DeadLetterReason": ULong(5), "DeadLetterErrorDescription": Symbol("s")})
    found = decode_all(changes or b"")
    assert found == {"DeadLetterReason": "5", "DeadLetterErrorDescription": "s"}
    assert type(found["DeadLetterErrorDescription"]) is str


@pytest.mark.parametrize("properties", [{5: 1}, {"a": 2**70}, {b"bytes": 1}])
def test_what_cannot_be_a_property_is_an_argument_error(properties: dict[object, object]) -> None:
    with pytest.raises(Refused) as refused:
        encode_changes(properties)
    assert refused.value.reason is Reason.ARGUMENT


@pytest.mark.parametrize("name", ["own", "DeadLetterErrorDescription"])
def test_a_property_is_no_larger_than_one_of_a_message_may_be(name: str) -> None:
    longest = "x" * (PROPERTY_BYTES_MAX - 5)  # after the constructor and four bytes of length
    assert decode_all(encode_changes({name: longest}) or b"") == {name: longest}
    with pytest.raises(Refused, match=f"'{name}' takes {PROPERTY_BYTES_MAX + 1} bytes") as refused:
        encode_changes({name: longest + "x"})
    assert refused.value.reason is Reason.ARGUMENT


def test_later_changes_hold_over_earlier_ones_and_removals_are_remembered() -> None:
    earlier, later = encode_changes({"a": 1, "b": 1, "c": 1}), encode_changes({"b": 2, "c": None})
    assert decode_all(merge_changes(earlier, later) or b"") == {"a": 1, "b": 2, "c": None}
    assert merge_changes(None, later) == later
    assert merge_changes(earlier, None) == earlier
    assert merge_changes(None, None) is None


def test_a_message_without_application_properties_gets_a_section_behind_its_properties() -> None:
    properties, body = section(PROPERTIES, ["id"]), section(DATA, b"x")
    changed = with_changes(properties + body, encode_changes({"a": 1}) or b"")
    assert changed == properties + section(APPLICATION, {"a": 1}) + body


def test_a_null_that_the_sender_set_stays_and_a_removed_last_property_takes_the_section_with_it() -> None:
    bare = message(properties=["id"], application={"a": 1, "null": None})
    assert sections(with_changes(bare, encode_changes({"a": None}) or b""))[APPLICATION] == {"null": None}
    assert with_changes(message(application={"a": 1}), encode_changes({"a": None}) or b"") == message()


def test_long_keys_keep_their_text() -> None:
    key = "é" * 200
    bare = message(application={key: 1})
    assert sections(with_changes(bare, encode_changes({"b": 2}) or b""))[APPLICATION] == {key: 1, "b": 2}


def test_changes_that_keep_coming_stay_bounded_and_the_latest_hold() -> None:
    merged = None
    for number in range(100):
        merged = merge_changes(merged, encode_changes({f"note-{number}": "x" * 5_000, "attempt": number}))
        assert merged is not None and len(merged) < METADATA_BYTES_MAX + 100
    found = decode_all(merged or b"")
    assert found["attempt"] == 99 and "note-99" in found and "note-98" in found and "note-0" not in found
    full = encode_changes({"all": "y" * 32_500, "rest": "y" * 32_500})
    assert merge_changes(merged, full) == full


@pytest.mark.parametrize("count", [1, 2, 100, 200, 1_000])
def test_what_a_change_consists_of_is_counted_from_its_first_bytes(count: int) -> None:
    changed = encode_changes({f"{number:05}": None for number in range(count)})
    assert changed is not None and count_of(changed) == count == len(entries_of(changed))


@pytest.mark.parametrize("size", [0, 1, 2, 126, 127, 128, 3_000])
@pytest.mark.parametrize("key_bytes", [1, 255, 256])
def test_native_maps_are_those_of_python(size: int, key_bytes: int) -> None:
    entries = {
        (b"%05d" % number).rjust(key_bytes, b"k")[-max(key_bytes, 5) :]: encode("v" * (number % 300))
        for number in range(size)
    }
    made = _changes.encoded(entries)
    assert made == encoded_in_python(entries)
    assert len(made) - _changes.total(entries) in (3, 9)
    assert _changes.entries(b"x" + made + b"y", 1, 1 + len(made)) == entries
    assert entries_in_python(b"x" + made + b"y", 1, 1 + len(made)) == entries
    if size > 1:
        assert list(_changes.entries(made, 0, len(made)) or ()) == list(entries)


@pytest.mark.parametrize(
    "buffer",
    [
        b"",
        b"\xc1",
        b"\x45",
        b"\xc1\x01\x01",
        b"\xc1\x02\x02\x40",
        b"\xc1\x03\x02\x40\x40",
        b"\xc1\x03\x02\xa1\x05",
        b"\xc1\x04\x02\xa1\x00\xa1",
        b"\xc1\x05\x02\xa1\x01k\xb1",
        b"\xc1\x06\x02\xa1\x01k\x40\x40",
        b"\xd1\0\0\0\x04\0\0\0\x02",
        b"\xd1\0\0\0\x04\xff\xff\xff\xfe",
        b"\xb1\xff\xff\xff\xff",
    ],
    ids=bytes.hex,
)
def test_what_is_no_map_of_properties_is_left_to_python(buffer: bytes) -> None:
    assert _changes.entries(buffer, 0, len(buffer)) is None


@pytest.mark.parametrize(
    "value", [b"\x40", b"\x00\x53\x74\x45", b"\xc0\x01\x00", b"\xb0\0\0\0\x01x"], ids=bytes.hex
)
def test_values_of_any_type_are_kept_and_of_two_with_one_key_the_last(value: bytes) -> None:
    body = b"\xa3\x01k" + b"\x41" + b"\xb1\0\0\0\x01k" + value
    buffer = bytes((0xC1, len(body) + 1, 4)) + body
    assert (
        _changes.entries(buffer, 0, len(buffer)) == entries_in_python(buffer, 0, len(buffer)) == {b"k": value}
    )
    assert _changes.entries(buffer, 0, len(buffer) - 1) is None


def test_a_value_with_as_many_descriptors_as_python_reads_is_read_natively() -> None:
    """Symptom: one such property made merging all others take six times as long."""
    value: Any = 1
    for _ in range(DEPTH_MAX - 1):
        value = Described(ULong(1), value)
    changed = encode_changes({"deep": value, "other": None})
    assert changed is not None
    assert _changes.entries(changed, 0, len(changed)) == entries_in_python(changed, 0, len(changed))


def test_offsets_beyond_the_buffer_are_no_map() -> None:
    for value, end in ((-1, 3), (0, -(2**63)), (2**63 - 1, -(2**63)), (2**63 - 1, 3), (1, 3), (0, 4)):
        assert _changes.entries(b"\xc1\x01\x00", value, end) is None


@given(st.binary(max_size=60), st.integers(0, 70), st.integers(0, 70))
def test_native_code_reads_no_map_where_python_finds_none(data: bytes, value: int, end: int) -> None:
    buffer = b"\xc1" + data
    found = _changes.entries(buffer, value, end)
    if found is not None:
        assert found == entries_in_python(buffer, value, end)


@pytest.mark.parametrize("argument", [None, [], {1: b""}, {b"": None}])
def test_native_code_takes_bytes_alone(argument: Any) -> None:
    for function in (_changes.encoded, _changes.total):
        with pytest.raises(TypeError):
            function(argument)
    with pytest.raises(TypeError):
        _changes.entries(argument, 0, 1)


CHANGES = {b"a": encode(2), b"b": b"\x40", b"new": encode("n"), b"gone": b"\x40"}
OWN = b"".join(
    encode(each) for each in ("a", 1, Symbol("b"), 1, "kept", None, Symbol("kept too"), "é" * 300, "a", 3)
)


@pytest.mark.parametrize("more", [0, 4, 5, 300])
@pytest.mark.parametrize("own", [b"", OWN, OWN + OWN], ids=["none", "some", "repeated"])
def test_changes_are_laid_over_natively_as_in_python(own: bytes, more: int) -> None:
    changes = CHANGES | {b"%d" % number: encode(number) for number in range(more)}
    buffer = b"x" + encode_map([own] if own else []) + b"y"
    buffer = buffer.replace(b"\0\0\0\x01", bytes((0, 0, 0, 10 * len(own) // len(OWN))), 1)
    made = _changes.laid_over(buffer, 1, len(buffer) - 1, changes)
    assert made == laid_over_in_python(buffer, 1, len(buffer) - 1, changes)
    found = entries_of(made)
    assert found.keys() >= {b"a", b"new"} and not found.keys() & {b"b", b"gone"}
    assert found[b"a"] == encode(2) and (not own or found[b"kept"] == b"\x40")
    assert count_of(made) == more + (2 if not own else 2 + 2 * len(own) // len(OWN)), "one for each change"


def test_changes_that_remove_everything_leave_an_empty_map() -> None:
    made = encoded_in_python({b"a": encode(1), b"b": encode(2)})
    assert _changes.laid_over(made, 0, len(made), {b"a": b"\x40", b"b": b"\x40"}) == b"\xc1\x01\x00"


@given(st.binary(max_size=60), st.integers(0, 12))
def test_native_code_changes_no_map_where_python_finds_none(data: bytes, more: int) -> None:
    buffer, changes = b"\xc1" + data, CHANGES | {b"%d" % number: encode(1) for number in range(more)}
    made = _changes.laid_over(buffer, 0, len(buffer), changes)
    if made is not None:
        assert made == laid_over_in_python(buffer, 0, len(buffer), changes)


@pytest.mark.parametrize("argument", [None, [], {1: b""}, {b"": None}])
def test_only_bytes_are_laid_over_a_map(argument: Any) -> None:
    with pytest.raises(TypeError):
        _changes.laid_over(b"\xc1\x01\x00", 0, 3, argument)


def test_a_small_change_of_a_message_with_thousands_of_properties_reads_none_of_them() -> None:
    """Symptom: messages with 8,000 properties of their own took 0.9 ms each once one of them had changed, and
    64 of them were delivered together."""
    bare, changed = message(application={f"{number:04x}": True for number in range(8_000)}), {"other": 1}
    encoded = encode_changes(changed) or b""

    def seconds(function: Callable[[], object]) -> float:
        times: list[float] = []
        for _ in range(10):
            begin = time.thread_time()
            function()
            times.append(time.thread_time() - begin)
        return min(times)

    begin = find_sections(bare).values[APPLICATION_PROPERTIES]
    reading = seconds(lambda: _changes.entries(bare, begin, len(bare)))
    assert seconds(lambda: with_changes(bare, encoded)) < reading / 2
