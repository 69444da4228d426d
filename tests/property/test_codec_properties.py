from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from proton import Data

from protocol.codec import DecodeError, decode, decode_all, encode
from tests.support.amqp_values import same, values


@given(values)
@settings(max_examples=300, deadline=None)
def test_every_value_comes_back_as_it_went(value: Any) -> None:
    encoded = encode(value)
    assert same(decode_all(encoded), value)
    assert encode(decode_all(encoded)) == encoded


@given(values)
@settings(max_examples=150, deadline=None)
def test_proton_reads_what_is_encoded(value: Any) -> None:
    data = Data()
    encoded = encode(value)
    assert data.decode(encoded) == len(encoded)


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_a_value_or_a_decode_error(garbage: bytes) -> None:
    try:
        _, end = decode(garbage)
    except DecodeError:
        return
    assert 0 < end <= len(garbage)


@given(values, st.data())
@settings(max_examples=300, deadline=None)
def test_a_value_cut_short_or_changed_in_one_byte_is_a_value_or_a_decode_error(
    value: Any, data: st.DataObject
) -> None:
    encoded = encode(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    place, byte = data.draw(st.integers(0, len(encoded) - 1)), data.draw(st.integers(0, 255))
    changed = encoded[:place] + bytes((byte,)) + encoded[place + 1 :]
    for damaged in (encoded[:cut], changed):
        try:
            decode_all(damaged)
        except DecodeError:
            continue
        assert damaged is changed
