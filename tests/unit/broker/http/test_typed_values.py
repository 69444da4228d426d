"""broker/http/typed_values.py: values with a declared type, there and back."""

from __future__ import annotations

import math

import pytest
from lxml import etree

from broker.entities.rules import DATE_TIME_TICKS_MAX, DATE_TIME_TICKS_MIN, RuleValue, ValueType
from broker.http.atom import INSTANCE, SERVICE_BUS
from broker.http.typed_values import SCHEMA, TICKS_PER_SECOND, read_value, write_value

DAY = 86_400 * TICKS_PER_SECOND


def element(declared: str, text: str, prefix: str = "l28") -> etree._Element:
    return etree.fromstring(
        f'<Value xmlns="{SERVICE_BUS}" xmlns:p4="{INSTANCE}" xmlns:{prefix}="{SCHEMA}" '
        f'p4:type="{prefix}:{declared}">{text}</Value>'
    )


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        ("string", " red ", " red "),
        ("string", "", ""),
        ("int", "-7", -7),
        ("long", str(2**63 - 1), 2**63 - 1),
        ("double", "3.5", 3.5),
        ("double", "-INF", -math.inf),
        ("boolean", "True", True),
        ("boolean", "0", False),
        ("dateTime", "1970-01-02T00:00:00.0000001Z", DAY + 1),
        ("dateTime", "1970-01-01T01:00:00+01:00", 0),
        ("dateTime", "1969-12-31T23:59:59.5Z", -TICKS_PER_SECOND // 2),
        ("dateTime", "9999-12-31T23:59:59.9999999Z", DATE_TIME_TICKS_MAX),
        ("dateTime", "0001-01-01T00:00:00Z", DATE_TIME_TICKS_MIN),
        ("duration", "P1DT1M0.5S", DAY + 60 * TICKS_PER_SECOND + TICKS_PER_SECOND // 2),
        ("duration", "-PT2H", -7_200 * TICKS_PER_SECOND),
        ("guid", "{00112233-4455-6677-8899-AABBCCDDEEFF}", "00112233-4455-6677-8899-aabbccddeeff"),
    ],
)
def test_a_value_keeps_its_type_and_survives_being_written(
    declared: str, text: str, value: str | bool | float
) -> None:
    read = read_value(element(declared, text))
    assert read == RuleValue(ValueType(declared), value) and type(read.value) is type(value)
    parent = etree.Element(f"{{{SERVICE_BUS}}}Item", nsmap={"i": INSTANCE})
    write_value(parent, read)
    written = etree.tostring(parent).decode()
    assert f'xmlns:d6p1="{SCHEMA}" i:type="d6p1:{declared}"' in written
    assert read_value(etree.fromstring(written)[0]) == read


@pytest.mark.parametrize(
    ("declared", "text", "shown"),
    [
        ("unsignedByte", "255", "int"),
        ("byte", "-1", "int"),
        ("short", "-300", "int"),
        ("unsignedShort", "65535", "int"),
        ("unsignedInt", str(2**31 - 1), "int"),
        ("unsignedInt", str(2**31), "double"),
        ("unsignedLong", "7", "int"),
        ("unsignedLong", str(2**60), "double"),
        ("unsignedLong", str(2**53 + 1), "long"),
        ("unsignedLong", str(2**64 - 1), "unsignedLong"),
        ("float", "0.5", "double"),
    ],
)
def test_a_number_of_a_type_that_clients_do_not_read_is_shown_as_one_that_they_read(
    declared: str, text: str, shown: str
) -> None:
    read = read_value(element(declared, text))
    parent = etree.Element(f"{{{SERVICE_BUS}}}Item", nsmap={"i": INSTANCE})
    write_value(parent, read)
    again = read_value(etree.fromstring(etree.tostring(parent))[0])
    assert again == RuleValue(ValueType(shown), read.value), "the same number"


def test_a_time_without_a_zone_is_in_utc_and_written_without_one() -> None:
    read = read_value(element("dateTime", "2020-07-05T11:12:13.5"))
    zoned = read_value(element("dateTime", "2020-07-05T11:12:13.5Z"))
    assert (read.value, read.has_zone) == (zoned.value, False)
    parent = etree.Element(f"{{{SERVICE_BUS}}}Item", nsmap={"i": INSTANCE})
    write_value(parent, read)
    assert parent[0].text == "2020-07-05T11:12:13.5"


def test_a_value_without_a_type_is_a_string() -> None:
    assert read_value(etree.fromstring(f'<Value xmlns="{SERVICE_BUS}">7</Value>')) == RuleValue(
        ValueType.STRING, "7"
    )


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ("int", "2147483648"),
        ("int", "1.0"),
        ("unsignedInt", "-1"),
        ("double", "much"),
        ("boolean", "yes"),
        ("dateTime", "2026-01-05"),
        ("dateTime", "0000-01-05T00:00:00Z"),
        ("dateTime", "2026-13-05T00:00:00Z"),
        ("dateTime", "0001-01-01T00:00:00+01:00"),
        ("dateTime", "9999-12-31T23:59:59-01:00"),
        ("duration", "P"),
        ("duration", "PT"),
        ("duration", "1:00"),
        ("duration", "P99999999D"),
        ("guid", "7"),
        ("base64Binary", "AA=="),
    ],
)
def test_another_text_is_refused(declared: str, text: str) -> None:
    with pytest.raises(ValueError):
        read_value(element(declared, text))
