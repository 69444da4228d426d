"""Values with a declared type in XML, as rules have them (HTTP contract 2.7).

    <Value i:type="d6p1:string" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">red</Value>

JavaScript takes the four characters before the type off, whatever they are, so the prefix is always `d6p1`.
It fails on types that it does not know, as Go does, and .NET and Python know few more. Numbers of other
types, which rules made over AMQP have, are therefore written with a type that all of them read.
Times and durations are kept in ticks (`broker/base/ticks.py`).
"""

from __future__ import annotations

import datetime
import re
import uuid
from dataclasses import replace
from typing import Final

from lxml import etree

from broker.base.ticks import TICKS_PER_MS
from broker.entities.rules import DATE_TIME_TICKS_MAX, DATE_TIME_TICKS_MIN, RuleValue, ValueType
from broker.http.atom import INSTANCE, SERVICE_BUS, Element, printable

SCHEMA = "http://www.w3.org/2001/XMLSchema"
TICKS_PER_SECOND: Final = 1_000 * TICKS_PER_MS
_TICKS_PER_DAY: Final = 86_400 * TICKS_PER_SECOND

_BITS: Final = {
    ValueType.BYTE: 8,
    ValueType.SHORT: 16,
    ValueType.INT: 32,
    ValueType.LONG: 64,
}
_UNSIGNED_BITS: Final = {
    ValueType.UNSIGNED_BYTE: 8,
    ValueType.UNSIGNED_SHORT: 16,
    ValueType.UNSIGNED_INT: 32,
    ValueType.UNSIGNED_LONG: 64,
}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.(\d{1,7})\d*)?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_DURATION = re.compile(
    r"(-)?P(?:(\d{1,8})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,12})(?:\.(\d{1,7})\d*)?S)?)?", re.ASCII
)


def type_of(element: Element) -> str | None:
    """The name of the type that an element declares, without its prefix; None if it declares none."""
    declared = element.get(f"{{{INSTANCE}}}type")
    return None if declared is None else declared.strip().rpartition(":")[2]


def read_value(element: Element) -> RuleValue:
    """Read a value; one without a type is a string. Raises ValueError."""
    name = type_of(element) or ValueType.STRING.value
    try:
        declared = ValueType(name)
    except ValueError as error:
        raise ValueError(f"the type '{name:.60}' is not one that a rule can have") from error
    text = element.text or ""
    if declared is ValueType.STRING:
        return RuleValue(declared, text)
    text = text.strip()
    has_zone = declared is not ValueType.DATE_TIME or _zone_of(text) is not None
    return RuleValue(declared, _read(declared, text), has_zone)


def write_value(parent: Element, value: RuleValue) -> None:
    """Append a value with its type."""
    element = etree.SubElement(parent, f"{{{SERVICE_BUS}}}Value", nsmap={"d6p1": SCHEMA})
    shown = _as_clients_read(value)
    element.set(f"{{{INSTANCE}}}type", f"d6p1:{shown.type.value}")
    element.text = printable(_write(shown))


def _as_clients_read(value: RuleValue) -> RuleValue:
    """The same value, with a type that the clients read. `long` stays, which .NET and Python send."""
    match value.type:
        case ValueType.FLOAT:
            return replace(value, type=ValueType.DOUBLE)
        case ValueType.BYTE | ValueType.SHORT:
            return replace(value, type=ValueType.INT)
        case declared if declared in _UNSIGNED_BITS:
            number = int(value.value)
            if number < 1 << 31:
                return replace(value, type=ValueType.INT)
            if float(number) == number:  # JavaScript, which has no other numbers, does not read long
                return replace(value, type=ValueType.DOUBLE)
            return replace(value, type=ValueType.LONG) if number < 1 << 63 else value
        case _:
            return value


def _read(declared: ValueType, text: str) -> str | bool | int | float:
    match declared:
        case ValueType.BOOLEAN:
            if text.lower() not in ("true", "false", "1", "0"):
                raise ValueError(f"'{text:.40}' is neither true nor false")
            return text.lower() in ("true", "1")
        case ValueType.FLOAT | ValueType.DOUBLE:
            return float(text)
        case ValueType.DATE_TIME:
            return _time(text)
        case ValueType.DURATION:
            return _duration(text)
        case ValueType.GUID:
            return str(uuid.UUID(text))
        case _:
            return _integer(declared, text)


def _write(value: RuleValue) -> str:
    match value.type:
        case ValueType.BOOLEAN:
            return "true" if value.value else "false"
        case ValueType.FLOAT | ValueType.DOUBLE:
            text = repr(float(value.value))
            return {"inf": "INF", "-inf": "-INF", "nan": "NaN"}.get(text, text)
        case ValueType.DATE_TIME:
            return _time_text(int(value.value), "Z" if value.has_zone else "")
        case ValueType.DURATION:
            return _duration_text(int(value.value))
        case _:
            return str(value.value)


def _integer(declared: ValueType, text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,20}", text, re.ASCII):
        raise ValueError(f"'{text:.40}' is not a whole number")
    number = int(text)
    if declared in _UNSIGNED_BITS:
        low, high = 0, 1 << _UNSIGNED_BITS[declared]
    else:
        high = 1 << (_BITS[declared] - 1)
        low = -high
    if not low <= number < high:
        raise ValueError(f"{number} is not a value of the type {declared.value}")
    return number


def _zone_of(text: str) -> str | None:
    found = _TIME.fullmatch(text)
    return None if found is None else found[4]


def _time(text: str) -> int:
    """Ticks since the Unix epoch. A time without a zone is in UTC: Python writes such times."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"'{text:.40}' is not a time such as 2026-01-05T10:00:00Z")
    day, clock, fraction, zone = found.groups()
    since = datetime.datetime.fromisoformat(f"{day}T{clock}{(zone or 'Z').replace('Z', '+00:00')}") - _EPOCH
    ticks = since.days * _TICKS_PER_DAY + since.seconds * TICKS_PER_SECOND + _fraction(fraction)
    if not DATE_TIME_TICKS_MIN <= ticks <= DATE_TIME_TICKS_MAX:  # because of its zone
        raise ValueError(f"'{text:.40}' is not in the years 1 to 9999 of UTC")
    return ticks


def _time_text(ticks: int, zone: str) -> str:
    seconds, rest = divmod(ticks, TICKS_PER_SECOND)
    time = (_EPOCH + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    return f"{time}{f'.{rest:07d}'.rstrip('0') if rest else ''}{zone}"


def _duration(text: str) -> int:
    """Ticks."""
    found = _DURATION.fullmatch(text)
    if found is None or text.endswith(("P", "T")):
        raise ValueError(f"'{text:.40}' is not an ISO 8601 duration such as PT1M or P1DT12H")
    sign, days, hours, minutes, seconds, fraction = found.groups()
    whole = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    ticks = whole * TICKS_PER_SECOND + _fraction(fraction)
    if ticks >= 1 << 63:
        raise ValueError(f"'{text:.40}' is longer than a duration can be")
    return -ticks if sign else ticks


def _duration_text(ticks: int) -> str:
    """In days and seconds alone, which every client reads."""
    days, rest = divmod(abs(ticks), _TICKS_PER_DAY)
    seconds, fraction = divmod(rest, TICKS_PER_SECOND)
    second = f"{seconds}{f'.{fraction:07d}'.rstrip('0') if fraction else ''}"
    sign, day = "-" if ticks < 0 else "", f"{days}D" if days else ""
    return f"{sign}P{day}T{second}S"


def _fraction(digits: str | None) -> int:
    return int((digits or "").ljust(7, "0") or 0)
