"""Application properties as headers, there and back (HTTP contract 4.2, 4.3)."""

from __future__ import annotations

import datetime
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.base.errors import Reason, Refused
from broker.http.header_values import (
    checked_properties,
    is_property,
    read_headers,
    read_value,
    write_headers,
    write_value,
)

DATE = datetime.datetime(1994, 11, 6, 8, 49, 37, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"High"', "High"),
        ('"12345,ABC"', "12345,ABC"),
        (r'"a\"b"', 'a"b'),
        (r'"C:\new\d"', r"C:\new\d"),
        (r'"\u00fc\ud83d\ude00"', "ü😀"),
        ('"Sun, 06 Nov 1994 08:49:37 GMT"', DATE),
        ('"Sun, 99 Nov 1994 08:49:37 GMT"', "Sun, 99 Nov 1994 08:49:37 GMT"),
        ("5", 5),
        ("-7", -7),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("9223372036854775807", 2**63 - 1),
        ("true", True),
        ("false", False),
        ("plain text", "plain text"),
        ("nan", "nan"),
        ("0", 0),
        ("-0", "-0"),
        ("+5", "+5"),
        ("00123", "00123"),
        ("9223372036854775808", "9223372036854775808"),
        ("-9223372036854775809", "-9223372036854775809"),
        ("1" * 16_000, "1" * 16_000),
        ("1e999", "1e999"),
        ("-0.5", -0.5),
        ("1e-07", 1e-07),
        (".5", ".5"),
        ("", ""),
        ('"', '"'),
    ],
)
def test_the_text_of_a_header_says_the_type_of_its_property(text: str, value: Any) -> None:
    read = read_value(text)
    assert (read, type(read)) == (value, type(value))


@given(
    st.text()
    | st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    text = write_value(value)
    assert not any(unicodedata.category(each) in ("Cc", "Cs") for each in text), "it fits a header"
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)


@pytest.mark.parametrize("text", ["1" * 100_000 + "x", "1" * 50_000 + "." + "1" * 50_000 + "x"])
def test_a_long_text_that_begins_as_a_number_is_read_in_linear_time(text: str) -> None:
    begun_s = time.process_time()
    assert read_value(text) == text
    assert time.process_time() - begun_s < 1, "in quadratic time, it takes more than a minute"


def test_text_is_as_large_as_its_sender_may_have_sent_it() -> None:
    assert write_value("ü😀\u2028") == '"ü😀\u2028"'
    assert write_value("a\r\n\0\x7f\x85") == r'"a\u000d\u000a\u0000\u007f\u0085"'


def test_times_are_written_as_http_writes_them() -> None:
    assert write_value(DATE) == '"Sun, 06 Nov 1994 08:49:37 GMT"'


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "BrokerProperties",
        "content-type",
        "Content-MD5",
        "X-MS-RetryPolicy",
        "Accept-Encoding",
        "ServiceBusSupplementaryAuthorization",
        "X-Forwarded-For",
        "traceparent",
        "HOST",
        "Sec-Fetch-Mode",
    ],
)
def test_headers_of_http_are_no_properties(name: str) -> None:
    assert not is_property(name)


def test_names_keep_their_spelling() -> None:
    assert read_headers([(b"Priority", b'"High"'), (b"Host", b"a"), (b"customerId", b"5")]) == {
        "Priority": "High",
        "customerId": 5,
    }


def test_properties_that_cannot_be_headers_travel_together() -> None:
    properties = {"a name": 1, "naïve": "é", "Host": True, "x": None, "list": [1, DATE], "ok": 1, "OK": 2}
    written = dict(write_headers(properties))
    assert written.keys() == {"ok", "Partibus-Properties"}
    del properties["list"]
    read = read_headers([(name.encode(), text.encode()) for name, text in write_headers(properties)])
    assert read == properties


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "{",
        '{"a":{}}',
        '{"a":[]}',
        '{"a":9223372036854775808}',
        '{"a":NaN}',
        '{"a":1e999}',
        "[" * 10_000,
    ],
)
def test_wrong_json_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        read_headers([(b"partibus-properties", text.encode())])
    assert refused.value.reason is Reason.ARGUMENT


@pytest.mark.parametrize(
    "headers",
    [
        [("a", "1"), ("a", "1")],
        [("Colour", "red"), ("colour", "blue")],
        [("BrokerProperties", "{}"), ("brokerproperties", "{}")],
        [("Partibus-Properties", "{}"), ("partibus-properties", "{}")],
        [("a", "1"), ("Partibus-Properties", '{"a":2}')],
    ],
)
def test_nothing_that_is_said_twice_is_dropped(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(Refused) as refused:
        read_headers([(name.encode(), text.encode()) for name, text in headers])
    assert refused.value.reason is Reason.ARGUMENT


def test_headers_of_http_may_come_twice() -> None:
    assert read_headers([(b"Accept", b"a/b"), (b"Accept", b"c/d"), (b"a", b"1")]) == {"a": 1}


def test_bytes_that_are_no_utf_8_are_latin_1() -> None:
    assert read_headers([(b"a", '"ü"'.encode()), (b"b", '"ü"'.encode("latin-1"))]) == {"a": "ü", "b": "ü"}


def test_properties_with_too_many_names_are_refused_before_they_are_encoded() -> None:
    fits: dict[str, object] = {f"{number:04}": 1 for number in range(10_000)}
    assert checked_properties(fits) == fits
    with pytest.raises(Refused, match="take 80000 bytes; the limit of its annotations") as refused:
        checked_properties(fits | {"x" * 40_000: 1})
    assert refused.value.reason is Reason.MESSAGE_TOO_LARGE
